"""Parameters that every trajectory has its own of, and trajectories with times of their own."""

from dataclasses import replace

import pytest
import torch

from neuralfde.errors import InputError, InputTypeError
from neuralfde.fitting import Adam, IdentifiabilityWarning, LevenbergMarquardt, fit, load, save
from neuralfde.fitting.population import population
from neuralfde.special import mittag_leffler

F64 = torch.float64
RATES = [0.6, 0.9, 1.2, 1.5]


def decay(t, z, rate, level):
    return rate * (level - z)


def relaxations(noise=0.002, count=16):
    """Times of their own and relaxations towards 0.2, with rates of their own and one order, 0.8."""
    generator = torch.Generator().manual_seed(0)
    times, values = [], []
    for rate in RATES:
        inner = torch.rand(count, dtype=F64, generator=generator).sort().values * 4
        t = torch.cat([torch.zeros(1, dtype=F64), inner])
        y = 0.2 + 0.8 * mittag_leffler(-rate * t**0.8, 0.8)
        times.append(t)
        values.append(y + noise * torch.randn(len(t), dtype=F64, generator=generator))
        values[-1][0] = 1.0
    return times, values


def test_rates_of_their_own_with_a_shared_level_and_order(tmp_path):
    times, values = relaxations()
    found = fit(
        decay, times, values, params={"rate": 1.0, "level": 0.5}, each=["rate"], learn_order=True, noise=0.002,
        steps=40, optimiser=LevenbergMarquardt(iterations=12),
    )  # fmt: skip
    rates = [found.estimates[f"rate[{k}]"] for k in range(4)]
    assert max(abs(a - b) for a, b in zip(rates, RATES, strict=True)) < 0.05
    assert abs(found.order - 0.8) < 0.03
    assert abs(found.estimates["level"] - 0.2) < 0.02
    all_ = found.population("rate")
    assert all_.interval[0] < 1.05 < all_.interval[1]
    assert 0.25 < all_.spread < 0.5  # of these rates: 0.39
    assert min(all_.shrunken) > min(rates)
    save(found, tmp_path / "fit.pt")
    again = load(tmp_path / "fit.pt", decay)
    torch.testing.assert_close(again.predict(found.grid()), found.predict(found.grid()))
    assert again.population("rate") == all_
    with pytest.raises(InputError, match="fit with each="):
        found.population("level")


def test_a_population_leaves_out_what_the_data_do_not_determine():
    """The rate of a trajectory without a value after its first one has variance 0, not infinity, in the covariance."""
    times, values = relaxations()
    empty = torch.full((len(times[0]),), torch.nan, dtype=F64)
    empty[0] = 1.0
    given = {"params": {"rate": 1.0, "level": 0.5}, "each": ["rate"], "order": 0.8, "noise": 0.002, "steps": 40}
    alone = fit(decay, times, values, **given).population("rate")
    with pytest.warns(IdentifiabilityWarning, match=r"rate\[4\]"):
        found = fit(decay, [*times, times[0]], [*values, empty], **given).population("rate")
    assert found.mean == pytest.approx(alone.mean, rel=1e-5)
    assert found.interval == pytest.approx(alone.interval, rel=1e-4)
    assert found.spread == pytest.approx(alone.spread, rel=1e-4)
    assert found.shrunken == pytest.approx([*alone.shrunken, alone.mean], rel=1e-4)


def test_minibatches_take_the_times_and_numbers_of_their_trajectories():
    times, values = relaxations(count=30)
    found = fit(
        decay, times, values, params={"rate": 1.0, "level": 0.5}, each=["rate"], order=0.8, robust=1.0, intervals=None,
        optimiser=Adam(epochs=1, batch_size=2), steps=20,
    )  # fmt: skip
    problem, flat = found.problem, found.flat
    assert problem.own is not None
    assert problem.own.times.shape == (4, 32)
    for rows in (None, torch.tensor([2, 0])):
        wanted = problem.residuals(flat, rows).square().sum()
        seen = problem.data.seen if rows is None else problem.data.seen[:, rows]
        torch.testing.assert_close(problem.loss(flat, rows), wanted / seen.sum())
    shared = replace(problem.data, scale=torch.ones_like(problem.data.scale))
    assert replace(problem, data=shared).own is None


def test_the_spread_of_a_population_is_without_that_of_the_noise():
    torch.manual_seed(0)
    truth = 2 + 0.5 * torch.randn(4000, dtype=F64)
    noise = 0.3 + torch.rand(4000, dtype=F64)
    found = population(truth + noise * torch.randn(4000, dtype=F64), noise**2)
    assert abs(found.mean - 2) < 0.05
    assert abs(found.spread - 0.5) < 0.05
    shrunken = torch.tensor(found.shrunken, dtype=F64)
    assert (shrunken - truth).square().mean() < 0.8 * 0.5**2
    alike = population(torch.ones(3, dtype=F64), torch.tensor([1.0, 1.0, torch.inf], dtype=F64))
    assert alike.spread == 0
    assert alike.shrunken == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"each": "rate"}, InputTypeError, "list of names"),
        ({"each": ["speed"]}, InputError, "speed"),
        ({"params": {"rate": [1.0, 2.0], "level": 0.5}}, InputError, "one for each of 4"),
        ({"params": None, "each": ["rate"]}, InputError, "not a module"),
    ],
)
def test_what_each_trajectory_cannot_have_is_refused(change, error, message):
    given = {"params": {"rate": 1.0, "level": 0.5}, "each": ["rate"], **change}
    with pytest.raises(error, match=message):
        fit(decay, *relaxations(), **given)
