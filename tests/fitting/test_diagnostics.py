"""What a fit says about itself: correlated residuals, bounds, unknowns that the data do not determine."""

import math
import warnings

import pytest
import torch

from neuralfde import InputError, NonFiniteError, fdeint
from neuralfde.fitting import (
    BoundWarning,
    FitWarning,
    IdentifiabilityWarning,
    LevenbergMarquardt,
    NoiseWarning,
    ResidualWarning,
    StepWarning,
    fit,
    fit_curve,
    profile_order,
)
from neuralfde.fitting.diagnostics import _SEEN, autocorrelation
from neuralfde.special import mittag_leffler

DOUBLE = torch.float64


def persistent(count, shape, rho, seed=0):
    """Noise of variance 1 whose neighbours have the correlation ``rho``."""
    generator = torch.Generator().manual_seed(seed)
    fresh = torch.randn(count, *shape, generator=generator, dtype=DOUBLE)
    rows = [fresh[0]]
    for k in range(1, count):
        rows.append(rho * rows[-1] + (1 - rho**2) ** 0.5 * fresh[k])
    return torch.stack(rows)


@pytest.mark.parametrize("count", [8, 30, 200])
def test_independent_residuals_are_seldom_called_correlated(count):
    """At most the one in 200 that the threshold allows, and NaN takes nothing away from that."""
    noise = persistent(count, (4000,), 0.0)
    noise[count // 2] = math.nan
    alarms = 0
    for column in noise.T[:, :, None, None]:
        r, pairs = autocorrelation(column)
        alarms += r * pairs**0.5 > _SEEN
    assert alarms <= 30


def test_autocorrelation_is_that_of_the_noise():
    for rho in (-0.5, 0.3, 0.8):
        r, pairs = autocorrelation(persistent(4000, (2, 2), rho))
        assert pairs == 4 * 3999
        assert r == pytest.approx(rho, abs=0.03)
    assert autocorrelation(torch.zeros(5, 1, 1)) == (0.0, 4)


def decay(t, z, rate, source):
    return source - rate * z


TIMES = torch.linspace(0, 4, 41, dtype=DOUBLE)
GUESS = {"params": {"rate": 1.0, "source": 0.3}, "order": 0.7, "steps": 40, "initial": [3.0]}


def measured(noise):
    z0 = torch.tensor([[3.0]], dtype=DOUBLE)
    return fdeint(lambda t, z: decay(t, z, 1.2, 0.5), z0, TIMES, 0.7, steps=40, method="abm") + noise


def test_fewer_values_than_unknowns_determine_nothing_however_well_their_noise_is_known():
    with pytest.warns(IdentifiabilityWarning, match="rate, source"):
        found = fit(decay, TIMES[[0, 20]], measured(0.0)[[0, 20]], noise=0.1, **GUESS)
    assert found.intervals == {"rate": (-math.inf, math.inf), "source": (-math.inf, math.inf)}


def test_residuals_of_other_sizes_than_assumed_are_told():
    """One variable with a hundred times the noise of the other: 80 % of its intervals, not 95 %, hold the truth."""

    def both(t, z, rate, other):
        return torch.stack([-rate * z[..., 0], -other * z[..., 1]], -1)

    noise = torch.randn(41, 1, 2, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    noise[0] = 0
    clean = fdeint(lambda t, z: -0.8 * z, torch.full((1, 2), 3.0, dtype=DOUBLE), TIMES, 0.7, steps=40, method="abm")
    given = {"params": {"rate": 1.0, "other": 1.0}, "order": 0.7, "steps": 40}
    sizes = torch.tensor([0.3, 0.03], dtype=DOUBLE)
    with pytest.warns(NoiseWarning, match="those of another"):
        found = fit(both, TIMES, clean + sizes * noise, **given)
    assert 5 < found.diagnostics.uneven < 20
    assert "of one size" in found.summary()
    with pytest.warns(NoiseWarning, match="times the noise= given"):
        found = fit(both, TIMES, clean + sizes * noise, noise=sizes / 4, **given)
    assert found.diagnostics.excess == pytest.approx(4, rel=0.2)
    assert "times the noise= given" in str(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        for told in ({"noise": sizes}, {"weights": sizes**-2}):
            assert not fit(both, TIMES, clean + sizes * noise, **told, **given).diagnostics.lines()
        assert not fit(both, TIMES, clean + 0.1 * noise, **given).diagnostics.lines()
        fit(both, TIMES, clean, noise=0.1, **given)


def test_correlated_residuals_are_told():
    noise = 0.05 * persistent(41, (1, 1), 0.8, seed=1)
    with pytest.warns(ResidualWarning, match="too narrow"):
        found = fit(decay, TIMES, measured(noise), **GUESS)
    assert found.diagnostics.correlated
    assert found.diagnostics.widening > 1.5
    assert "correlated" in found.summary()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        clean = fit(decay, TIMES, measured(0.05 * persistent(41, (1, 1), 0.0, seed=2)), **GUESS)
        fit(decay, TIMES, measured(noise), intervals=None, **GUESS)  # no intervals, nothing too narrow
    assert not clean.diagnostics.lines()


def test_unknowns_of_which_only_a_combination_shows_are_named():
    def twice(t, z, a, b, source):
        return source - a * b * z

    noise = 0.05 * persistent(41, (1, 1), 0.0, seed=2)
    start = {**GUESS, "params": {"a": 1.0, "b": 1.0, "source": 0.3}}
    with pytest.warns(IdentifiabilityWarning, match="do not determine a, b:"):
        found = fit(twice, TIMES, measured(noise), **start)
    assert found.diagnostics.undetermined == ("a", "b")
    assert math.isinf(found.intervals["a"][1])
    assert math.isfinite(found.intervals["source"][1])


def test_data_that_never_change_do_not_determine_the_order():
    """At a rate of nearly 0 the residuals are exactly 0 for every order; that is rounding, not certainty."""
    times = torch.linspace(0, 6, 25, dtype=DOUBLE)
    with pytest.warns(IdentifiabilityWarning, match="the order is not identifiable"):
        found = fit(lambda t, z, rate: -rate * z, times, torch.ones(25), params={"rate": 1.0}, learn_order=True)
    assert found.identifiable is False
    assert found.intervals["order"] == (0.02, 1.0)
    assert "over 24 values" in found.summary()  # the first one is taken as known


def test_a_search_that_the_profile_goes_past_has_not_converged():
    """Half of the data first drive the order to 1, where its scale is so flat that L-BFGS sees no way back."""
    times = [0.0, 0.13, 0.2, 0.5, 0.71, 0.9, 1.0, 1.33, 1.4, 1.77, 2.0, 2.1, 2.4]
    values = [0.986, 0.829, 0.739, 0.680, 0.625, 0.558, 0.505, 0.439, 0.444, 0.288, 0.231, 0.269, 0.191]
    observed = torch.tensor(values, dtype=DOUBLE)[:, None]

    def slope(t, z, rate, gain):
        return -rate * z + gain * torch.cos(t)

    def fitted(**options):
        guess = {"rate": 0.8, "gain": 0.2}
        return fit(slope, times, observed, order=0.75, learn_order=True, steps=12, params=guess, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = fitted(optimiser="lm")
    with pytest.warns(FitWarning, match="stopped short"):
        found = fitted(optimiser="lbfgs", stages=(0.5, 1.0), starts=1, method="predictor")
    assert best.converged
    assert not found.converged
    assert found.loss > 2 * best.loss
    assert "optimiser='lm'" in found.message


def contest(t, z, a, b, c, d):
    x, y = z[..., 0], z[..., 1]
    return torch.stack([x * (a - c * y), -y * (b - d * x)], -1)


@pytest.mark.parametrize(("guess", "found_it"), [((0.3, 0.3, 0.3, 0.3), True), ((0.01, 0.01, 3.0, 3.0), False)])
def test_a_line_search_through_blown_up_solutions_ends_at_a_minimum_or_says_that_it_does_not(guess, found_it):
    """From the second guess the solver is unstable, and no step of L-BFGS is short enough."""
    times, z0 = torch.linspace(0, 12, 49, dtype=DOUBLE), torch.tensor([1.0, 1.0], dtype=DOUBLE)
    truth = dict(zip("abcd", (1.0, 1.0, 0.5, 0.5), strict=True))
    data = fdeint(lambda t, z: contest(t, z, **truth), z0, times, 0.9, steps=96, method="abm")
    data = data + 0.05 * persistent(49, (2,), 0.0)
    data[0] = z0
    options = {"order": 0.7, "learn_order": True, "steps": 96, "bounds": dict.fromkeys("abcd", (0.0, None))}
    options |= {"optimiser": "lbfgs", "check_order": False, "params": dict(zip("abcd", guess, strict=True))}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", FitWarning)
        found = fit(contest, times, data, **options)
    assert found.converged == found_it
    assert (found.loss < 0.01) == found_it
    assert ("no step improves" in found.summary()) != found_it
    assert not (found_it and told)


@pytest.mark.filterwarnings("ignore::neuralfde.fitting.ResidualWarning")
def test_a_search_that_is_cut_off_says_what_its_intervals_are_worth():
    values = measured(0.02 * persistent(41, (1, 1), 0.0, seed=3))
    far = GUESS | {"params": {"rate": 9.0, "source": -9.0}}
    with pytest.warns(FitWarning, match="short of a minimum"):
        found = fit(decay, TIMES, values, optimiser=LevenbergMarquardt(iterations=1), **far)
    assert not found.converged
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        assert fit(decay, TIMES, values, **GUESS).converged
        # whoever stops it knows
        assert not fit(decay, TIMES, values, callback=lambda p: p.iteration == 1, **GUESS).converged


def test_a_narrow_bent_valley_takes_a_few_dozen_iterations():
    """At a small order the rate, the level and the order make up for each other: damped steps along straight lines
    took 246."""
    times = torch.linspace(0, 10, 60, dtype=DOUBLE)
    values = 2 + 3 * mittag_leffler(-0.7 * times**0.2, 0.2) + 0.02 * persistent(60, (), 0.0)
    values[0] = 5.0
    given = {"params": {"rate": 1.0, "source": 1.0}, "order": 0.8, "learn_order": True, "check_order": False}
    found = fit(decay, times, values, **given)
    assert found.converged
    assert len(found.history) < 30
    finer = fit(decay, times, values, optimiser=LevenbergMarquardt(iterations=400, tolerance=1e-13), **given)
    assert found.loss == pytest.approx(finer.loss, rel=1e-6)


def test_a_step_that_leaves_the_domain_of_the_model_is_taken_without_its_bend():
    """The logarithm of a number below 0 is none, and LAPACK takes no NaN."""
    x = torch.linspace(0, 1, 9, dtype=DOUBLE)
    found = fit_curve(lambda x, a: a.log() + x, x, x - 17 + 0.01 * torch.cos(20 * x), {"a": 1.0})
    assert found.converged
    assert math.log(found.estimates["a"]) == pytest.approx(-17, abs=0.02)


@pytest.mark.parametrize("optimiser", ["lm", "lbfgs"])
def test_a_first_guess_with_an_infinite_loss_is_told(optimiser):
    """The solver is unstable there: its states are finite, and the sum of their squares is not."""
    times = torch.linspace(0, 10, 40, dtype=DOUBLE)
    values = 2 + 3 * mittag_leffler(-0.7 * times**0.6, 0.6)
    given = {"params": {"rate": 100.0, "source": 100.0}, "order": 0.8, "learn_order": True, "optimiser": optimiser}
    with pytest.raises(NonFiniteError, match="closer first guess"):
        fit(decay, times, values, **given)


def test_residuals_far_below_the_noise_given_are_not_called_correlated():
    values = measured(torch.zeros(41, 1, 1, dtype=DOUBLE))
    values = values + 1e-6 * torch.sin(TIMES)[:, None, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        assert not fit(decay, TIMES, values, noise=0.01, **GUESS).diagnostics.correlated


def test_half_a_step_at_which_the_solution_blows_up_is_told():
    def rough(t, z, rate, source):
        return decay(t, z, rate, source) + torch.where(torch.remainder(t * 10, 1) > 0.4, torch.inf, 0.0)

    with pytest.warns(StepWarning, match="with half of it the solution of the estimates blows up"):
        found = fit(rough, TIMES, measured(0.02 * persistent(41, (1, 1), 0.0, seed=3)), **GUESS)
    assert found.converged
    assert found.step_shift["rate"] == math.inf


@pytest.mark.filterwarnings("ignore::neuralfde.fitting.StepWarning")  # the data are made on the grid of the fit
def test_few_data_make_the_range_of_the_order_as_wide_as_its_interval():
    """Both are exact for a model that is linear in its unknowns, as this one nearly is over the range."""
    times = TIMES[::8]
    values = measured(0.0)[::8, 0, 0] + 1e-4 * persistent(6, (), 0.0, seed=2)
    options = {**GUESS, "learn_order": True, "check_order": False, "steps": 40}
    found = fit(decay, times, values, **options)
    near = [found.order + k * (found.intervals["order"][1] - found.order) / 2 for k in range(-3, 4)]
    low, high = profile_order(found, near, LevenbergMarquardt()).interval
    assert (low, high) == pytest.approx(found.intervals["order"], abs=0.02 * (high - low))


def test_a_curve_takes_no_intervals_from_a_single_resample():
    x = torch.linspace(0, 1, 9, dtype=DOUBLE)
    with pytest.raises(InputError, match="resamples=1 gives no interval"):
        fit_curve(lambda x, a: a * x, x, x, {"a": 0.5}, resamples=1)
    with pytest.raises(InputError, match="Leave out points with a missing value"):
        fit_curve(lambda x, a: a * x, x, x.log().sqrt(), {"a": 0.5})


def test_a_curve_in_closed_form_says_the_same_about_itself():
    x = torch.linspace(0.1, 3, 60, dtype=DOUBLE)
    bend, noise = 0.1 * (3 * x).sin(), 0.01 * persistent(60, (), 0.0)
    with pytest.warns(ResidualWarning, match="A term may be missing in the model; look"):
        found = fit_curve(
            lambda x, a, b: a + b * x, x.flip(0), (1 + 2 * x + bend + noise).flip(0), {"a": 0.5, "b": 1.0}
        )
    assert found.diagnostics.correlated
    with pytest.warns(ResidualWarning), pytest.warns(BoundWarning, match="^b ended"):
        found = fit_curve(lambda x, a, b: a + b * x, x, 1 - 2 * x + noise, {"a": 0.5, "b": 1.0}, {"b": (0.0, None)})
    assert found.diagnostics.at_bound == ("b",)
    with pytest.warns(IdentifiabilityWarning, match="measure more.$"):
        found = fit_curve(lambda x, a, b: a + b + 0 * x, x, 1 + noise, {"a": 0.5, "b": 1.0})
    assert found.diagnostics.undetermined == ("a", "b")
