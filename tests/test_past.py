"""Solves that go on from an observed window."""

import math

import mpmath
import pytest
import torch

import neuralfde as nf
from neuralfde.special import mittag_leffler
from neuralfde.weights.observed import observed
from tests.stubs import F64

BETA, RATE, LENGTH = 0.6, 1.3, 1.0
T = torch.tensor([0.0, 0.05, 0.3, 1.0, 2.0], dtype=F64)
TIMES = torch.tensor([-1.0, -0.6, -0.5, -0.2, 0.0], dtype=F64)


def decay(t, z):
    return -RATE * z


def window(count):
    """The solution that began a while ago, sampled more densely where it is steep."""
    times = LENGTH * (torch.linspace(0, 1, count, dtype=F64) ** 3 - 1)
    return times, mittag_leffler(-RATE * (times + LENGTH) ** BETA, BETA)[:, None]


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 160, "method": "trapezoid"},
        {"steps": 200, "method": "bdf2"},
        {"rtol": 3e-5},
        {"grid": 2 * torch.linspace(0, 1, 161, dtype=F64) ** 1.5, "method": "trapezoid", "history": "exponentials"},
    ],
    ids=["trapezoid", "bdf2", "tolerance", "mesh"],
)
def test_a_solution_goes_on_as_if_it_had_never_stopped(options):
    found = nf.fdeint(decay, None, T, BETA, past=window(160), **options)
    exact = mittag_leffler(-RATE * (T + LENGTH) ** BETA, BETA)[:, None]
    torch.testing.assert_close(found, exact, rtol=0, atol=4e-5)
    forgetful = nf.fdeint(decay, window(2)[1][-1], T, BETA, **options)
    assert (forgetful - exact).abs().max() > 0.05


def test_the_weights_are_the_integral_of_the_derivative():
    """``∫_{-a}^0 k(t-s) (D^β φ)(s) ds`` for a φ that is linear between three samples, by quadrature."""
    times, values = [-1.0, -0.4, 0.0], [1.0, 0.3, 0.8]
    slopes = [(values[1] - values[0]) / 0.6, (values[2] - values[1]) / 0.4]

    def derivative(s):
        found = 0
        for slope, a, b in zip(slopes, times, times[1:], strict=False):
            if s > a:
                found += slope * ((s - a) ** (1 - BETA) - max(s - b, 0) ** (1 - BETA)) / mpmath.gamma(2 - BETA)
        return found

    for t in (0.0, 0.01, 0.7, 30.0):
        exact = values[0] + mpmath.quad(
            lambda s, t=t: (t - s) ** (BETA - 1) / mpmath.gamma(BETA) * derivative(s), [-1, -0.4, -0.2, -0.01, 0]
        )
        back, ahead = -torch.tensor(times, dtype=F64), torch.tensor([t], dtype=F64)
        found = observed(torch.tensor([BETA], dtype=F64), back, ahead)[:, 0, 0] @ torch.tensor(values, dtype=F64)
        assert abs(float(found) - float(exact)) < (1e-12 if t > 0.1 else 1e-3 if t == 0 else 1e-6)
    assert torch.equal(
        observed(torch.ones(1, dtype=F64), back, ahead).round(decimals=12)[:, 0, 0], torch.eye(3)[2].double()
    )


@pytest.mark.parametrize("adjoint", ["exact", "direct"])
def test_the_window_the_orders_and_jumps_have_exact_gradients(adjoint):
    states = torch.rand(5, 2, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    order = torch.tensor([0.4, 0.9], dtype=F64, requires_grad=True)
    at = torch.tensor([0.7], dtype=F64, requires_grad=True)

    def solve(states, order, at):
        options = {"steps": 8, "method": "abm", "adjoint": adjoint, "past": (TIMES, states)}
        by = torch.ones(1, 2, dtype=F64)
        return nf.fdeint(lambda t, z: torch.cos(t) - z**2, states[-1], T, order, jumps=(at, by), **options)

    assert torch.autograd.gradcheck(solve, (states, order, at), fast_mode=True)


def test_structures_complex_numbers_and_events():
    z = torch.linspace(1, 2, 5, dtype=F64)
    past = (TIMES, {"x": z[:, None], "y": (2 * z)[:, None]})
    found = nf.fdeint(lambda t, z: {"x": -z["x"], "y": -z["y"]}, None, 1.0, 0.5, steps=10, past=past)
    torch.testing.assert_close(found["y"], 2 * found["x"])
    turned = nf.fdeint(lambda t, z: -z, None, 1.0, 0.5, steps=10, past=(TIMES, 1j * z[:, None]))
    torch.testing.assert_close(turned, 1j * found["x"])
    ended = nf.solve(lambda t, z: -z, None, 1.0, 0.5, steps=10, past=(TIMES, z[:, None]), event=lambda t, z: z[0] - 1.5)
    assert abs(float(ended.ys[-1, 0]) - 1.5) < 1e-12


@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_a_given_initial_state_may_be_mapped(dtype):
    states = torch.linspace(1, 2, 10, dtype=F64).view(5, 2).to(dtype)

    def end(rows, z0):
        return nf.fdeint(lambda t, z: -z, z0, 1.0, 0.5, steps=10, past=(TIMES, rows[:, None]))

    found = torch.func.vmap(end, in_dims=(1, 0))(states, states[-1:].T)
    torch.testing.assert_close(found[:, 0], end(states, states[-1:])[0])
    with pytest.raises(nf.InputError, match="z0 is not the last state"):
        torch.func.vmap(end, in_dims=(1, 0))(states, states[:1].T)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_state_that_is_not_the_last_of_the_window_is_refused_at_any_scale(scale):
    states = scale * torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    nf.fdeint(decay, states[-1] + 1e-9 * scale, 1.0, 0.5, past=([-1.0, 0.0], states), steps=4)
    with pytest.raises(nf.InputError, match="z0 is not the last state"):
        nf.fdeint(decay, states[-1] * 1.01, 1.0, 0.5, past=([-1.0, 0.0], states), steps=4)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"past": TIMES}, "a pair"),
        ({"past": (TIMES, 1.0)}, "first axis"),
        ({"past": (TIMES[:3], torch.ones(5, 1))}, "begins at 0"),
        ({"past": (TIMES, torch.ones(4, 1))}, "5 times"),
        ({"past": (TIMES[-1:], torch.ones(1, 1))}, "a single state is z0"),
        ({"past": (TIMES.flip(0), torch.ones(5, 1))}, "must increase"),
        ({"past": (TIMES, torch.ones(5, 1) / 0)}, "NaN or infinity"),
        ({"past": (TIMES, torch.ones(5, 1) * math.nan), "z0": torch.ones(1)}, "z0=None"),
        ({"z0": torch.zeros(1)}, "z0=None"),
        ({"z0": 1.0}, "z0=None"),
        ({"order": nf.Tempered(0.5, 1.0)}, "Caputo"),
        ({"order": 1.5, "velocity": torch.zeros(1)}, "up to 1"),
        ({"history": nf.Window(4)}, "forgets"),
        ({"adjoint": "paper"}, "past="),
        ({"resume": True}, "works with event= or past="),
    ],
    ids=str,
)
def test_what_is_no_past_is_refused(options, match):
    given = {"z0": None, "order": 0.5, "past": (TIMES, torch.ones(5, 1)), "steps": 8, **options}
    with pytest.raises((nf.InputError, nf.InputTypeError), match=match):
        nf.solve(decay, given.pop("z0"), 1.0, given.pop("order"), **given)
