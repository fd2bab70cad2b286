"""Data over decades of time, fitted on a mesh that was adapted once.

    python benchmarks/adaptive_data.py --data DIR [relaxation] [theophylline]

``DIR`` holds ``viscoelastic_relaxation`` and ``time_series``. Writes two parts of results/adaptive.json.

``relaxation``: a spring and a spring-pot in series, ``D^α z = -z/τ^α``, ``G(t) = G z(t)``, fitted by its closed form
and by solves: to log G of fish muscle, to the mean of ten hydrogels at all times, in units of their standard deviation,
and to its logarithm from 5 s on, where none of the ten is negative. The number of steps of a uniform grid with the same
accuracy is bounded from below by what its beginning needs.

``theophylline``: absorption of order 1 and elimination of order β, ``a' = -kₐ a``, ``D^β c = kₐ a/V - k c``, one β for
all twelve subjects and kₐ, k, V for each; the dose is the initial ``a``. Every third concentration is held out in turn.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from pathlib import Path

import torch
from report.adaptive import data
from report.record import Row, here, put
from torch import Tensor

import neuralfde as nf
from neuralfde.fitting import fit_curve
from neuralfde_experiments.relaxation import read

ONE = torch.ones(1, dtype=torch.float64)
RTOL = 1e-4
EXPLICIT = nf.ABM(ahead=True)


def least_squares(residual: Callable[[], Tensor], free: Tensor, iterations: int = 40) -> int:
    """Minimise by L-BFGS; how often the loss and its gradient were computed."""
    search = torch.optim.LBFGS(
        [free], max_iter=iterations, line_search_fn="strong_wolfe", tolerance_grad=1e-8, tolerance_change=1e-11
    )
    calls = [0]

    def loss() -> Tensor:
        calls[0] += 1
        search.zero_grad()
        found = residual().square().mean()
        found.backward()
        return found

    search.step(loss)  # type: ignore[arg-type]
    return calls[0]


def decay(t: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    return -rate * z


def relaxed(name: str, times: Tensor, modulus: Tensor, tau: float | None = None, spread: Tensor | None = None) -> Row:
    """Both fits of one material, τ unknown or given, and what a uniform grid would take.

    What is fitted is log G, or G in units of its ``spread``.
    """

    def seen(log_modulus: Tensor) -> Tensor:
        return log_modulus if spread is None else log_modulus.exp() / spread

    x, y = times.log(), modulus.log() if spread is None else modulus / spread
    fixed = {} if tau is None else {"log_tau": torch.tensor(tau, dtype=torch.float64).log()}

    def curve(x: Tensor, log_g: Tensor, order: Tensor, **more: Tensor) -> Tensor:
        late = x - {**more, **fixed}["log_tau"]
        return seen(log_g + nf.mittag_leffler(-(order * late).exp(), order).log())

    first = modulus[0] if spread is None else modulus[-1]
    start = {"log_g": float(first.log()), "order": 0.5, **({} if fixed else {"log_tau": float(x[0] + x[-1]) / 2})}
    closed = fit_curve(curve, x, y, start, {"order": (0.0, 1.0)}).estimates
    free = torch.tensor([start["log_g"], 0.0, *list(start.values())[2:]], dtype=torch.float64, requires_grad=True)

    def known() -> tuple[Tensor, Tensor]:
        order = torch.sigmoid(free[1])
        return order, torch.exp(-order * (fixed["log_tau"] if fixed else free[2]))

    with torch.no_grad():
        order, rate = known()
        found = nf.solve(decay, ONE, float(times[-1]), order, rtol=RTOL, args=(rate,), stepper="single")
    mesh = torch.cat([found.grid, times]).unique()  # a step ends at each time of the data

    def solved() -> Tensor:
        order, rate = known()
        at = torch.cat([mesh[:1], times])
        return nf.fdeint(decay, ONE, at, order, grid=mesh, method="trapezoid", args=(rate,))[1:, 0].log()

    solves = least_squares(lambda: seen(free[0] + solved()) - y, free)
    with torch.no_grad():
        order, rate = known()
        exact = nf.mittag_leffler(-rate * times**order, order).log()
        error = float((solved() - exact).abs().max())
        steps = uniform_steps(order, rate, times, exact, error)
        ours = {"G": float(free[0].exp()), "order": float(order), "τ": tau or float(free[-1].exp())}
    other = {"G": math.exp(closed["log_g"]), "order": closed["order"], "τ": tau or math.exp(closed["log_tau"])}
    apart = max(abs(ours[k] / other[k] - 1) for k in ours)
    row = {"material": name, "points": len(times), "from": float(times[0]), "to": float(times[-1])}
    row |= {"solver": ours, "closed form": other, "largest difference": apart, "solves": solves}
    return row | {"adapted steps": found.stats.accepted, "mesh": len(mesh) - 1, "error": error, "uniform steps": steps}


def uniform_steps(order: Tensor, rate: Tensor, times: Tensor, exact: Tensor, error: float) -> float:
    """Steps of one length that ``bdf2`` takes at least for this error: as long as those up to 20 times the first time.

    The length is halved until the error is met there, or there are 64,000 of them.
    """
    early = times[times <= 20 * times[0]]
    at, count, off = torch.cat([torch.zeros_like(early[:1]), early]), 50, torch.inf
    while off > error and count < 64_000:
        count *= 2
        z = nf.fdeint(decay, ONE, at, order, steps=count, method="bdf2", args=(rate,))[1:, 0]
        off = float((z.clamp(min=1e-9).log() - exact[: len(early)]).abs().max())
    return count * float(times[-1] / early[-1])


def hydrogel(folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Times, and the mean and standard deviation of the modulus in ten repeats."""
    every = []
    for path in sorted(folder.glob("*.csv")):
        lines = [line.split("\t") for line in path.read_text(encoding="utf-16").replace(",", ".").splitlines()[6:]]
        every.append([(float(line[1]), float(line[4])) for line in lines if len(line) > 4])
    found = torch.tensor(every, dtype=torch.float64)
    times, modulus = found.mean(0).T
    return times.contiguous(), modulus.contiguous(), found[..., 1].std(0)


def relaxation(folder: Path) -> list[Row]:
    folder = folder / "viscoelastic_relaxation"
    times, modulus, _ = read(str(folder / "pyrheo" / "stressrelaxation_fishmuscle_data.csv"))
    found = [relaxed("fish muscle", times, modulus)]
    times, modulus, spread = hydrogel(folder / "hydrogel_repeats")
    late = times >= 5
    # what is seen is a power law, whatever τ is: it is set to 1 s
    found.append(relaxed("hydrogel, mean of ten, τ given", times, modulus, 1.0, spread))
    return [*found, relaxed("the same from 5 s on", times[late], modulus[late], 1.0)]


def theophylline(folder: Path) -> list[Row]:
    rows = list(csv.DictReader((folder / "time_series" / "theophylline.csv").open()))
    table = torch.tensor([[float(r[k]) for k in ("Subject", "Dose", "Time", "conc")] for r in rows]).double()
    who, dose, time, conc = table[table[:, 2] > 0].T
    subjects = who.unique()
    index = torch.searchsorted(subjects, who.contiguous())
    first = torch.stack([dose[index == k][0] for k in range(len(subjects))])
    z0 = torch.stack([first, torch.zeros_like(first)], dim=1)
    number = torch.cat([torch.arange(int((index == k).sum())) for k in range(len(subjects))])
    return [
        drug(z0, index, time, conc, number % 3 == fold, learn, fold) for fold in range(3) for learn in (True, False)
    ]


def kinetics(t: Tensor, z: Tensor, rates: Tensor) -> Tensor:
    gut, blood = z.unbind(-1)
    absorbed, cleared, volume = rates.exp().unbind(-1)
    return torch.stack([-absorbed * gut, absorbed * gut / volume - cleared * blood], dim=-1)


def drug(z0: Tensor, index: Tensor, time: Tensor, conc: Tensor, held: Tensor, learn: bool, fold: int) -> Row:
    """Fit without the held-out concentrations, and how far off these are."""
    start = torch.tensor([2.0, 0.08, 0.45]).double().log().repeat(len(z0))
    free = torch.cat([start, torch.full((1,), 2.0).double()]).requires_grad_()
    at = torch.cat([torch.zeros_like(time[:1]), time]).unique()
    place = torch.searchsorted(at, time.contiguous())

    def known() -> tuple[Tensor, Tensor]:
        beta = torch.sigmoid(free[-1]) if learn else torch.ones_like(free[-1])
        return torch.stack([torch.ones_like(beta), beta]), free[:-1].reshape(-1, 3)

    with torch.no_grad():
        order, rates = known()
        quick = rates + torch.tensor([1.5, 0.0, 0.0]).double()  # the mesh is to be stable for quicker absorption too
        grid = nf.solve(kinetics, z0, at[-1].item(), order, rtol=1e-3, args=(quick,), method=EXPLICIT).grid
    mesh = torch.cat([grid, at]).unique()

    def residual() -> Tensor:
        order, rates = known()
        z = nf.fdeint(kinetics, z0, at, order, grid=mesh, method=EXPLICIT, args=(rates,))
        return z[place, index, 1] - conc

    solves = least_squares(lambda: residual()[~held], free, 25)
    with torch.no_grad():
        left, beta = residual(), float(known()[0][1])
    row = {"fold": fold, "model": "fractional" if learn else "order 1", "order": beta, "mesh": len(mesh) - 1}
    row |= {"fitted": float(left[~held].square().mean().sqrt()), "held out": float(left[held].square().mean().sqrt())}
    print(row, flush=True)
    return row | {"points held out": int(held.sum()), "solves": solves}


PARTS = {"relaxation": relaxation, "theophylline": theophylline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for part in given.parts:
        command = f"python benchmarks/adaptive_data.py --data DIR {part}"
        put("adaptive", part, PARTS[part](given.data), **here(), command=command)
    print(data())


if __name__ == "__main__":
    main()
