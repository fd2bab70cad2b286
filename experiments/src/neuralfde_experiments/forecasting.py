"""Does memory help to forecast? A learned order against order 1, an LSTM and a naive forecast, on five sets.

ETTh1 and ETTh2 (oil temperature), eight exchange rates (one model for all, each series separately), the logarithm of
the river Fulda's discharge (with rain, known ahead) and half-hourly electricity demand (with working days and
temperature, known ahead). Every model sees 336 steps in patches of 24 and is trained for one horizon. The models differ
only in their state; they have about as many parameters, the same settings, batches and seeds, and stop by validation.
Errors are those of the test part, on the scale of the training part. ``torchrun`` distributes the trainings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from neuralfde.cli.experiment import Options, Report, Row, numbers, option, words

from . import tables
from .data.files import existing_root
from .data.series import SERIES, load_series
from .forecast_models import MODELS, PATCH
from .forecast_training import Windows, naive, train
from .processes import Processes

PROCESSES = True
SUMMARY = "a learned order against order 1, an LSTM and a naive forecast on five time series"
EXAMPLES = (
    "neuralfde run forecasting --data DIR --sets fulda --horizons 24 --seeds 2",
    "neuralfde run forecasting --data DIR --out out",
)
COLUMNS = ("set", "horizon", "model", "seed", "mse", "mae", "order", "iterations", "seconds")
NAIVE = "naive"


def _horizons(text: str) -> list[int]:
    found: list[int] = numbers(int, least=PATCH)(text)
    if any(n % PATCH for n in found):
        raise ValueError(f"each must be a multiple of {PATCH}")
    return found


@dataclass(frozen=True)
class Config(Options):
    """What is forecast, how far, by which models, and how they are trained."""

    sets: str = option(",".join(SERIES), f"which of {', '.join(SERIES)}, joined by commas", reads=words(tuple(SERIES)))
    horizons: str = option("24,96,168,336", f"steps ahead, multiples of {PATCH}", reads=_horizons)
    models: str = option(",".join(MODELS), f"which of {', '.join(MODELS)}, joined by commas", reads=words(MODELS))
    seeds: int = option(5, "trainings of each model", least=1)
    seed: int = option(0, "seed of the first")
    latent: int = option(32, "numbers of the fractional state; the LSTM has as many as fit its parameters", least=1)
    width: int = option(64, "hidden numbers of each network", least=1)
    lr: float = option(2e-3, "learning rate", above=0, most=1)
    iterations: int = option(600, "most training steps", least=1)
    batch: int = option(128, "windows in a batch", least=1)
    every: int = option(25, "training steps between looks at validation", least=1)
    patience: int = option(8, "looks without a better error before the end", least=1)
    data: str | None = option(
        None, "data folder; default: the environment variable NEURALFDE_DATA", reads=existing_root
    )


class Job(NamedTuple):
    """One training, or the naive forecast, which has no seed."""

    set: str
    horizon: int
    model: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.set} {self.horizon} {self.model}" + (f" {self.seed}" if self.model != NAIVE else "")


def jobs(config: Config) -> list[Job]:
    """All trainings and naive forecasts; the longest of each seed come first."""
    names, models = words(tuple(SERIES))(config.sets), words(MODELS)(config.models)
    longest = sorted(_horizons(config.horizons), reverse=True)
    seeds = range(config.seed, config.seed + config.seeds)
    found = [Job(name, h, NAIVE) for name in names for h in longest]
    return found + [Job(name, h, m, seed) for seed in seeds for h in longest for m in models for name in names]


_panel = cache(load_series)


def do(job: Job, config: Config, report: Report | None = None) -> Row:
    """The row of a job; a training that was interrupted is continued."""
    windows, key, report = Windows(_panel(job.set, config.data), job.horizon), str(job), report or Report()
    if job.model == NAIVE:
        return job._asdict() | naive(windows)
    names = ("latent", "width", "lr", "iterations", "batch", "every", "patience")
    return job._asdict() | train(
        job.model,
        windows,
        job.seed,
        **{k: getattr(config, k) for k in names},
        tell=lambda done, loss: report.progress("training", done, config.iterations, loss, key),
        before=report.restored(key),
        keep=partial(report.checkpoint, key),
    )


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each training and naive forecast, and a table of all."""
    with Processes.from_environment("cpu") as processes:
        report = processes.quieten(Report() if report is None else report)
        computes = {str(job): partial(do, job, config, report) for job in jobs(config)}
        rows = processes.cases(report, computes, "forecasting", "mse")
    tables.keep_table(report, "forecasting", markdown(rows))
    return rows


def errors(rows: Iterable[Row], kind: str = "mse") -> dict[tuple[str, int], dict[str, dict[int, float]]]:
    """By set and horizon: for each model the errors of its seeds."""
    found: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for r in sorted(rows, key=lambda r: (list(SERIES).index(r["set"]), r["horizon"])):
        found.setdefault((r["set"], r["horizon"]), {}).setdefault(r["model"], {})[r["seed"]] = r[kind]
    return found


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error; NaN for that of one value."""
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), spread


def paired(own: dict[str, dict[int, float]], other: str) -> tuple[float, float] | None:
    """The error with a learned order minus another model's, seed by seed: mean and standard error."""
    first, second = own.get(MODELS[0], {}), own.get(other, {})
    both = sorted(first.keys() & second.keys())
    return mean_and_error([first[s] - second[s] for s in both]) if both else None


def markdown(rows: Sequence[Row]) -> str:
    """Errors of all models by set and horizon, and what a learned order gains or loses."""
    body = []
    for (name, horizon), own in errors(rows).items():
        cells = [f"{statistics.fmean(own[m].values()):.4f}" if m in own else "" for m in (*MODELS, NAIVE)]
        gaps = [paired(own, other) for other in MODELS[1:]]
        body.append([name, horizon, *cells, *("" if g is None else f"{g[0]:+.4f} ± {g[1]:.4f}" for g in gaps)])
    head = ("set", "steps ahead", *MODELS, NAIVE, *(f"learned - {other}" for other in MODELS[1:]))
    return tables.markdown(head, body, numbers=len(head) - 1) + "\n"
