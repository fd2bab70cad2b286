"""States that jump at known times: doses and kicks."""

import itertools

import pytest
import torch

import neuralfde as nf
from neuralfde.special import mittag_leffler
from tests.stubs import F64, relative

TIMES, BETA, RATE = [0.7, 1.5], 0.6, 1.3
T = torch.tensor([0.0, 0.4, 0.7, 1.0, 1.5, 2.0], dtype=F64)


def values():
    return torch.tensor([[0.5], [-0.25]], dtype=F64, requires_grad=True)


def decay(t, z):
    return -RATE * z


def exact():
    """E_β(-λt^β), and as much for each jump from where it happened on."""
    found = mittag_leffler(-RATE * T**BETA, BETA)
    for at, by in zip(TIMES, (0.5, -0.25), strict=True):
        late = mittag_leffler(-RATE * (T - at).clamp(min=0) ** BETA, BETA)
        found = found + torch.where(at <= T, by * late, 0.0)
    return found[:, None]


def solve(method, jumps=None, **options):
    jumps = (TIMES, values()) if jumps is None else jumps
    return nf.fdeint(decay, torch.ones(1, dtype=F64), T, BETA, method=method, jumps=jumps, **options)


@pytest.mark.parametrize(("method", "order"), [("predictor", 1.0), ("predictor-implicit", 1.0), ("trapezoid", 1.6)])
def test_a_jump_costs_no_order(method, order):
    coarse, fine = ((solve(method, steps=n) - exact()).abs().max() for n in (100, 400))
    assert torch.log2(coarse / fine) / 2 > order - 0.15


@pytest.mark.parametrize("method", [None, nf.ABM(ahead=True)], ids=str)
def test_a_tolerance_holds_across_jumps(method):
    found = solve(method, rtol=1e-4)
    assert ((found - exact()).abs() / (1e-4 * (1 + exact().abs()))).max() < 2


@pytest.mark.parametrize("method", ["predictor", nf.ABM(ahead=True)], ids=str)
def test_values_have_exact_gradients(method):
    found = []
    for options in (
        {"history": "full", "adjoint": "direct"},
        {"history": nf.Exponentials(tol=1e-13)},
        {"history": nf.Exponentials(tol=1e-13), "storage": "checkpoint", "stepper": "single"},
    ):
        by, grid = values(), torch.linspace(0, 2, 31, dtype=F64)
        found.append(torch.autograd.grad(solve(method, (TIMES, by), grid=grid, **options).square().sum(), by)[0])
    assert relative(found[1], found[0]) < 1e-12
    assert relative(found[2], found[0]) < 1e-12


@pytest.mark.parametrize("method", ["predictor", "trapezoid", nf.ABM(ahead=True)], ids=str)
def test_times_have_exact_gradients(method):
    """Also where func depends on time, and with outputs next to a jump."""

    def loss(at):
        by, t = torch.tensor([[0.5], [-0.3]], dtype=F64), torch.tensor([0.0, 0.33, 0.701, 2.1, 3.0], dtype=F64)
        z0 = torch.ones(1, dtype=F64)
        found = nf.fdeint(lambda t, z: torch.cos(2 * t) - z * z, z0, t, 0.6, jumps=(at, by), method=method, steps=20)
        return (found * t[:, None]).sum()

    at, by = torch.tensor([0.7, 1.4], dtype=F64), 1e-6 * torch.eye(2, dtype=F64)
    (found,) = torch.autograd.grad(loss(at.requires_grad_()), at)
    with torch.no_grad():
        expected = torch.stack([loss(at + by[k]) - loss(at - by[k]) for k in range(2)]) / 2e-6
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", [{"steps": 30, "method": "trapezoid"}, {"rtol": 1e-3}], ids=["steps", "tolerance"])
def test_values_may_be_a_function_of_the_state_before(options):
    """Each jump leads back to 1: what it adds decays like the first state."""

    def solve(rate):
        z0 = {"x": torch.ones(1, dtype=F64)}
        jumps = (TIMES, lambda z: {"x": 1 - z["x"]})
        return nf.fdeint(lambda t, z, r: {"x": -r * z["x"]}, z0, T, BETA, args=(rate,), jumps=jumps, **options)["x"]

    def exact(rate):
        found, jumps = mittag_leffler(-rate * T**BETA, BETA), []
        for at in TIMES:
            steps = [(at - s, by) for s, by in jumps]
            before = mittag_leffler(-rate * at**BETA, BETA) + sum(
                by * mittag_leffler(-rate * s**BETA, BETA) for s, by in steps
            )
            jumps.append((at, 1 - before))
            late = mittag_leffler(-rate * (T - at).clamp(min=0) ** BETA, BETA)
            found = found + torch.where(at <= T, jumps[-1][1] * late, 0.0)
        return found[:, None]

    rate = torch.tensor(RATE, dtype=F64, requires_grad=True)
    torch.testing.assert_close(solve(rate), exact(rate), rtol=0, atol=5e-3)
    (found,) = torch.autograd.grad(solve(rate).sum(), rate)
    (expected,) = torch.autograd.grad(exact(rate).sum(), rate)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("constant", [False, True], ids=["newton", "direct"])
def test_the_short_step_before_a_jump_keeps_single_precision(constant):
    """A slope is not what rounding leaves of a state over a weight of 1e-12."""

    def solve(dtype):
        z0, by = torch.linspace(-0.9, 1, 6, dtype=dtype), torch.full((2, 6), 0.3, dtype=dtype)
        options = {"jumps": (TIMES, by), "method": "trapezoid", "steps": 24, "stepper": "single"}
        if constant:
            func, options["linear"] = torch.ones(6, dtype=dtype), -RATE * torch.eye(6, dtype=dtype)
        else:
            func = lambda t, z: 0.4 * torch.sin(0.7 * z) - RATE * z + 0.2 * torch.cos(2 * t)
        return nf.fdeint(func, z0, T, 0.9, **options)

    assert relative(solve(torch.float32).double(), solve(F64)) < 2e-6


def test_complex_states_jump():
    z0, by = torch.ones(1, dtype=torch.complex128), torch.tensor([[0.5j]], dtype=torch.complex128)
    options = {"steps": 400, "method": "trapezoid"}
    rate = torch.tensor(1j - 1, dtype=torch.complex128)
    expected = mittag_leffler(rate * 2**BETA, BETA) + 0.5j * mittag_leffler(rate, BETA)
    for jumps in (([1.0], by), ([1.0], lambda z: 0 * z + 0.5j)):
        found = nf.fdeint(lambda t, z: rate * z, z0, 2.0, BETA, jumps=jumps, **options)
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-4)


def test_structures_and_times_in_float32():
    t = torch.tensor([100.0, 100.7, 102.0])  # 100.7 is rounded below where the jump is
    z0 = {"x": torch.zeros(2), "y": torch.zeros(1)}
    by = {"x": torch.ones(1, 2), "y": torch.full((1, 1), 2.0)}
    found = nf.fdeint(lambda t, z: {"x": -z["x"], "y": 0 * z["y"]}, z0, t, 0.5, steps=20, jumps=([100.7], by))
    assert torch.equal(found["x"][:2], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert torch.equal(found["y"][:, 0], torch.tensor([0.0, 2.0, 2.0]))


@pytest.mark.parametrize(
    ("jumps", "options", "match"),
    [
        (([1.5, 0.7], values()), {}, "must increase"),
        (([0.0, 0.7], values()), {}, "after the initial time"),
        (([0.7, 3.0], values()), {}, "up to 2"),
        (([1e-13, 0.7], values()), {}, "after the initial time"),
        (([float("nan"), 0.7], values()), {}, "must increase"),
        (([0.7], values()), {}, "one for each time"),
        ((TIMES, values().float()), {}, "like z0"),
        ((TIMES, values() / 0), {}, "NaN or infinity"),
        (TIMES[0], {}, "a pair"),
        ((TIMES, values()), {"method": "gl"}, "short step before each jump"),
        ((TIMES, lambda z: z[None]), {}, "structure, shapes and dtype of z0"),
        ((TIMES, lambda z: 1.0), {}, "structure, shapes and dtype of z0"),
        (([0.7, 0.7], values()), {}, "the sum of both"),
        ((torch.tensor(TIMES, requires_grad=True), lambda z: z), {}, "times without gradient"),
        ((torch.tensor(TIMES, requires_grad=True), values()), {"history": "exponentials"}, "history='full'"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_jump_is_refused(jumps, options, match):
    with pytest.raises((nf.InputError, nf.InputTypeError), match=match):
        solve(**{"method": "abm", "jumps": jumps, "steps": 20, **options})


@pytest.mark.parametrize("values", [torch.ones(1, 2, dtype=F64), lambda z: -z])
def test_a_resumed_solve_takes_no_jumps(values):
    first = nf.solve(lambda t, z: -z, torch.ones(2, dtype=F64), 1.0, 0.6, steps=10, resume=True)
    with pytest.raises(nf.InputError, match="short step before each jump"):
        nf.solve(lambda t, z: -z, None, 2.0, 0.6, past=first.state, jumps=([1.5], values))


@pytest.mark.parametrize("method", ["predictor", "trapezoid", None])
@pytest.mark.parametrize("event", [nf.Event(lambda t, z: z[0] - 0.5, terminal=False), lambda t, z: t - 0.83])
def test_jumps_by_a_function_beside_an_event_are_taken_on_the_mesh_of_a_tolerance(method, event):
    z0, times = torch.tensor([1.0, 0.3], dtype=F64, requires_grad=True), torch.tensor([0.0, 0.5, 1.0], dtype=F64)
    given = {"jumps": ([0.31, 0.7], lambda z: -0.4 * z + 0.2), "event": event}

    def field(t, z):
        return torch.sin(3 * z) - z

    found = nf.solve(field, z0, times, 0.6, method=method, rtol=1e-2, **given)
    ended = found.grid[-1] < 1
    mesh = torch.cat([found.grid, times[-1:]]) if ended else found.grid
    again = nf.solve(field, z0, times, 0.6, method=method or "trapezoid", grid=mesh, **given)
    assert relative(found.ys, again.ys) < 1e-12
    assert relative(found.event_times, again.event_times) < 1e-12
    grads = [torch.autograd.grad(ys.square().sum(), z0)[0] for ys in (found.ys, again.ys)]
    assert relative(*grads) < 1e-11


@pytest.mark.parametrize("value", [torch.ones(1, 1, dtype=F64), lambda z: z + 1], ids=["value", "function"])
@pytest.mark.parametrize("steps", [{"steps": 30}, {}], ids=["given", "tolerance"])
@pytest.mark.parametrize(
    ("start", "end", "at"), [(1.7e9, 300.0, 150.0), (-1.7e9, 300.0, 150.0), (0.0, 1e7, 3600.0)], ids=str
)
def test_the_state_shortly_before_a_jump_is_that_before_it(start, end, at, value, steps):
    """Seconds of a calendar, and short times in a long horizon: rounding is that of the times which are given."""
    times = start + torch.tensor([0.0, at - 50, at - 0.1, at, at + 0.1, end], dtype=F64)
    z0 = torch.zeros(1, dtype=F64)
    found = nf.fdeint(lambda t, z: 0 * z, z0, times, 0.8, method="trapezoid", jumps=([start + at], value), **steps)
    assert found.flatten().tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "event", [None, lambda t, z: z[0] - 5, nf.Event(lambda t, z: z[0] - 1.2, reset=lambda z: z / 2)]
)
@pytest.mark.parametrize("value", [torch.ones(2, 1, dtype=F64), lambda z: 0 * z + 1], ids=["value", "function"])
@pytest.mark.parametrize("steps", [{"steps": 20}, {"rtol": 1e-4}], ids=["given", "tolerance"])
def test_a_solve_with_jumps_may_begin_late(steps, value, event):
    """Steps that end in jumps are shorter than what times so late tell apart."""

    def found(start):
        times, at = start + torch.tensor([0, 0.25, 0.5, 1.0], dtype=F64), [start + 0.3, start + 0.62]
        z0 = torch.ones(1, dtype=F64)
        return nf.fdeint(lambda t, z: -z, z0, times, 0.7, jumps=(at, value), event=event, **steps)

    assert (found(2.0**30) - found(0.0)).abs().max() < 2e-6


@pytest.mark.parametrize("options", [{"steps": 40}, {"rtol": 1e-3}, {"steps": 40, "event": lambda t, z: z.sum() - 0.3}])
def test_every_call_of_func_counts_where_jumps_depend_on_the_state(options):
    class Counted(torch.nn.Module):
        calls = 0

        def forward(self, t, z):
            self.calls += 1
            return -RATE * z

    counted = Counted()
    found = nf.solve(counted, torch.ones(1, dtype=F64), 2.0, BETA, jumps=(TIMES, lambda z: 0.5 * z), **options)
    assert found.stats.evaluations == counted.calls


def test_a_value_that_takes_other_arguments_than_the_state_is_told():
    with pytest.raises(nf.InputTypeError, match=r"value\(z\)"):
        nf.fdeint(decay, torch.ones(2), 1.0, BETA, jumps=([0.5], lambda t, z: z), steps=10, method="abm")
