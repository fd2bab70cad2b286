"""Steps that a tolerance chooses."""

import pytest
import torch

import neuralfde as nf
from neuralfde.problems import problem
from neuralfde.schemes.iteration import Iteration
from neuralfde.special import mittag_leffler
from tests.stubs import F64, Net, relative, robertson

ONE = torch.ones(1, dtype=F64)


def decay(t, z):
    return -z


def test_few_steps_over_decades():
    """The figure of the design: D^½ y = -y up to T=1000."""
    found = nf.solve(decay, ONE, 1000.0, 0.5, rtol=1e-5)
    grid, stats = found.grid, found.stats
    ys = nf.fdeint(decay, ONE, grid, 0.5, grid=grid, method="trapezoid")[:, 0]
    assert (ys - torch.special.erfcx(grid.sqrt())).abs().max() < 1e-5
    assert stats.accepted == stats.steps < 320
    assert stats.rejected < 10
    assert stats.smallest_step < 1e-5 < 10 < stats.largest_step
    assert stats.evaluations > stats.steps
    torch.testing.assert_close(found.ys[-1], ys[-1:])


@pytest.mark.parametrize(("order", "rtol"), [(0.15, 1e-3), (0.5, 1e-4), (0.9, 1e-5), (1.0, 1e-5)])
def test_errors_are_about_as_large_as_the_tolerance(order, rtol):
    t = torch.tensor([0.0, 0.01, 0.3, 2.0, 10.0], dtype=F64)
    ys = nf.fdeint(decay, ONE, t, order, rtol=rtol)[:, 0]
    error = ((ys - mittag_leffler(-(t**order), order)).abs() / (rtol * (1 + ys.abs()))).max()
    assert 1 / 30 < error < 3


@pytest.mark.parametrize("method", [nf.ABM(), nf.ABM(ahead=True), nf.Predictor(), nf.Predictor(implicit=True)], ids=str)
def test_other_methods(method):
    found = nf.solve(decay, ONE, 5.0, 0.7, rtol=1e-2, method=method)
    assert (found.ys[-1] - mittag_leffler(torch.tensor(-(5.0**0.7), dtype=F64), 0.7)).abs() < 1e-2
    assert found.stats.method == method


def test_explicit_steps_stay_where_they_are_stable():
    found = nf.solve(decay, ONE, 1000.0, 0.5, rtol=1e-5, method=nf.ABM(ahead=True))
    assert found.stats.accepted < 800
    assert found.stats.rejected < 10
    assert (found.ys[-1] - torch.special.erfcx(torch.tensor(1000.0, dtype=F64).sqrt())).abs() < 1e-6


def test_a_solve_whose_error_grows_is_made_again_with_shorter_steps(monkeypatch):
    """An epidemic begins like an exponential: errors that steps make early are larger at the end."""
    p = problem("sir")
    found = nf.solve(p.func, p.z0, p.t, p.order, rtol=1e-4)
    assert 1 / 30 < (found.ys[-1] - p.solution()).abs().max() / 1e-4 < 2
    monkeypatch.setattr("neuralfde.solver.ADAPTIVE_ATTEMPTS", 1)
    with pytest.raises(nf.ConvergenceError, match=r"still about \d.* times what rtol=0.0001, atol=0.0001 allow"):
        nf.solve(p.func, p.z0, p.t, p.order, rtol=1e-4)


@pytest.mark.parametrize(
    "method", [nf.Trapezoid(solver=nf.Newton(tol=1e-14)), nf.ABM(ahead=True)], ids=["implicit", "explicit"]
)
@pytest.mark.parametrize("memory", [{}, {"history": "exponentials", "storage": "checkpoint"}], ids=["auto", "fading"])
def test_gradients_are_those_of_the_accepted_mesh(method, memory):
    torch.manual_seed(0)
    func, z0 = Net(), torch.randn(2, 3, dtype=F64, requires_grad=True)
    order, horizon = torch.tensor([0.4, 0.7, 1.0], dtype=F64, requires_grad=True), torch.ones((), dtype=F64) * 1.3
    t, u = torch.tensor([0.2, 0.9, 2.0], dtype=F64), torch.ones(3, dtype=F64, requires_grad=True)
    given = {"args": (u,), "horizon": horizon.requires_grad_(), "method": method}
    found = nf.solve(func, z0, t, order, rtol=1e-3, **given, **memory)
    history = memory.get("history", "full")
    again = nf.solve(func, z0, t, order, grid=found.grid, adjoint="direct", history=history, **given)
    inputs = [z0, order, u, horizon, *func.parameters()]
    for a, b in zip(*[torch.autograd.grad(s.ys.square().sum(), inputs) for s in (found, again)], strict=True):
        assert relative(a, b) < 1e-12
    assert relative(found.ys, again.ys) < 1e-12


def test_a_structure_in_float32_and_a_block():
    def func(t, z):
        return {"x": -z["x"], "y": z["x"].sum() - z["y"]}

    z0 = {"x": torch.ones(2), "y": torch.zeros(3, 2)}
    order = {"x": torch.tensor(0.5), "y": 0.8}
    found = nf.fdeint(func, z0, 3.0, order)
    exact = nf.fdeint(func, z0, 3.0, order, steps=200, method="trapezoid")
    assert all((found[k] - exact[k]).abs().max() < 1e-3 for k in z0)
    block = nf.FDEBlock(lambda t, z: -z, order=0.5, learn_order=True, t=2.0)
    block(torch.ones(2)).sum().backward()
    assert block.raw_order.grad.abs() > 0


@pytest.mark.parametrize("method", ["trapezoid", nf.ABM(ahead=True)], ids=str)
def test_a_state_that_is_one_number(method):
    one = torch.tensor(1.0, dtype=F64, requires_grad=True)
    found = nf.fdeint(decay, one, 2.0, 0.5, method=method)
    alike = nf.fdeint(decay, one[None], 2.0, 0.5, method=method)
    assert found.shape == ()
    assert found == alike[0]
    assert torch.autograd.grad(found, one) == torch.autograd.grad(alike, one)


@pytest.mark.parametrize(
    ("func", "options", "words"),
    [
        (
            lambda t, z: z**3,
            {"rtol": 1.0, "method": "abm"},
            ["reached t=0.", "gives up with a step of", "element 1 of the state"],
        ),
        (decay, {"max_steps": 10}, ["gives up with 10 steps", "max_steps="]),
        (decay, {"max_steps": 9}, ["gives up with 8 steps"]),
        (
            decay,
            {"rtol": 1e-10, "max_steps": 10_000},
            ["about 2e+04 steps", "meet about rtol=6e-10, atol=6e-10"],
        ),
        (
            lambda t, z: torch.where(t < 1, -z, z / 0),
            {"method": "abm", "rtol": 0.1},
            ["reached t=1 ", "NaN or infinite"],
        ),
        (lambda t, z: torch.sqrt(1 - t) - z, {"rtol": 0.1}, ["reached t=1 ", "NaN or infinite"]),
    ],
    ids=["blow-up", "too many", "an odd number", "foreseen", "not finite", "not finite, implicit"],
)
def test_a_tolerance_that_cannot_be_met_names_time_and_culprit(func, options, words):
    with pytest.raises(nf.ConvergenceError) as caught:
        nf.fdeint(func, torch.tensor([0.5, 1.0], dtype=F64), 10.0, 0.5, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 4, "rtol": 1e-3}, "choose the steps"),
        ({"rtol": -1.0}, "positive"),
        ({"max_steps": 1}, "whole number of at least 2"),
        ({"rtol": 1e-16}, "rounding of torch.float64"),
        ({"z0": torch.ones(1), "rtol": 1e-6}, "rounding of torch.float32"),
        ({"grading": 2.0}, "for steps that are given"),
        ({"order": 1.5, "velocity": ONE}, "order above 1"),
        ({"order": nf.Tempered(0.5, 0.1)}, "Caputo's kernel"),
        ({"method": "gl"}, "no integration rule"),
        ({"func": torch.nn.Dropout()}, "random numbers"),
    ],
    ids=str,
)
def test_what_a_tolerance_cannot_choose_is_refused(options, match):
    drop = options.pop("func", None)
    func = decay if drop is None else (lambda t, z: drop(z))
    with pytest.raises(nf.InputError, match=match):
        nf.fdeint(func, options.pop("z0", ONE), 1.0, options.pop("order", 0.5), **options)


def test_a_tolerance_that_asks_for_nothing_still_takes_a_few_steps():
    assert nf.solve(decay, ONE, 1.0, 0.5, rtol=1e300).stats.steps == 20


def test_what_needs_the_steps_beforehand_is_refused():
    for call, options in ((nf.plan, {}), (nf.solve, {"resume": True}), (nf.solve, {"estimate_error": True})):
        with pytest.raises(nf.InputError, match="step"):
            call(decay, ONE, 1.0, 0.5, **options)


@pytest.mark.parametrize("scale", [1e-150, 1e-40, 1e100])
def test_steps_do_not_depend_on_the_scale_of_the_state(scale):
    def solved(scale):
        jumps = ([0.3], torch.full((1, 1), 0.4 * scale, dtype=F64))
        start = torch.full((1,), scale, dtype=F64)
        return nf.solve(lambda t, z: -z, start, 2.0, 0.7, rtol=1e-3, atol=1e-3 * scale, jumps=jumps)

    found, expected = solved(scale), solved(1.0)
    torch.testing.assert_close(found.grid, expected.grid)
    torch.testing.assert_close(found.ys / scale, expected.ys)


@pytest.mark.parametrize("kind", ["args", "order", "jumps", "lags"])
def test_forward_mode_over_forward_mode_is_that_on_the_mesh(kind):
    """The march needs values alone; PyTorch's zero tangents cannot be written to."""
    z0 = torch.tensor([0.5, -0.3], dtype=F64)

    def func(t, z, *given):
        return -given[-1] * z + (-0.3 * given[0] if kind == "lags" else z**2)

    def solution(x, **steps):
        order = torch.sigmoid(x) if kind == "order" else 0.6
        more = {"jumps": {"jumps": ([0.3], x * z0[None])}, "lags": {"lags": 0.21}}.get(kind, {})
        return nf.solve(func, z0, 1.0, order, args=(x,), **more, **steps)

    def second(**steps):
        twice = torch.func.jacfwd(torch.func.jacfwd(lambda x: solution(x, **steps).ys.square().sum()))
        return twice(torch.tensor(0.8, dtype=F64))

    grid = solution(torch.tensor(0.8, dtype=F64)).grid
    assert relative(second(), second(grid=grid, method="trapezoid")) < 1e-12


@pytest.mark.parametrize("rows", [False, True], ids=["times", "times of samples"])
@pytest.mark.parametrize("rate", [1e2, 1e4, 1e6])
def test_states_between_steps_meet_the_tolerance_where_the_equation_is_stiff(rate, rows):
    """An implicit stage damps the error of a stiff slope at the end of a step; in between nothing does."""

    def pulled(t, z):
        return -rate * (z - torch.cos(t))

    times, z0 = torch.linspace(0, 3, 31, dtype=F64), torch.tensor([[1.0], [0.5]], dtype=F64)
    asked = torch.stack([times, times.clamp(max=2)]) if rows else times
    exact = nf.fdeint(pulled, z0, asked, 0.6, steps=4000, grading=3.0, method="trapezoid")
    found = nf.solve(pulled, z0, asked, 0.6, rtol=1e-4)
    assert (found.ys - exact).abs().max() < 2e-4
    assert found.stats.steps < 250


@pytest.mark.parametrize("order", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("rate", [1e3, 1e6])
def test_a_stiff_part_does_not_hide_the_errors_of_a_slow_one(order, rate):
    """The slow element follows the fast one, which starts far from where it settles."""

    def driven(t, z):
        x, y = z.unbind(-1)
        return torch.stack([-rate * (x - torch.cos(t)), x - y], -1)

    z0 = torch.tensor([0.0, 0.5], dtype=F64)
    found = nf.solve(driven, z0, 3.0, order, rtol=1e-4)
    exact = nf.fdeint(driven, z0, 3.0, order, grid=finer(found.grid), method="trapezoid")
    assert (found.ys[-1] - exact).abs().max() < 1e-4 * (1 + exact.abs().max())
    assert found.stats.steps < 500


def finer(grid, parts=6):
    """A mesh with each step divided into equal parts."""
    inner = grid[:-1, None] + grid.diff()[:, None] * torch.arange(parts, dtype=F64) / parts
    return torch.cat([inner.flatten(), grid[-1:]])


def test_small_elements_of_a_large_state_have_stages_of_their_own_accuracy():
    """Robertson's reaction: the second substance has 1e-5 of the first, and its slope 1e3 times its error."""
    z0 = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    assert nf.solve(robertson, z0, 1.0, 1.0, rtol=1e-4, atol=1e-8).stats.steps < 200


def test_output_times_cost_no_steps_where_the_equation_is_not_stiff():
    few, many = (nf.solve(decay, ONE, torch.linspace(0, 1, n, dtype=F64), 0.6, rtol=1e-4).stats for n in (2, 1001))
    assert many.steps < 1.5 * few.steps


def test_a_stage_of_the_march_takes_two_updates_if_the_equation_is_linear(monkeypatch):
    """The Jacobian is exact then: one update finds the state, the next one shows it, and once the Jacobian is tried."""
    seen = {"iterate": 0, "solved": 0}

    def counted(name):
        own = getattr(Iteration, name)

        def call(*given, **options):
            seen[name] += 1
            return own(*given, **options)

        monkeypatch.setattr(Iteration, name, call)

    counted("iterate"), counted("solved")
    nf.fdeint(lambda t, z: -100 * z, torch.ones(3, dtype=F64), 1.0, 0.6)
    assert seen["iterate"] > 20
    assert seen["solved"] <= 2 * seen["iterate"] + 1


def test_a_tolerance_that_larger_ones_foresee_is_refused_by_its_own_name():
    with pytest.raises(
        nf.ConvergenceError, match=r"rtol=1e-11, atol=1e-11 cannot be met, since larger .* to rtol=1e-05"
    ):
        nf.solve(lambda t, z: torch.cos(1e3 * t) * z, ONE, 1e3, 0.5, rtol=1e-11, max_steps=10_000)


def test_a_slope_that_is_not_finite_at_the_start_is_told_at_once():
    """Otherwise ever shorter steps are tried, for many seconds, down to 1e-280."""
    calls = []

    def singular(t, z):
        calls.append(t)
        return t**-0.3 - z

    with pytest.raises(nf.NonFiniteError, match="at the initial time"):
        nf.fdeint(singular, ONE, 1.0, 0.6)
    assert len(calls) < 10


def test_a_lag_shorter_than_any_step_that_is_allowed_is_refused_at_once():
    with pytest.raises(nf.ConvergenceError, match="longer than the lag"):
        nf.fdeint(lambda t, z, lagged: -lagged, ONE, 1.0, 0.5, lags=1e-5, rtol=1e-3)


def test_advice_is_not_the_method_that_was_taken():
    for method, named in (("abm", True), ("trapezoid", False)):
        with pytest.raises(nf.ConvergenceError, match="gives up") as told:
            nf.fdeint(lambda t, z: z**2, ONE, 3.0, 0.6, method=method, rtol=1e-2)
        assert ("trapezoid" in str(told.value)) == named
