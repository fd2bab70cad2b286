"""Right-hand sides that depend on the state of a while ago."""

import itertools

import pytest
import torch

import neuralfde as nf
from tests.stubs import F64

T = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0], dtype=F64)
MESH = 2 * torch.linspace(0, 1, 14, dtype=F64) ** 1.5


def leaf(value):
    return torch.tensor(value, dtype=F64, requires_grad=True)


@pytest.mark.parametrize(("method", "off"), [("predictor", 6e-3), ("trapezoid", 1e-12), ("abm", 1e-12)])
def test_the_method_of_steps(method, off):
    """``z' = -z(t-1)`` from 1: 1 - t, then a parabola, which the trapezoid rule integrates exactly."""
    found = nf.fdeint(lambda t, z, ago: -ago, torch.ones(1, dtype=F64), T, 1.0, lags=1.0, steps=200, method=method)
    exact = 1 - T + (T - 1).clamp(min=0) ** 2 / 2
    torch.testing.assert_close(found[:, 0], exact, rtol=0, atol=off)


def test_a_delay_in_a_fractional_equation_is_a_known_forcing_at_first():
    """Up to the lag ``D^β z = -z0``; then the integral of what is known by then."""
    found = nf.fdeint(lambda t, z, ago: -ago, torch.ones(1, dtype=F64), T, 0.6, lags=1.0, steps=400, method="abm")
    gamma = torch.lgamma(torch.tensor([1.6, 2.2], dtype=F64)).exp()
    exact = 1 - T**0.6 / gamma[0] + (T - 1).clamp(min=0) ** 1.2 / gamma[1]
    torch.testing.assert_close(found[:, 0], exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{"steps": 13}, {"grid": MESH, "method": "abm"}], ids=["steps", "mesh"])
def test_lags_and_all_else_have_exact_gradients(options):
    def solve(lag, z0, gain, order):
        return nf.fdeint(lambda t, z, ago, a: a * torch.tanh(ago) - z, z0, T, order, lags=lag, args=(gain,), **options)

    given = (leaf(0.437), leaf([1.0, 0.3]), leaf(1.7), leaf(0.6))
    assert torch.autograd.gradcheck(solve, given, fast_mode=True)


def delayed_integrals(t, order):
    """The solution of ``D^β z = -z(t - 1)``, 1 up to time 0."""
    terms = torch.arange(12, dtype=F64)
    late = (t[:, None] - terms + 1).clamp(min=0) * (terms > 0)
    return 1 + ((-1) ** terms * late ** (order * terms) / torch.lgamma(order * terms + 1).exp() * (late > 0)).sum(1)


@pytest.mark.parametrize(("order", "rtol", "steps"), [(0.3, 1e-4, 700), (0.9, 1e-5, 1300)])
def test_states_between_steps_are_held_to_the_tolerance_where_a_delay_shows_them(order, rtol, steps):
    """Slopes are constant up to the lag, so that only the states say how short the steps must be."""
    t = torch.tensor([0.0, 0.5, 0.99, 1.01, 1.7, 3.0], dtype=F64)
    with torch.no_grad():
        found = nf.solve(
            lambda t, z, ago: -ago, torch.ones(1, dtype=F64), t, order, lags=1.0, rtol=rtol, method=nf.ABM(ahead=True)
        )
    exact = delayed_integrals(t, order)
    assert ((found.ys[:, 0] - exact).abs() < 3 * rtol * (1 + exact.abs())).all()
    assert found.stats.accepted < steps


@pytest.mark.parametrize("method", [nf.Trapezoid(), nf.ABM(ahead=True)], ids=str)
def test_a_tolerance_chooses_steps_up_to_the_lag(method):
    """The delayed integral of a known forcing, over three decades; lags are learned on the mesh that was found."""
    t, lag = torch.tensor([0.0, 0.01, 0.5, 1.0, 10.0], dtype=F64), leaf(1.0)
    found = nf.solve(lambda t, z, ago: -ago, torch.ones(1, dtype=F64), t, 0.6, lags=lag, rtol=1e-4, method=method)
    exact = delayed_integrals(t, 0.6)
    assert ((found.ys[:, 0] - exact).abs() < 2e-4 * (1 + exact.abs())).all()
    assert found.stats.largest_step <= 0.5
    (grad,) = torch.autograd.grad(found.ys[-1].sum(), lag)
    shift = 1e-4
    with torch.no_grad():
        ends = [
            nf.fdeint(
                lambda t, z, ago: -ago, torch.ones(1, dtype=F64), t, 0.6, lags=1 + by, grid=found.grid, method=method
            )[-1]
            for by in (shift, -shift)
        ]
    torch.testing.assert_close(grad, ((ends[0] - ends[1]) / (2 * shift)).squeeze(), rtol=1e-2, atol=1e-4)


def test_several_lags_behind_a_window_and_a_jump():
    times, states = torch.tensor([-0.6, -0.5, -0.2, 0.0], dtype=F64), leaf([[0.3], [0.7], [0.2], [0.9]])

    def solve(lags, states, at):
        past, by = (times, states), torch.ones(1, 1, dtype=F64)
        func, options = lambda t, z, ago: torch.cos(t) * ago[0] - z * ago[1], {"past": past, "jumps": (at, by)}
        return nf.fdeint(func, None, T, 0.7, lags=lags, steps=13, **options)

    assert torch.autograd.gradcheck(solve, (leaf([0.437, 0.719]), states, leaf([0.77])), fast_mode=True)


def test_a_lag_is_learned_across_a_jump():
    """``z' = -z(t-τ)`` from 1, a jump by 1 at 0.2: ``z(3/2) = 1/2 + (3/2 - τ)²/2 - (1.3 - τ)``, slope 1/2 at 1."""
    lag, jumps = leaf(1.0), ([0.2], torch.ones(1, 1, dtype=F64))
    found = nf.fdeint(lambda t, z, ago: -ago, torch.ones(1, dtype=F64), 1.5, 1.0, lags=lag, jumps=jumps, steps=30,
                      method="trapezoid")  # fmt: skip
    torch.testing.assert_close(found, torch.full_like(found, 0.325), rtol=0, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), lag)[0], torch.tensor(0.5, dtype=F64), rtol=0, atol=0.03
    )


def test_structures_complex_numbers_and_events():
    z0 = {"x": torch.ones(1)}
    found = nf.fdeint(lambda t, z, ago: {"x": -ago["x"]}, z0, 2.0, 1.0, lags=1.0, steps=20, method="abm")
    assert abs(float(found["x"]) + 0.5) < 1e-3
    turned = nf.fdeint(lambda t, z, ago: -ago, 1j * torch.ones(1), 2.0, 1.0, lags=1.0, steps=20, method="abm")
    torch.testing.assert_close(turned.imag, found["x"])
    event = nf.solve(lambda t, z, ago: -ago, torch.ones(1), 2.0, 1.0, lags=0.9, steps=20, event=lambda t, z: z[0])
    assert abs(float(event.event_times) - 1) < 0.05
    assert event.stats.stepper == "single"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lags": 0.05}, "steps=20 or more"),
        ({"lags": -1.0}, "positive"),
        ({"lags": lambda t, z: t}, "depends on the state"),
        ({"lags": []}, "several"),
        ({"lags": ["1"]}, "real number"),
        ({"horizon": 2.0}, "no horizon="),
        ({"adjoint": "paper"}, "adjoint='exact'"),
        ({"storage": "checkpoint", "history": "exponentials"}, "storage='device'"),
        ({"stepper": "picard"}, "stepper='single'"),
        ({"steps": None, "horizon": 2.0}, "no horizon="),
        ({"resume": True}, "resume="),
    ],
    ids=itertools.count(),
)
def test_what_is_no_delay_is_refused(options, match):
    with pytest.raises((nf.InputError, nf.InputTypeError), match=match):
        nf.solve(lambda t, z, ago: -ago, torch.ones(1), 1.0, 0.5, **{"lags": 0.5, "steps": 10, **options})


def test_a_state_that_is_not_finite_is_refused():
    with pytest.raises(nf.NonFiniteError, match="shorter steps"):
        nf.fdeint(lambda t, z, ago: z**3 * ago, 100 * torch.ones(1), 1.0, 0.5, lags=0.5, steps=40)
