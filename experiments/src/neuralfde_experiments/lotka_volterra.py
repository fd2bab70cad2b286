"""Recover the parameters, and the order, of a fractional predator-prey equation from trajectories.

The equation is ``D^β x = x(a - c y)``, ``D^β y = -y(b - d x)`` with [a, b, c, d] = [1.0, 0.5, 1.0, 0.3] and initial
states drawn from [0.5, 5]. The paper trains for 30 epochs with Adam at a learning rate of 0.01 and ends at
[0.99, 0.48, 1.05, 0.33]. It leaves open the order, the horizon, the number of trajectories, the first guess and the
minibatches; here they are options, and the first guess is drawn without regard to the truth. Several processes share
the minibatches of one seed, or get different seeds.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from neuralfde.cli.experiment import ADJOINTS, METHODS, Options, Report, Row, option
from neuralfde.cli.predator_prey import TRUTH, first_guess, lotka_volterra, measure
from neuralfde.fitting import Adam, Fit, FitWarning, LevenbergMarquardt, Progress, StepWarning, fit

from .processes import Processes

SUMMARY = "parameters and order of a predator-prey equation"
EXAMPLES = (
    "neuralfde run lotka-volterra                   the paper's budget",
    "neuralfde run lotka-volterra --adjoint paper   and its gradients",
    "neuralfde run lotka-volterra --learn-order --noise 0.01 --optimiser lm",
    "neuralfde run lotka-volterra --observe prey --optimiser lm --repeats 3",
)
_OBSERVED = {"both": [0, 1], "prey": [0], "predator": [1]}
PROCESSES = True
COLUMNS = ("seed", "adjoint", "a", "b", "c", "d", "order", "worst_error", "seconds")


@dataclass(frozen=True)
class Config(Options):
    """Settings of the experiment."""

    adjoint: str = option("exact", "gradients: exact, paper or direct", choices=ADJOINTS)
    optimiser: str = option("adam", "adam (the paper's) or lm (Levenberg-Marquardt)", choices=("adam", "lm"))
    epochs: int = option(30, "passes over the trajectories, for adam", least=1)
    lr: float = option(0.01, "learning rate of adam", above=0, most=100)
    batch_size: int = option(4, "trajectories in one step of adam", least=1)
    trajectories: int = option(400, "how many trajectories are measured", least=1)
    horizon: float = option(1.0, "length of a trajectory", above=0, most=1e6)
    samples: int = option(10, "equally spaced measurements of a trajectory after the initial state", least=1)
    steps: int = option(10, "grid steps of the solver; a multiple of the samples keeps all on the grid", least=1)
    method: str = option("predictor", "scheme of the solver", choices=METHODS)
    refine: int = option(1, "make the data on a grid this many times finer, with abm where it is not 1", least=1)
    order: float = option(0.8, "the true order", above=0, most=1)
    learn_order: bool = option(False, "treat the order as unknown and find it too")
    order_guess: float = option(0.6, "where the search for the order starts", least=0.02, most=1)
    noise: float = option(0.0, "Gaussian noise, as a fraction of the root mean square of each variable")
    observe: str = option("both", "what is measured: both, prey or predator", choices=tuple(_OBSERVED))
    intervals: str = option(
        "gauss-newton",
        "95 % intervals: gauss-newton, bootstrap or none",
        choices=("gauss-newton", "bootstrap", "none"),
    )
    profile: bool = option(False, "profile the loss over the order even where it is clearly known")
    repeats: int = option(1, "how many seeds to run, from --seed on", least=1)
    seed: int = option(0, "random seed of initial states, first guess, noise and shuffling")
    target: float = option(0.01, "largest relative error of a parameter that counts as recovered")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each seed: estimates, errors, intervals, time."""
    report = Report() if report is None else report
    seeds = range(config.seed, config.seed + config.repeats)
    with Processes.from_environment("cpu") as processes:
        if config.optimiser == "adam" and len(seeds) == 1:
            report = processes.quieten(report)
            rows = [report.case(f"seed-{config.seed}", partial(_one, config, config.seed, report, processes.group))]
        else:
            rows = processes.cases(report, {f"seed-{seed}": partial(_one, config, seed, report) for seed in seeds})
    say_warnings(rows, report)
    worst = max(r["worst_error"] for r in rows)
    report.verdict(f"parameters within {config.target:.3g}", worst <= config.target, f"worst error {worst:.4f}")
    return rows


def say_warnings(rows: list[Row], report: Report) -> None:
    """Repeat the warnings of the fits, also of those in other processes and earlier runs."""
    for row in rows:
        for text in row["warnings"]:
            report.message(f"{row['case']}: {text}")


def measured(config: Config, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Times, noisy states (times, trajectories, 2) and the true initial states."""
    return measure(
        config.trajectories,
        config.order,
        seed,
        horizon=config.horizon,
        samples=config.samples,
        steps=config.steps * config.refine,
        method=config.method if config.refine == 1 else "abm",
        noise=config.noise,
    )


def estimate(config: Config, seed: int, report: Report, key: str, group: Any = None) -> Fit:
    """Fit one set of trajectories; the processes of ``group`` share its minibatches."""
    times, values, z0 = measured(config, seed)
    seen = _OBSERVED[config.observe]
    optimiser: Any = LevenbergMarquardt()
    if config.optimiser == "adam":
        optimiser = Adam(epochs=config.epochs, lr=config.lr, batch_size=config.batch_size, seed=seed, group=group)

    stages = (0.125, 0.25, 0.5, 1.0) if config.optimiser == "lm" else (1.0,)

    def watch(p: Progress) -> None:
        report.progress(key, p.iteration, p.total, p.loss)
        if len(stages) == 1:  # a fit can be continued only within its last stage, and does not say which stage it is in
            report.checkpoint(key, p.state)

    with warnings.catch_warnings():
        if config.refine == 1:  # data made on the grid of the fit contain its error: a finer grid would not be better
            warnings.simplefilter("ignore", StepWarning)
        return fit(
            lotka_volterra,
            times,
            values[..., seen],
            params=first_guess(seed),
            order=config.order_guess if config.learn_order else config.order,
            learn_order=config.learn_order,
            initial=z0,
            observe=seen,
            weights=1 / values[..., seen].square().mean((0, 1), keepdim=True),
            optimiser=optimiser,
            stages=stages,
            intervals=None if config.intervals == "none" else config.intervals,
            check_order=True if config.profile else None,
            callback=watch,
            seed=seed,
            resume=report.restored(key),
            steps=config.steps,
            method=config.method,
            adjoint=config.adjoint,
        )


def _one(config: Config, seed: int, report: Report, group: Any = None) -> Row:
    key = f"seed-{seed}"
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        found = estimate(config, seed, report, key, group)
    errors = {n: abs(found.estimates[n] / v - 1) for n, v in TRUTH.items()}
    real = {**TRUTH, "order": config.order}
    if report.wants_figures:
        report.figure(key, found.plot(labels=[("prey", "predator")[k] for k in _OBSERVED[config.observe]]))
    return {
        "seed": seed,
        "adjoint": config.adjoint,
        "optimiser": config.optimiser,
        "estimates": found.estimates,
        "intervals": found.intervals,
        "covered": {n: low <= real[n] <= high for n, (low, high) in found.intervals.items()},
        "errors": errors,
        "worst_error": max(errors.values()),
        "order": found.order,
        "order_error": abs(found.order - config.order),
        "identifiable": found.identifiable,
        "order_range": None if found.profile is None else found.profile.interval,
        "loss": found.loss,
        "first_guess": first_guess(seed),
        "warnings": [str(warning.message) for warning in caught],
        "seconds": round(time.perf_counter() - began, 3),
    }
