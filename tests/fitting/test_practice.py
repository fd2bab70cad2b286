"""What fits of real data need: outliers, several first guesses, orders above 1, bands, names, and files."""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import neuralfde
from neuralfde import InputError
from neuralfde.fitting import fit, fit_curve, load, save
from neuralfde.fitting.starts import all_starts
from neuralfde.fitting.unknowns import unknowns_from
from neuralfde.special import mittag_leffler

DOUBLE = torch.float64
TIMES = torch.linspace(0, 4, 21, dtype=DOUBLE)
GUESS = {"params": {"rate": 0.8, "source": 0.3}, "order": 0.7, "steps": 20, "initial": [3.0]}


def decay(t, z, rate, source):
    return source - rate * z


def measured(noise=0.0, seed=0):
    z0 = torch.tensor([[3.0]], dtype=DOUBLE)
    clean = neuralfde.fdeint(lambda t, z: decay(t, z, 1.2, 0.5), z0, TIMES, 0.7, steps=20, method="abm")
    generator = torch.Generator().manual_seed(seed)
    return clean + noise * torch.randn(clean.shape, generator=generator, dtype=DOUBLE)


def test_outliers_weigh_less_with_a_robust_loss():
    values = measured(0.01, seed=1)
    values[7] += 2.0
    squares = fit(decay, TIMES, values, **GUESS)
    robust = fit(decay, TIMES, values, robust=0.02, **GUESS)
    assert abs(squares.estimates["rate"] - 1.2) > 0.05
    assert abs(robust.estimates["rate"] - 1.2) < 0.3 * abs(squares.estimates["rate"] - 1.2)
    assert float(robust.residuals[7]) == pytest.approx(2.0, abs=0.05)  # the residual is that of the data
    residual, matrix = robust.problem.jacobian(robust.flat)
    flat = robust.flat.clone().requires_grad_()
    robust.problem.residuals(flat).square().sum().backward()
    torch.testing.assert_close(2 * matrix.T @ residual, flat.grad, rtol=1e-7, atol=1e-9)
    gentle = fit(decay, TIMES, values, robust=1e6, intervals=None, **GUESS)
    assert gentle.estimates == pytest.approx(squares.estimates, rel=1e-6)


def test_intervals_of_a_robust_fit_are_those_of_an_m_estimator():
    """Whether the noise is given or estimated: Huber's formula with ψ = r / √(1 + (r/k)²), written out for two values.

    In 600 simulated fits with and without outliers, 94 to 96 % of these intervals held the true values.
    """
    generator = torch.Generator().manual_seed(0)
    noise = 0.05 * torch.randn(len(TIMES), generator=generator, dtype=DOUBLE)
    noise[[5, 17]] *= 20
    values = measured(0.0) + noise.view(-1, *[1] * (measured(0.0).ndim - 1))
    options = {**GUESS, "check_order": False}
    known = fit(decay, TIMES, values, noise=0.05, robust=1.5, **options)
    own = fit(decay, TIMES, values, robust=0.075, **options)
    torch.testing.assert_close(known.covariance, own.covariance, rtol=1e-6, atol=0)
    r = own.residuals[1:].flatten() / 0.075  # the first value is taken as known
    psi, bend = r / (1 + r**2).sqrt(), (1 + r**2) ** -1.5
    rows = replace(own.problem, robust=None).jacobian(own.flat)[1]
    count, size = rows.shape
    factor = (psi**2).sum() / (count - size) / bend.mean() ** 2
    factor = factor * (1 + size / count * ((bend - bend.mean()) ** 2).mean() / bend.mean() ** 2) ** 2
    wanted = factor * 0.075**2 * torch.linalg.inv(rows.T @ rows)
    torch.testing.assert_close(own.covariance, wanted, rtol=1e-8, atol=0)
    plain, gentle = (fit(decay, TIMES, values, robust=k, **options) for k in (None, 1e4))
    torch.testing.assert_close(gentle.covariance, plain.covariance, rtol=1e-6, atol=0)


def swing(t, z, w):
    return torch.stack([w * z[..., 1], -w * z[..., 0]], -1)


def test_another_start_finds_the_minimum_that_the_first_misses():
    z0, times = torch.tensor([[4.0, 2.0]], dtype=DOUBLE), torch.linspace(0, 9, 19, dtype=DOUBLE)
    data = neuralfde.fdeint(lambda t, z: swing(t, z, 2.0), z0, times, 0.98, steps=18, method="abm")
    common = {"params": {"w": 1.0}, "order": 0.98, "steps": 18, "intervals": None, "method": "abm"}
    assert abs(fit(swing, times, data, **common).estimates["w"] - 2.0) > 0.1
    found = fit(swing, times, data, starts=[{"w": 1e9}, {"w": 1.9}], **common)  # from one of them it blows up
    assert found.estimates["w"] == pytest.approx(2.0, rel=1e-6)


def test_random_starts_keep_the_bounds_and_the_seed():
    values = {"free": torch.zeros(2), "positive": torch.tensor(1.0), "order": torch.tensor(0.9)}
    unknowns = unknowns_from(values, {"positive": (0.0, None), "order": (0.5, 1.0)})
    starts = all_starts(unknowns, unknowns.pack(values), 50, 3)
    assert torch.equal(torch.stack(starts), torch.stack(all_starts(unknowns, unknowns.pack(values), 50, 3)))
    assert torch.equal(starts[0], unknowns.pack(values))
    drawn = torch.stack(starts[1:])
    assert bool((drawn[:, 2] > 0).all())
    assert bool(((drawn[:, 3] > 0.5) & (drawn[:, 3] < 1)).all())
    assert bool((drawn.std(0) > 0.1).all())


@pytest.mark.parametrize("observe", [torch.log, [1, 0]], ids=["log", "swapped"])
def test_what_is_not_the_initial_state_is_not_taken_for_it(observe):
    """Logarithms, or variables in another order, used to be where the solution began, and the fit was of that."""
    times = torch.linspace(0, 2, 9, dtype=DOUBLE)
    z0, rates = torch.tensor([5.0, 3.0], dtype=DOUBLE), torch.tensor([1.0, 2.0], dtype=DOUBLE)
    states = neuralfde.fdeint(lambda t, z: -0.8 * rates * z, z0, times, 0.7, steps=40, method="abm")
    seen = states.log() if observe is torch.log else states[:, [1, 0]]
    given = {"params": {"k": 0.5}, "order": 0.7, "steps": 40, "observe": observe}
    model = lambda t, z, k: -k * rates * z
    with pytest.raises(InputError, match="Pass the state itself as initial="):
        fit(model, times, seen, **given)
    found = fit(model, times, seen, initial=z0, **given)
    assert found.estimates["k"] == pytest.approx(0.8, rel=1e-6)
    with pytest.raises(InputError, match="a state of this fit has 2 variables"):
        found.predict(times, initial=[1.0])
    for bad in ([], [-1.0, 1.0], [1.0, float("nan")], 3.0):
        with pytest.raises(InputError, match="at least one number, none before the initial time 0"):
            found.predict(bad)


def test_a_fit_warns_of_nothing_that_is_not_its_own():
    """With warnings as errors, as many test suites have them: PyTorch's own of its forward mode is one otherwise."""
    program = (
        "import torch; from neuralfde.fitting import fit; t = torch.linspace(0, 1, 5).double(); "
        "fit(lambda t, z, k: -k * z, t, torch.exp(-t) + 0.01 * torch.sin(9 * t), params={'k': 0.5}, order=1.0, steps=8)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


def test_a_fit_can_be_pickled():
    for observe in (None, 0):
        found = fit(decay, TIMES, measured(0.05), observe=observe, check_order=False, **GUESS)
        again = pickle.loads(pickle.dumps(found))
        assert str(again) == str(found)
        assert torch.equal(again.predict(TIMES), found.predict(TIMES))


def test_an_order_above_one_with_its_velocity():
    z0, velocity = torch.tensor([[1.0], [0.0]], dtype=DOUBLE), torch.tensor([[0.0], [1.0]], dtype=DOUBLE)
    data = neuralfde.fdeint(
        lambda t, z: -1.3 * z, z0, TIMES, 1.6, steps=20, method="abm", velocity=velocity
    )  # fmt: skip
    common = {"params": {"rate": 1.0}, "initial": z0, "velocity": velocity, "steps": 20}
    found = fit(lambda t, z, rate: -rate * z, TIMES, data, order=1.4, learn_order=True, **common)
    assert found.order == pytest.approx(1.6, abs=1e-6)
    assert found.estimates["rate"] == pytest.approx(1.3, rel=1e-6)
    given = fit(lambda t, z, rate: -rate * z, TIMES, data, order=1.6, **common)
    torch.testing.assert_close(given.predict(TIMES), data, rtol=1e-6, atol=1e-8)


def test_bands_hold_what_they_promise(tmp_path):
    """Over many data sets the band of the curve covers the true curve, and the wider one new measurements."""
    curve, fresh, runs = 0.0, 0.0, 6
    truth = measured()[10:]
    for seed in range(runs):
        found = fit(decay, TIMES, measured(0.05, seed), check_order=False, **GUESS)
        low, high = found.band(TIMES[10:], noise=False)
        curve += float(((low <= truth) & (truth <= high)).double().mean()) / runs
        low, high = found.band(TIMES[10:])
        again = measured(0.05, seed + 100)[10:]
        fresh += float(((low <= again) & (again <= high)).double().mean()) / runs
    assert curve > 0.75
    assert 0.88 < fresh < 0.99
    with pytest.raises(InputError, match="gauss-newton"):
        fit(decay, TIMES, measured(), intervals=None, **GUESS).band(TIMES)


def test_bands_of_few_values_are_as_wide_as_intervals():
    """Student's t where the noise is estimated, as for the estimates: the prediction interval of linear regression."""
    x = torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0], dtype=DOUBLE)
    y = torch.tensor([1.1, 1.9, 3.2, 3.9, 6.1], dtype=DOUBLE)
    line = torch.stack([torch.ones_like(x), x], 1)
    rest = y - line @ torch.linalg.lstsq(line, y[:, None]).solution[:, 0]
    there = torch.tensor([[1.0, 4.0], [1.0, 9.0]], dtype=DOUBLE)
    spread = 1 + ((there @ torch.linalg.inv(line.T @ line)) * there).sum(1)
    wanted = 3.182446 * (rest.square().sum() / 3 * spread).sqrt()  # t with three degrees of freedom
    found = fit_curve(lambda x, a, b: a + b * x, x, y, {"a": 0.0, "b": 1.0})
    low, high = found.band(there[:, 1])
    torch.testing.assert_close((high - low) / 2, wanted, rtol=1e-6, atol=0)
    given = {"params": {"a": torch.tensor([1.0])}, "order": 1.0, "method": "trapezoid", "steps": 10}
    solved = fit(lambda t, z, a: a + 0 * z, x, y, learn_initial=True, **given)  # the same line
    low, high = solved.band(there[:, 1])
    torch.testing.assert_close((high - low).flatten() / 2, wanted, rtol=1e-6, atol=0)


def test_bootstrapped_intervals_of_few_values_are_as_wide_as_students():
    """Of five values they held the truth in 70 % of simulated fits, without what is not known about the noise."""
    x = torch.arange(5, dtype=DOUBLE)
    y = torch.tensor([1.1, 0.8, 1.3, 0.9, 1.4], dtype=DOUBLE)
    mean, half = float(y.mean()), 2.776445 * float(y.std()) / 5**0.5
    found = fit_curve(lambda x, level: level + 0 * x, x, y, {"level": 1.0}, resamples=400)
    assert found.intervals["level"] == pytest.approx((mean - half, mean + half), abs=0.15 * half)
    low = fit_curve(lambda x, level: level + 0 * x, x, y, {"level": 1.0}, {"level": (0.95, None)}, resamples=400)
    assert low.intervals["level"][0] == 0.95


def test_intervals_of_estimates_from_a_part_of_the_data_are_of_that_part():
    values = measured(0.05, seed=2)
    half = fit(decay, TIMES, values, validation=0.5, **GUESS)
    assert half.covariance.shape == (2, 2)
    rows = half.problem.jacobian(half.flat)[1]
    whole = half.noise**2 * torch.linalg.inv(rows.T @ rows)
    assert bool((half.covariance.diagonal() > 1.5 * whole.diagonal()).all())


def test_names_of_variables_are_in_the_figure(tmp_path):
    pytest.importorskip("matplotlib")
    found = fit(decay, TIMES, measured(0.05), variables=["modulus"], check_order=False, **GUESS)
    figure = found.plot(tmp_path / "fit.png")
    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert shown == ["modulus", "95 % band"]
    with pytest.raises(InputError, match="1 names are needed"):
        fit(decay, TIMES, measured(), variables=["a", "b"], **GUESS)


class Decay(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.8))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, t, z):
        return 0.5 - self.scale * self.rate * z


@pytest.mark.parametrize("kind", ["function", "module"])
def test_a_fit_survives_a_file(kind, tmp_path):
    path, options = tmp_path / "fit.pt", dict(GUESS)
    if kind == "module":
        del options["params"]
    model = decay if kind == "function" else Decay()
    check = kind == "function"
    found = fit(model, TIMES, measured(0.02), learn_order=True, check_order=check, observe=lambda z: 1 * z, **options)
    save(found, path)
    fresh = decay if kind == "function" else Decay()
    again = load(path, fresh, observe=lambda z: 1 * z)
    assert again.summary() == found.summary()
    assert again.profile == found.profile
    torch.testing.assert_close(again.predict(TIMES), found.predict(TIMES))
    torch.testing.assert_close(again.band(TIMES), found.band(TIMES))
    if kind == "module":
        assert torch.equal(fresh.rate, model.rate)
        with pytest.raises(InputError, match=r"'scale'.*not what it was"):
            load(path, Decay(scale=2.0))
    with pytest.raises(InputError, match="parameters"):
        load(path, nn.Linear(1, 1))


def test_files_that_hold_no_fit_and_fits_that_no_file_holds(tmp_path):
    path = tmp_path / "fit.pt"
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a fit that can be read"):
        load(path, decay)
    torch.save({"format": "other"}, path)
    with pytest.raises(InputError, match="no fit of this version"):
        load(path, decay)
    found = fit(decay, TIMES, measured(), method=neuralfde.schemes.ABM(), intervals=None, **GUESS)
    with pytest.raises(InputError, match="fit with a name"):
        save(found, path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"robust": 0.0}, "positive"),
        ({"starts": 0}, "at least 1"),
        ({"starts": [{"rat": 1.0}]}, "Did you mean 'rate'"),
        ({"starts": [{"rate": -1.0}], "bounds": {"rate": (0.0, None)}}, "strictly inside"),
        ({"order_bounds": (0.5, 1.5)}, "velocity="),
        ({"velocity": torch.ones(3, 1)}, "velocity has shape"),
        ({"variables": "z"}, "in a list"),
    ],
)
def test_refusals(changes, words):
    with pytest.raises(InputError, match=words):
        fit(decay, TIMES, measured(), **GUESS, **changes)


def test_a_fit_steps_on_any_mesh(tmp_path):
    relax = lambda t, z, rate: -rate * z
    times = torch.cat([torch.zeros(1), torch.logspace(-3, 1, 20)]).double()
    noise = torch.randn(21, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    noise[0] = 0
    values = mittag_leffler(-1.3 * times**0.6, 0.6) + 0.003 * noise
    mesh = torch.cat([torch.zeros(1), torch.logspace(-5, 0.9, 60), times[-1:]]).double()
    found = fit(relax, times, values, params={"rate": 1.0}, order=0.6, noise=0.003, grid=mesh, method="trapezoid")
    assert abs(found.estimates["rate"] - 1.3) < 0.01
    assert torch.equal(found.grid(), mesh)
    later = torch.tensor([5.0, 20.0]).double()
    assert (found.predict(later).flatten() - mittag_leffler(-1.3 * later**0.6, 0.6)).abs().max() < 1e-2
    low, high = found.band(later)
    assert bool((low < high).all())
    save(found, tmp_path / "mesh.pt")
    assert str(load(tmp_path / "mesh.pt", relax)) == found.summary()


class Product(torch.autograd.Function):
    """A Function without forward mode and without a rule for vmap."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a


#: The same right-hand side, by operations for which PyTorch has no forward mode or no vmap.
ELSEWHERE = {
    "a function of its own": lambda t, z, rate, source: source - Product.apply(rate.expand_as(z), z),
    "distances": lambda t, z, rate, source: source - rate * z + 0 * torch.cdist(z[None, None], z[None, None]).sum(),
    "values": lambda t, z, rate, source: source - rate * z if z.sum().item() < 1e9 else z,
}


@pytest.mark.parametrize("func", [pytest.param(f, id=name) for name, f in ELSEWHERE.items()])
@pytest.mark.parametrize("each", [(), ("rate",)], ids=["shared", "each"])
@pytest.mark.parametrize("method", ["abm", "trapezoid"])
def test_a_model_without_forward_mode(func, each, method):
    values = torch.cat([measured(0.01), measured(0.01, seed=1)], 1)
    asked = {**GUESS, "method": method, "each": each, "learn_order": True}
    found, expected = fit(func, TIMES, values, **asked), fit(decay, TIMES, values, **asked)
    assert found.estimates == pytest.approx(expected.estimates, rel=1e-6)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-4, atol=1e-10)
