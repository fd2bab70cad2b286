"""fit: estimates, Jacobians, intervals, and what it accepts."""

import dataclasses
import math
import warnings

import pytest
import torch
from torch import nn

import neuralfde
from neuralfde.fitting import (
    LBFGS,
    Adam,
    BoundWarning,
    IdentifiabilityWarning,
    LevenbergMarquardt,
    ResidualWarning,
    StepWarning,
    fit,
    fit_curve,
    profile_order,
)
from neuralfde.fitting.tangents import tangents

DOUBLE = torch.float64


def decay(t, z, rate, source):
    return source - rate * z


def relaxed(times, order=0.7, start=3.0, rate=1.2, source=0.5, steps=None):
    times = torch.as_tensor(times, dtype=DOUBLE)
    z0 = torch.tensor([[start]], dtype=DOUBLE) if isinstance(start, float) else start
    steps = (len(times) - 1) * 2 if steps is None else steps
    return neuralfde.fdeint(lambda t, z: decay(t, z, rate, source), z0, times, order, steps=steps, method="abm")


TIMES = torch.linspace(0, 4, 17, dtype=DOUBLE)
GUESS = {"rate": 0.5, "source": 0.1}


@pytest.mark.filterwarnings("ignore::neuralfde.fitting.StepWarning")  # the data are made on the grid of the fit
@pytest.mark.filterwarnings("ignore:stopped short")  # Adam, after a hundred epochs
@pytest.mark.parametrize("optimiser", ["lm", "lbfgs", "auto", Adam(epochs=100, lr=0.2), LBFGS(iterations=30)])
def test_recovers_parameters_from_clean_data(optimiser):
    found = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, optimiser=optimiser, steps=32)
    near = 0.03 if isinstance(optimiser, Adam) else 1e-4
    assert found.estimates["rate"] == pytest.approx(1.2, rel=near)
    assert found.estimates["source"] == pytest.approx(0.5, rel=2 * near)
    assert found.identifiable is None
    assert found.loss < 1e-4


def test_learns_the_order_with_the_parameters():
    found = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.9, learn_order=True, steps=32)
    assert found.order == pytest.approx(0.7, abs=1e-5)
    assert found.estimates["order"] == found.order
    assert found.converged
    assert len(found.history) < 20
    assert found.identifiable


@pytest.mark.parametrize("seed", range(3))
def test_a_first_step_that_is_too_long_does_not_end_at_a_bound(seed):
    """From guesses 0.6 and 1.5 times the truth the first step overshoots; it must not stay at order 1."""
    times = torch.linspace(0, 1, 41, dtype=DOUBLE)
    truth = relaxed(times, steps=320)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    for rate in (0.72, 1.8):
        guess = {"rate": rate, "source": 0.5 * rate / 1.2}
        found = fit(
            decay, times, truth + 0.01 * truth.mean() * noise, params=guess, order=0.9, learn_order=True,
            initial=[3.0], steps=80,
        )  # fmt: skip
        assert found.converged
        assert abs(found.order - 0.7) < 0.05
        assert found.intervals["order"][0] < 0.7 < found.intervals["order"][1]


def test_says_by_how_much_the_step_moves_the_estimates():
    times = torch.linspace(0, 20, 41, dtype=DOUBLE)
    truth = relaxed(times, steps=2560)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    data = truth + 0.001 * noise
    common = {"params": GUESS, "order": 0.9, "learn_order": True, "initial": [3.0]}
    with pytest.warns(StepWarning, match="too long"):
        coarse = fit(decay, times, data, steps=80, **common)
    with pytest.warns(StepWarning):
        finer = fit(decay, times, data, steps=160, **common)
    moved = finer.order - coarse.order
    assert coarse.step_shift["order"] == pytest.approx(moved, rel=0.3)
    graded = fit(decay, times, data, steps=200, grading=2.0, **common)  # no warning
    assert abs(graded.order - 0.7) < abs(finer.order - 0.7) / 2


def test_module_parameters_are_the_unknowns_and_receive_the_estimates():
    class Decay(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(0.5))
            self.frozen = nn.Parameter(torch.tensor(0.5), requires_grad=False)
            self.register_buffer("scale", torch.tensor(1.0))

        def forward(self, t, z):
            return self.frozen - self.rate * z * self.scale

    model = Decay()
    found = fit(model, TIMES, relaxed(TIMES), order=0.7, steps=32)
    assert list(found.estimates) == ["rate"]
    assert model.rate.dtype == torch.float32
    assert float(model.rate.detach()) == pytest.approx(1.2, rel=1e-5)
    assert float(model.frozen.detach()) == 0.5


def test_irregular_times_of_several_trajectories_with_missing_values():
    first, second = torch.tensor([0, 0.3, 0.5, 1.7, 2.9, 4.0]), torch.tensor([0, 0.11, 0.9, 1.3, 3.1, 3.9])
    union = torch.unique(torch.cat([first, second]).double())
    full = relaxed(union, start=torch.tensor([[3.0], [0.2]], dtype=DOUBLE), steps=80)
    pick = [full[torch.searchsorted(union, t.double()), k] for k, t in enumerate((first, second))]
    pick[0][2] = math.nan
    found = fit(decay, [first, second], pick, params=GUESS, order=0.7, steps=80)
    assert found.estimates["rate"] == pytest.approx(1.2, rel=1e-6)
    assert int((~found.observed.isnan()).sum()) == 11
    assert bool(found.residuals[3].isnan().all())


def rotation(t, z, w):
    return torch.stack([w * z[..., 1], -w * z[..., 0]], -1)


@pytest.mark.parametrize("observe", [0, [0], lambda z: z[..., :1]])
def test_partly_observed_state(observe):
    z0 = torch.tensor([[1.0, 0.5]], dtype=DOUBLE)
    with torch.no_grad():
        full = neuralfde.fdeint(lambda t, z: rotation(t, z, 1.3), z0, TIMES, 0.9, steps=32, method="abm")
    found = fit(rotation, TIMES, full[..., :1], params={"w": 1.0}, order=0.9, initial=z0, observe=observe, steps=32)
    assert found.estimates["w"] == pytest.approx(1.3, rel=1e-6)
    assert found.predict(TIMES, states=True).shape == (17, 1, 2)


def test_learns_the_initial_state():
    found = fit(
        decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, initial=[2.0], learn_initial=True, steps=32
    )  # fmt: skip
    assert found.estimates["initial[0,0]"] == pytest.approx(3.0, rel=1e-6)


@pytest.mark.filterwarnings("ignore::neuralfde.AccuracyWarning")  # one iteration ends where the steps are unstable
def test_jacobian_is_the_derivative_of_the_residuals():
    start = torch.tensor([[3.0], [0.2]], dtype=DOUBLE)
    found = fit(
        decay, TIMES, relaxed(TIMES, start=start), params=GUESS, order=0.6, learn_order=True, initial=start,
        learn_initial=True, steps=32, optimiser=LevenbergMarquardt(iterations=1), intervals=None,
    )  # fmt: skip
    residual, matrix = found.problem.jacobian(found.flat)
    flat = found.flat.clone().requires_grad_()
    found.problem.residuals(flat).square().sum().backward()
    torch.testing.assert_close(2 * matrix.T @ residual, flat.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["predictor", "trapezoid", "l1"])
def test_jacobian_holds_for_every_kind_of_scheme(method):
    found = fit(
        decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, steps=32, method=method,
        optimiser=LevenbergMarquardt(iterations=1), intervals=None,
    )  # fmt: skip
    residual, matrix = found.problem.jacobian(found.flat)
    flat = found.flat.clone().requires_grad_()
    found.problem.residuals(flat).square().sum().backward()
    torch.testing.assert_close(2 * matrix.T @ residual, flat.grad, rtol=1e-6, atol=1e-8)


def test_bounds_are_kept():
    with pytest.warns(BoundWarning, match="rate ended at a bound"), pytest.warns(ResidualWarning):
        kept = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, steps=32, bounds={"rate": (0.0, 1.0)})
    assert 0.9 < kept.estimates["rate"] <= 1.0
    assert kept.diagnostics.at_bound == ("rate",)
    free = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, steps=32, bounds={"rate": (0.0, None)})
    assert free.estimates["rate"] == pytest.approx(1.2, rel=1e-6)
    below = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, steps=32, bounds={"rate": (None, 2.0)})
    assert below.estimates["rate"] == pytest.approx(1.2, rel=1e-6)


@pytest.mark.filterwarnings("ignore::neuralfde.fitting.StepWarning")  # the data are made on the grid of the fit
def test_weights_and_noise_levels():
    values = relaxed(TIMES)
    spoiled = values.clone()
    spoiled[8:] += 1.0
    weights = torch.ones(17, 1)
    weights[8:] = 1e-12
    found = fit(decay, TIMES, spoiled, params=GUESS, order=0.7, steps=32, weights=weights)
    assert found.estimates["rate"] == pytest.approx(1.2, rel=1e-4)
    narrow = fit(decay, TIMES, values, params=GUESS, order=0.7, steps=32, noise=0.01).intervals["rate"]
    wide = fit(decay, TIMES, values, params=GUESS, order=0.7, steps=32, noise=0.1).intervals["rate"]
    assert (wide[1] - wide[0]) / (narrow[1] - narrow[0]) == pytest.approx(10, rel=1e-3)


def noisy(seed, level=0.02):
    generator = torch.Generator().manual_seed(seed)
    values = relaxed(TIMES)
    return values + level * torch.randn(values.shape, generator=generator, dtype=DOUBLE)


@pytest.mark.parametrize("optimiser", ["lm", "lbfgs"])
def test_a_fit_does_not_see_the_unit_of_its_loss(optimiser):
    given = {"params": GUESS, "order": 0.7, "steps": 32, "intervals": None, "optimiser": optimiser}
    one, small, large = (fit(decay, TIMES, noisy(5), weights=w, **given).estimates for w in (1.0, 1e-10, 1e10))
    assert small == pytest.approx(one, rel=1e-5)
    assert large == pytest.approx(one, rel=1e-5)


def test_gauss_newton_and_bootstrap_intervals_agree():
    common = {"params": GUESS, "order": 0.7, "initial": [3.0], "steps": 32}
    smooth = fit(decay, TIMES, noisy(5), **common)
    drawn = fit(decay, TIMES, noisy(5), intervals="bootstrap", resamples=12, seed=3, **common)
    for name in GUESS:
        a, b = smooth.intervals[name], drawn.intervals[name]
        assert a[0] < smooth.estimates[name] < a[1]
        assert 0.3 < (b[1] - b[0]) / (a[1] - a[0]) < 1.6
    assert smooth.covariance.shape == (2, 2)
    assert smooth.noise == pytest.approx(0.02, rel=0.5)


def test_warns_where_the_order_is_not_identifiable():
    times = torch.tensor([0.0, 2.0, 3.0, 4.0])
    values = torch.tensor([3.0, 0.95, 0.83, 0.75]) + torch.tensor([0.0, 0.05, -0.05, 0.05])
    told = pytest.warns(IdentifiabilityWarning, match="do not determine rate, source")  # three values, three unknowns
    with told, pytest.warns(IdentifiabilityWarning, match="not identifiable"):
        found = fit(decay, times, values, params=GUESS, order=0.7, learn_order=True, steps=16)
    assert found.identifiable is False
    assert "NOT identifiable" in found.summary()
    low, high = found.profile.interval
    assert high - low > 0.25


def test_profile_agrees_with_the_gauss_newton_interval():
    common = {"params": GUESS, "initial": [3.0], "steps": 32, "order": 0.8, "learn_order": True}
    found = fit(decay, TIMES, noisy(2, 0.003), check_order=False, **common)
    low, high = found.intervals["order"]
    near = [found.order + s * (high - low) / 2 for s in (-1.5, -1.0, -0.5, 0.5, 1.0, 1.5)]
    curve = profile_order(found, near)
    assert curve.identifiable
    assert curve.interval == pytest.approx((low, high), abs=0.3 * (high - low))
    with pytest.raises(neuralfde.InputError, match="learn_order"):
        profile_order(fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, steps=32))


@pytest.mark.parametrize("unit", [1e-20, 1e-15, 1e20])
def test_the_unit_of_the_data_does_not_matter(unit):
    """In femtoamperes given in ampere, the first guess came back as the least squares."""
    common = {"order": 0.7, "steps": 16, "initial": [3.0 * unit], "optimiser": "lm", "intervals": None}
    plain = fit(decay, TIMES, noisy(3), params=GUESS, **{**common, "initial": [3.0]})

    def scaled(t, z, **named):
        return unit * decay(t, z / unit, **named)

    found = fit(scaled, TIMES, unit * noisy(3), params=GUESS, **common)
    assert found.converged
    assert found.estimates == pytest.approx(plain.estimates, rel=1e-6)
    x = torch.linspace(0, 3, 12, dtype=DOUBLE)
    curve = fit_curve(lambda x, a: unit * torch.exp(-a * x), x, unit * torch.exp(-0.7 * x), {"a": 3.0})
    assert curve.estimates["a"] == pytest.approx(0.7, rel=1e-6)
    for beyond in (1e-200, 1e200):
        with pytest.raises(neuralfde.InputError, match="another unit"):
            fit(decay, TIMES, beyond * noisy(3), params=GUESS, **{**common, "initial": [1.0]})


def test_trajectories_that_depend_on_each_other():
    """Jacobians know of it whenever it happens; initial states that are learned for each of them are refused."""
    times = torch.linspace(0, 3, 13, dtype=DOUBLE)
    start = torch.tensor([[1.0], [2.0], [4.0]], dtype=DOUBLE)

    def late(t, z, rate):
        return -rate * z + 0.5 * (t > 1) * z.roll(1, -2)

    values = neuralfde.fdeint(lambda t, z: late(t, z, 0.8), start, times, 0.7, steps=120, method="abm")
    common = {"params": {"rate": 0.5}, "order": 0.7, "steps": 120}
    found = fit(late, times, values, **common)
    assert found.estimates["rate"] == pytest.approx(0.8, rel=1e-6)
    matrix = found.problem.jacobian(found.flat)[1][:, 0]
    ahead, behind = (found.problem.residuals(found.flat + h)[found.problem.data.seen] for h in (1e-5, -1e-5))
    torch.testing.assert_close(matrix, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)
    for given in ({"learn_initial": True}, {"optimiser": Adam(epochs=2, batch_size=2)}):
        with pytest.raises(neuralfde.InputError, match="depend on each other"):
            fit(late, times, values, **given, **common)
    fit(late, times, values, optimiser=Adam(epochs=2, batch_size=3), intervals=None, check_order=False, **common)


def test_a_stage_that_cannot_be_solved_ends_a_trial_and_not_the_fit():
    """The profile goes to orders at which the solution grows beyond all bounds."""

    def hunt(t, z, a, b, c, d):
        x, y = z[..., 0], z[..., 1]
        return torch.stack([x * (a - c * y), -y * (b - d * x)], -1)

    times, start = torch.linspace(0, 3, 16, dtype=DOUBLE), torch.tensor([[1.0, 0.5], [2.0, 1.0]], dtype=DOUBLE)
    values = neuralfde.fdeint(lambda t, z: hunt(t, z, 0.9, 0.5, 1.1, 0.3), start, times, 0.8, steps=150, method="abm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit(
            hunt, times, values, params={"a": 1.0, "b": 0.5, "c": 1.0, "d": 0.3}, order=0.85, learn_order=True,
            learn_initial=True, method="trapezoid", intervals=None,
        )  # fmt: skip
    assert found.order == pytest.approx(0.8, abs=1e-3)
    assert found.profile is not None


def test_early_stopping_on_held_out_values_and_by_callback():
    seen = []
    common = {"params": GUESS, "order": 0.7, "initial": [3.0], "steps": 16, "intervals": None}
    stopped = fit(
        decay, TIMES, noisy(3, 0.2), validation=0.3, patience=3, optimiser=Adam(epochs=200, lr=0.2),
        callback=seen.append, **common,
    )  # fmt: skip
    assert stopped.message == "stopped early"
    assert len(stopped.history) < 200
    assert seen[0].validation is not None
    asked = fit(decay, TIMES, noisy(3), callback=lambda p: p.iteration >= 2, optimiser="adam", **common)
    assert len(asked.history) == 2
    for several in ({"stages": (0.5, 1.0)}, {"starts": 3}):  # it ends the fit, and not a stage or a start of it
        seen = []
        asked = fit(decay, TIMES, noisy(3), callback=lambda p: seen.append(p) or True, **several, **common)
        assert len(seen) == 1
        assert (asked.message, asked.converged) == ("stopped early", False)


def test_progress_is_complete_once_a_fit_has_converged():
    seen = []
    found = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.7, steps=16, intervals=None, callback=seen.append)
    assert found.converged
    assert seen[0].total == LevenbergMarquardt().iterations > seen[-1].total == seen[-1].iteration


@pytest.mark.parametrize("optimiser", [Adam(epochs=8, lr=0.05, batch_size=1), LBFGS(8), LevenbergMarquardt(8, 1e-14)])
def test_a_resumed_fit_ends_where_an_uninterrupted_one_does(optimiser):
    start = torch.tensor([[3.0], [0.2]], dtype=DOUBLE)
    common = {"params": GUESS, "order": 0.7, "steps": 16, "optimiser": optimiser, "intervals": None}
    values = relaxed(TIMES, start=start)
    states = []
    whole = fit(decay, TIMES, values, callback=lambda p: states.append(_copy(p.state)) and None, **common)
    again = fit(decay, TIMES, values, resume=states[2], **common)
    assert again.estimates == pytest.approx(whole.estimates, rel=1e-9)
    assert len(again.history) == len(whole.history)


def _copy(state):
    import copy

    return copy.deepcopy(state)


def test_stages_rescue_a_poor_first_guess():
    z0 = torch.tensor([[4.0, 2.0]], dtype=DOUBLE)
    times = torch.linspace(0, 12, 25, dtype=DOUBLE)[:19]
    with torch.no_grad():
        full = neuralfde.fdeint(lambda t, z: rotation(t, z, 2.0), z0, times, 0.98, steps=54, method="abm")
    common = {"params": {"w": 1.0}, "order": 0.98, "steps": 54, "intervals": None}
    assert abs(fit(rotation, times, full, **common).estimates["w"] - 2.0) > 0.1
    assert fit(rotation, times, full, stages=(0.1, 0.3, 1.0), **common).estimates["w"] == pytest.approx(2.0, rel=1e-6)


def test_predicts_beyond_the_data_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    found = fit(decay, TIMES, relaxed(TIMES), params=GUESS, order=0.8, learn_order=True, check_order=True, steps=32)
    later = found.predict(torch.tensor([5.0, 6.0]))
    torch.testing.assert_close(later, relaxed([0, 5, 6], steps=48)[1:], rtol=1e-2, atol=1e-2)
    found.plot(tmp_path / "fit.png", labels=["z"])
    assert (tmp_path / "fit.png").stat().st_size > 5000
    for labels in ([], ["z", "w"], "z"):
        with pytest.raises(neuralfde.InputError, match="1 names are needed"):
            found.plot(labels=labels)
    exact = dataclasses.replace(found, history=[0.0, 0.0])  # a model that meets its data
    exact.plot(tmp_path / "exact.png")
    text = found.summary()
    assert "rate" in text
    assert "identifiable" in text


@pytest.mark.parametrize(
    "given",
    [
        {"steps": 32, "learn_initial": True},
        {"steps": 11, "method": "abm"},  # outputs between nodes, which its continuous output does not meet
        {"steps": 11, "method": "predictor", "robust": 0.5},
        {"steps": 11, "method": "trapezoid"},  # which is limited here, since they are long for the fast variable
        {"steps": 5, "method": "bdf2", "learn_initial": True},  # implicit, with starting weights
    ],
    ids=str,
)
def test_the_jacobian_is_that_of_the_discrete_solution_whatever_the_units(given):
    start, unit = torch.tensor([[3.0, 1.0], [0.2, 0.0]], dtype=DOUBLE), 1e-9

    def model(t, z, rates):
        x, y = z.unbind(-1)
        return torch.stack([rates[0] * torch.cos(t) - 1e9 * rates[1] * x * y, x - y], -1)

    found = fit(
        model, TIMES, relaxed(TIMES, start=start), params={"rates": torch.tensor([0.5, unit])},
        order=0.6, learn_order=True, initial=start, optimiser=LevenbergMarquardt(iterations=1), intervals=None,
        check_order=False, **given,
    )  # fmt: skip
    problem = found.problem
    for flat in (found.flat, torch.cat([found.flat[:-1], torch.tensor([1 - 1e-9], dtype=DOUBLE)])):  # and at a bound
        assert tangents(problem, problem.unknowns.split(flat)) is not None
        residual, matrix = problem.jacobian(flat)
        want = torch.func.jacfwd(problem.residuals)(flat)[problem.data.seen]
        torch.testing.assert_close(residual, problem.residuals(flat)[problem.data.seen])
        assert float(((matrix - want).norm(dim=0) / want.norm(dim=0)).max()) < 1e-9


def branches(t, z, rate):
    return -rate * z if t > 0.5 else -2 * rate * z  # nothing for vmap


def coupled(t, z, rate):
    return -rate * (z + z.mean(0))  # trajectories that depend on each other


@pytest.mark.filterwarnings("ignore::neuralfde.AccuracyWarning")
@pytest.mark.parametrize(
    ("model", "given"),
    [
        (lambda t, z, rate: -rate * z, {"grading": 2.0}),
        (lambda t, z, rate: -rate * z, {"history": neuralfde.Window(8)}),
        (branches, {}),
        (coupled, {}),
        (lambda t, z, rate: -1e3 * rate * (z - torch.cos(t)), {"method": "trapezoid", "steps": 11, "grading": 2.0}),
    ],
    ids=["graded", "window", "branches", "coupled", "stiff"],
)
def test_the_jacobian_where_forward_mode_along_the_solution_does_not_do(model, given):
    start = torch.tensor([[3.0], [0.2]], dtype=DOUBLE)
    found = fit(
        model, TIMES, relaxed(TIMES, start=start), params={"rate": 1.0}, order=0.6, learn_order=True,
        optimiser=LevenbergMarquardt(iterations=1), check_order=False, initial=start, intervals=None,
        **{"steps": 16, **given},
    )  # fmt: skip
    problem = found.problem
    assert tangents(problem, problem.unknowns.split(found.flat)) is None
    want = torch.func.jacfwd(problem.residuals)(found.flat)[problem.data.seen]
    torch.testing.assert_close(problem.jacobian(found.flat)[1], want, rtol=1e-7, atol=1e-7)
