"""What a fit says about itself: correlated residuals, bounds, unknowns that the data do not determine."""

import math
import warnings

import pytest
import torch

from neuralfde import fdeint
from neuralfde.fitting import FitWarning, IdentifiabilityWarning, ResidualWarning, fit
from neuralfde.fitting.diagnostics import _SEEN, autocorrelation

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
