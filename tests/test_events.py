"""Events: solves that end, or jump, where a function of the state crosses zero."""

import itertools
import math

import pytest
import torch

import neuralfde as nf
from neuralfde.special import mittag_leffler
from tests.stubs import F64

T = torch.tensor([0.0, 0.3, 1.0, 2.0, 3.0], dtype=F64)
MESH = 3 * torch.linspace(0, 1, 61, dtype=F64) ** 2


def decay(t, z, rate):
    return -rate * z


def below(t, z, rate):
    return z[:, 0] - 0.4


def charge(t, z, drive):
    return drive * (1 + 0.2 * torch.sin(3 * t)) - z


FIRES = nf.Event(lambda t, z, drive: z[0] - 0.6, direction=1, reset=lambda z: 0.25 * z)


def differences(loss, *inputs, by=1e-6):
    """Central differences of a loss in each number of each input."""
    found = []
    for k, x in enumerate(inputs):
        for n in range(x.numel()):
            ends = []
            for sign in (1, -1):
                moved = [y.detach().clone() for y in inputs]
                moved[k].view(-1)[n] += sign * by
                ends.append(float(loss(*moved)))
            found.append((ends[0] - ends[1]) / (2 * by))
    return torch.tensor(found, dtype=F64)


def gradients(loss, *inputs):
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(*inputs), inputs)])


def leaf(*values):
    return torch.tensor(values, dtype=F64, requires_grad=True)


def ended(rate, z0, **options):
    """Three samples, of which two end."""
    return nf.solve(decay, z0[:, None], T, 0.6, args=(rate[:, None],), event=below, **options)


def test_each_sample_ends_where_the_exact_solution_does():
    rate, z0 = leaf(1.0, 2.0, 0.1), leaf(1.0, 1.5, 1.0)
    found = ended(rate, z0, rtol=1e-4)
    times = found.event_times.detach()
    exact = z0 * mittag_leffler(-rate * torch.where(torch.isfinite(times), times, 3.0) ** 0.6, 0.6)
    assert torch.isinf(times).tolist() == [False, False, True]
    torch.testing.assert_close(found.ys[-1, :, 0], exact, rtol=0, atol=2e-4)
    torch.testing.assert_close(found.ys[-1, :2, 0], torch.full((2,), 0.4, dtype=F64), rtol=0, atol=1e-12)
    assert torch.equal(found.ys[-2, :2], found.ys[-1, :2])  # frozen
    torch.testing.assert_close(found.ts, T)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 30},
        {"steps": 30, "method": "bdf2", "history": "fft"},
        {"steps": 30, "history": "exponentials", "storage": "checkpoint", "stepper": "single"},
        {"grid": MESH, "method": "abm"},
    ],
    ids=["predictor", "bdf2", "exponentials", "mesh"],
)
def test_times_and_frozen_states_have_exact_gradients(options):
    def loss(rate, z0):
        found = ended(rate, z0, **options)
        return found.event_times[:2].square().sum() + found.ys.square().sum()

    given = leaf(1.0, 2.0, 0.1), leaf(1.0, 1.5, 1.0)
    torch.testing.assert_close(gradients(loss, *given), differences(loss, *given), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reset", [False, True])
def test_samples_with_a_threshold_of_their_own_are_those_of_single_solves(reset):
    """The event and the reset see tensors with one entry for each sample, as arguments and in a closure."""
    z0, rate = torch.tensor([[1.0], [0.9], [1.2]], dtype=F64), torch.tensor([[1.0], [1.3], [0.8]], dtype=F64)
    level, after = torch.tensor([0.5, 0.3, 0.6], dtype=F64), torch.tensor([[0.7], [0.5], [0.9]], dtype=F64)

    def run(z0, rate, level, after):
        inputs = [x.clone().requires_grad_() for x in (rate, level)]
        event = nf.Event(
            lambda t, z, rate, level: z[:, 0] - level, direction=-1, reset=(lambda z: 0 * z + after) if reset else None
        )
        found = nf.solve(lambda t, z, rate, level: -rate * z, z0, 2.0, 0.7, steps=80, args=inputs, event=event)
        times = torch.where(found.event_times.isfinite(), found.event_times, 0.0)
        return found.ys.detach(), found.event_times, torch.autograd.grad(found.ys.sum() + times.sum(), inputs)

    ys, times, grads = run(z0, rate, level, after)
    for k in range(3):
        own = slice(k, k + 1)
        alone, happened, theirs = run(z0[own], rate[own], level[own], after[own])
        if not reset:  # a reset adds points to the grid of all samples
            torch.testing.assert_close(ys[:, own], alone, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(times[own], happened, rtol=1e-10, atol=1e-10)
            for grad, their in zip(grads, theirs, strict=True):
                torch.testing.assert_close(grad[own], their, rtol=1e-8, atol=1e-8)
        else:
            torch.testing.assert_close(ys[:, own], alone, rtol=2e-3, atol=2e-3)
            torch.testing.assert_close(times[0, own], happened[0], rtol=2e-3, atol=2e-3)


def test_the_time_has_second_derivatives():
    def time(rate):
        return nf.solve(decay, torch.ones(1, dtype=F64), 3.0, 0.6, args=(rate,), event=lambda t, z, r: z[0] - 0.4,
                        steps=20).event_times  # fmt: skip

    rate = leaf(1.0)
    (first,) = torch.autograd.grad(time(rate), rate, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), rate)
    ends = [torch.autograd.grad(time(x), x)[0] for x in (leaf(1 + 1e-5), leaf(1 - 1e-5))]
    torch.testing.assert_close(second, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-6)


def fired(drive, z0, **options):
    return nf.solve(charge, z0, T, 0.7, args=(drive,), event=FIRES, **options)


@pytest.mark.parametrize("options", [{"steps": 40}, {"grid": MESH, "method": "trapezoid"}], ids=["steps", "mesh"])
def test_a_reset_is_a_jump_whose_time_has_a_gradient(options):
    def loss(drive, z0):
        found = fired(drive, z0, **options)
        assert len(found.event_times) > 3
        return found.event_times.square().sum() + (found.ys * T[:, None]).sum()

    given = leaf(1.5), leaf(0.1)
    torch.testing.assert_close(gradients(loss, *given), differences(loss, *given), rtol=2e-5, atol=2e-5)


def test_resets_to_a_tolerance_are_those_of_short_steps():
    given = {"args": (1.5,), "event": FIRES}
    short = nf.solve(charge, torch.zeros(1), 1.0, 0.7, steps=200, method="abm", **given)
    found = nf.solve(charge, torch.zeros(1), 1.0, 0.7, rtol=1e-3, **given)
    assert len(short.event_times) == 2
    torch.testing.assert_close(found.event_times, short.event_times, rtol=0, atol=3e-3)


EACH = nf.Event(lambda t, z, d: z[:, 0] - 0.6, direction=1, reset=lambda z: 0.25 * z)


def test_every_sample_is_reset_by_itself():
    drive = torch.tensor([[1.5], [2.0]], dtype=F64)
    both = nf.solve(charge, torch.zeros(2, 1, dtype=F64), 3.0, 0.7, args=(drive,), event=EACH, steps=100)
    for k in range(2):
        one = nf.solve(charge, torch.zeros(1, 1, dtype=F64), 3.0, 0.7, args=(drive[k],), event=EACH, steps=100)
        count = int(torch.isfinite(both.event_times[:, k]).sum())
        assert count == len(one.event_times)
        torch.testing.assert_close(both.event_times[:count, k], one.event_times[:, 0], rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    "options",
    [{"steps": 20, "method": "abm"}, {"grid": 2 * torch.linspace(0, 1, 21, dtype=F64) ** 2, "method": "trapezoid"}],
    ids=["steps", "mesh"],
)
def test_resets_of_single_samples_have_exact_gradients(options):
    """Three samples: reset often, once, never."""

    def loss(drive, z0):
        found = nf.solve(charge, z0[:, None], T[:4], 0.7, args=(drive[:, None],), event=EACH, **options)
        happened = torch.isfinite(found.event_times)
        assert [int(x) > 0 for x in happened.sum(0)] == [True, True, False]
        return found.event_times[happened].square().sum() + (found.ys[..., 0] * T[:4, None]).sum()

    given = leaf(1.3, 1.0, 0.3), leaf(0.1, 0.0, 0.2)
    torch.testing.assert_close(gradients(loss, *given), differences(loss, *given), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{"steps": 40}, {"rtol": 1e-3}], ids=str)
def test_times_are_those_asked_for_also_beyond_the_end(options):
    t = torch.tensor([0.0, 0.1, 2.0, 7.0], dtype=F64)
    for asked, ts in ((t, t), (7.0, t[-1:])):
        found = nf.solve(
            lambda t, z: -z, torch.ones(1, dtype=F64), asked, 0.6, event=lambda t, z: z[0] - 0.5, **options
        )
        torch.testing.assert_close(found.ts, ts, rtol=1e-14, atol=0.0)
        assert found.grid[-1] < 1


def test_times_that_are_only_noted():
    turns = nf.Event(lambda t, z: z["x"][0], direction=-1, terminal=False)
    z0 = {"x": torch.ones(1, dtype=F64), "y": torch.zeros(1, dtype=F64)}
    found = nf.solve(
        lambda t, z: {"x": z["y"], "y": -z["x"]}, z0, 10.0, 1.0, steps=400, method="trapezoid", event=turns
    )
    torch.testing.assert_close(found.event_times, torch.pi * torch.tensor([0.5, 2.5], dtype=F64), rtol=1e-3, atol=0)
    plain = nf.fdeint(lambda t, z: {"x": z["y"], "y": -z["x"]}, z0, 10.0, 1.0, steps=400, method="trapezoid")
    torch.testing.assert_close(found.ys["x"][0], plain["x"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rtol", "level"), [(1e-1, 0.659), (1e-2, 0.7088), (1e-2, 0.5236), (1e-3, 0.601)])
def test_an_event_that_comes_later_than_in_the_march_is_found(rtol, level):
    """The march ends with the step in which it finds the event; that of the solve may be behind it."""
    z0, rates = torch.tensor([0.8, 0.2], dtype=F64), torch.tensor([0.9, 0.4], dtype=F64)
    event = lambda t, z: t + 0.2 * z.mean() - level
    func = lambda t, z: torch.cos(2 * t) - rates * z
    found = nf.solve(func, z0, 1.0, 0.9, rtol=rtol, method="predictor", event=event)
    assert abs(event(found.event_times, found.ys)) < 1e-9


def test_a_solve_that_ends_need_not_be_possible_beyond():
    """It explodes at about 1.1; the event is before."""
    for options in ({"steps": 400}, {"rtol": 1e-4}):
        found = nf.solve(lambda t, z: z**2, torch.ones(1), 100.0, 1.0, event=lambda t, z: z[0] - 2, **options)
        assert abs(float(found.event_times) - 0.5) < 0.2
        assert found.stats.steps < 200


def test_an_event_before_behind_and_at_a_jump():
    one, jumps = torch.ones(1, dtype=F64), ([0.5], 0.5 * torch.ones(1, 1, dtype=F64))
    given = {"jumps": jumps, "steps": 60, "method": "abm"}
    found = nf.solve(lambda t, z: -z, one, 3.0, 0.9, event=nf.Event(lambda t, z: z[0] - 0.45 + (t < 0.6)), **given)
    late = torch.stack([found.event_times, found.event_times - 0.5]) ** 0.9
    assert abs(float(mittag_leffler(-late, 0.9) @ torch.tensor([1, 0.5], dtype=F64)) - 0.45) < 1e-3
    first = nf.solve(lambda t, z: -z, one, 3.0, 0.9, event=lambda t, z: z[0] - 0.6, **given)
    assert float(first.event_times) < 0.5 == first.grid[-1]  # in the step before it
    at = torch.tensor([0.5], dtype=F64, requires_grad=True)
    given = {**given, "jumps": (at, jumps[1])}
    across = nf.solve(lambda t, z: 0 * z, one, 3.0, 0.9, event=lambda t, z: z[0] - 1.25, **given)
    across.event_times.backward()
    assert (across.event_times.item(), across.ys.item(), at.grad.item()) == (0.5, 1.5, 1)


def test_jumps_by_a_function_know_what_events_have_done():
    """Two samples, both halved: one that is reset before and after, one that never is."""

    def loss(drive, event=EACH, **options):
        found = nf.solve(charge, torch.zeros(2, 1, dtype=F64), T[:3], 0.7, args=(drive[:, None],), event=event,
                         jumps=([0.6], lambda z: -0.5 * z), **{"steps": 12, "method": "abm", **options})  # fmt: skip
        happened = torch.isfinite(found.event_times)
        counts.append(happened.reshape(-1, 2).sum(0).tolist())
        return found.event_times[happened].square().sum() + (found.ys[..., 0] * T[:3, None]).sum()

    counts, drive = [], leaf(2.0, 0.6)
    torch.testing.assert_close(gradients(loss, drive), differences(loss, drive), rtol=1e-6, atol=1e-6)
    close = loss(drive, rtol=1e-3, steps=None, method=None)
    torch.testing.assert_close(loss(drive, steps=96), close, rtol=0, atol=1e-2)
    loss(drive, event=nf.Event(EACH.fn, direction=1))  # the first sample ends before its jump
    assert counts == [[3, 0]] * 7 + [[1, 0]]


def test_complex_states():
    z0 = torch.ones(1, dtype=torch.complex128)
    found = nf.solve(lambda t, z: 1j * z, z0, 4.0, 1.0, steps=400, method="trapezoid", event=lambda t, z: z.real[0])
    assert abs(float(found.event_times) - torch.pi / 2) < 1e-4


@pytest.mark.parametrize(
    ("event", "options", "match"),
    [
        (lambda t, z: z, {}, "one for each sample"),
        (lambda t, z: 1.0, {}, "return a tensor"),
        (lambda t, z: (z.sum() - 3).log(), {}, "NaN"),
        (lambda t, z: z[0, 0] - 0.5, {"horizon": 2.0}, "horizon"),
        (nf.Event(lambda t, z: z[0, 0] - 0.5, reset=lambda z: 2 * z), {}, "happens at once again"),
        (nf.Event(lambda t, z: z[0, 0] - 0.5, reset=lambda z: z[0]), {}, "reset must return"),
        (nf.Event(lambda t, z: z[0, 0] - 0.5, reset=lambda z: 0.0), {}, "reset must return"),
        (nf.Event(lambda t, z: z[0, 0] - 0.5, reset=lambda z: (z,)), {}, "reset must return"),
        (nf.Event(lambda t, z: z[0, 0] - 0.5, reset=lambda z: z.double()), {}, "reset must return"),
        (nf.Event(lambda t, z: z[0, 0] - 0.5, reset=lambda z: z / 0), {}, "finite"),
        ("end", {}, "callable"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_event_is_refused(event, options, match, monkeypatch):
    monkeypatch.setattr("neuralfde.course.events.EVENT_ROUNDS", 3)
    with pytest.raises((nf.InputError, nf.InputTypeError, nf.ConvergenceError), match=match):
        nf.solve(lambda t, z: -z - 0.3, torch.ones(2, 1), 2.0, 0.8, event=event, steps=40, **options)


def test_what_cannot_go_with_an_event_is_refused():
    with pytest.raises(nf.InputError, match="direction"):
        nf.Event(lambda t, z: z, direction=2)
    with pytest.raises(nf.InputError, match="works with event="):
        nf.solve(decay, torch.ones(1, 1), 1.0, 0.5, args=(1.0,), event=below, steps=10, resume=True)
    own = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.2, 0.7]])
    with pytest.raises(nf.InputError, match=r"t.unique\(\)"):
        nf.solve(decay, torch.ones(2, 1), own, 0.5, args=(1.0,), event=below, steps=10)
    with pytest.raises(nf.UnsupportedError, match="transforms"):
        torch.func.grad(lambda x: nf.fdeint(decay, x, 1.0, 0.5, args=(1.0,), event=below, steps=10).sum())(
            torch.ones(1, 1)
        )


@pytest.mark.parametrize("kind", ["ends", "noted", "reset"])
@pytest.mark.parametrize("by", ["value", "function"])
@pytest.mark.parametrize("steps", [{"steps": 10}, {"steps": 23}, {"rtol": 1e-4}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_a_jump_leads_across_zero_wherever_grid_points_are(dtype, steps, by, kind):
    """At a grid point, next to one by the rounding of its time, and with a grid point just before it."""
    more = {"ends": {}, "noted": {"terminal": False}, "reset": {"reset": lambda z: 0.5 * z}}[kind]
    for at in (0.1, 0.3, 0.7):
        value = torch.ones(1, 1, dtype=F64) if by == "value" else lambda z: 0 * z + 1
        found = nf.solve(
            lambda t, z: -z, torch.ones(1, dtype=F64), 1.0, 0.8, jumps=(torch.tensor([at], dtype=dtype), value),
            event=nf.Event(lambda t, z: z.sum() - 1.2, **more), **steps,
        )  # fmt: skip
        assert abs(float(found.event_times.reshape(-1)[0]) - at) < 1e-7


def falls_to_zero(height, order, **steps):
    """When D^β z = -1 from this height is zero, its exact value, and the derivative of both by the height."""
    begin, exact = (
        torch.tensor([height], dtype=F64, requires_grad=True),
        (height * math.gamma(order + 1)) ** (1 / order),
    )
    found = nf.solve(lambda t, z: 0 * z - 1, begin, 1.0, order, event=lambda t, z: z.sum(), **steps).event_times
    (slope,) = torch.autograd.grad(found, begin)
    return float(found.detach()), exact, float(slope), exact / order / height


@pytest.mark.parametrize(("height", "order"), [(0.1, 0.3), (0.1, 0.6), (0.01, 0.6), (0.01, 0.9), (0.001, 0.9)])
@pytest.mark.parametrize("steps", [{"steps": 10}, {"steps": 100, "method": "trapezoid"}, {"rtol": 1e-6}], ids=str)
def test_an_event_soon_after_the_start_is_not_before_it(steps, height, order):
    """A solution begins like a power there, and a polynomial through a whole step was zero before the start."""
    found, exact, slope, steep = falls_to_zero(height, order, **steps)
    assert abs(found / exact - 1) < 1e-2
    assert abs(slope / steep - 1) < 5e-2


def test_an_event_too_soon_for_the_steps_is_refused():
    with pytest.raises(nf.ConvergenceError, match=r"too soon for steps of this length.*grading"):
        falls_to_zero(1e-4, 0.3, steps=10)
    found, exact, *_ = falls_to_zero(1e-4, 0.3, rtol=1e-6)
    assert abs(found / exact - 1) < 1e-2


@pytest.mark.parametrize("reset", [None, lambda z: z + 0.5])
def test_autocast_is_for_the_functions_of_the_user(reset):
    """The time of an event and the state at it are not rounded to bfloat16."""
    rate = torch.tensor(1.1, requires_grad=True)

    def found(autocast):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            event = nf.Event(lambda t, z, rate: z[:, 0] - 0.4, reset=reset)
            end = nf.solve(decay, torch.tensor([[1.0], [0.7]]), T.float(), 0.7, steps=30, event=event, args=(rate,))
        times = end.event_times[end.event_times.isfinite()]
        return [end.ys, times, *torch.autograd.grad(end.ys.sum() + times.sum(), rate)]

    for low, full in zip(found(True), found(False), strict=True):
        assert (low - full).abs().max() < 1e-5
