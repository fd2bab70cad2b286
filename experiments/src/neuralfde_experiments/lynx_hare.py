"""Fractional against integer Lotka-Volterra on the Hudson Bay lynx and hare, by the error of forecasts.

The series has 21 years of pelts, 1900 to 1920, and comes with neuralfde (``neuralfde.cli.pelts`` names its source).
Both models are fitted to the years up to an origin on the log scale, and forecast the years after it. First guesses
come only from the training years: the means give the equilibrium, and a period of ten years the rates. ``torchrun``
distributes the fits.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from functools import partial

import neuralfde
from neuralfde.cli import pelts
from neuralfde.cli.experiment import Options, Report, Row, option
from neuralfde.fitting import FitWarning

from .lotka_volterra import say_warnings
from .processes import Processes

SUMMARY = "fractional and integer order on lynx and hare"
EXAMPLES = (
    "neuralfde run lynx-hare                four origins, three years ahead",
    "neuralfde run lynx-hare --first 1914 --last 1914 --ahead 6 --out out",
)
PROCESSES = True
COLUMNS = ("model", "origin", "order", "train_rmse_log", "held_out_rmse_log", "seconds")


@dataclass(frozen=True)
class Config(Options):
    """Settings of the experiment."""

    first: int = option(1911, "first year a forecast starts from", least=1906, most=1919)
    last: int = option(1917, "last year a forecast starts from", least=1906, most=1919)
    every: int = option(2, "years between origins", least=1)
    ahead: int = option(3, "years forecast from each origin", least=1)
    steps_per_year: int = option(8, "grid steps of the solver in a year", least=2, most=1000)
    order_guess: float = option(0.95, "where the search for the order starts", least=0.5, most=1)
    seed: int = option(0, "unused: nothing here is random")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each model and origin, then one for each model with the mean over origins."""
    report = Report() if report is None else report
    origins = list(range(config.first, config.last + 1, config.every))
    if not origins or origins[-1] + config.ahead > 1920:
        raise neuralfde.InputError(
            f"the data end in 1920: of origins from {config.first} to {config.last} none, or not each, has "
            f"{config.ahead} years after it. Choose an earlier --last, a smaller --ahead, or --first before --last."
        )
    kinds = ("integer", "fractional")
    cases = {f"{kind}-{o}": partial(_one, config, kind, o, report) for kind in kinds for o in origins}
    with Processes.from_environment("cpu") as processes:
        rows = processes.cases(report, cases, "forecasts", "held_out_rmse_log")
    say_warnings(rows, report)
    for kind in kinds:
        mine = [r for r in rows if r["model"] == kind]
        mean = math.sqrt(sum(r["held_out_rmse_log"] ** 2 for r in mine) / len(mine))
        rows.append(report.case(f"{kind}-mean", lambda a=kind, m=mean: {"model": a, "held_out_rmse_log": m}))  # type: ignore[misc]
    return rows


def _one(config: Config, kind: str, origin: int, report: Report) -> Row:
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        found = pelts.fit_until(origin, kind == "fractional", config.steps_per_year, config.order_guess)
    if report.wants_figures:
        report.figure(f"{kind}-{origin}", pelts.draw({kind: found}, origin))
    return {
        "model": kind,
        "origin": origin,
        "order": found.order,
        "order_interval": found.intervals.get("order"),
        "identifiable": found.identifiable,
        "train_rmse_log": found.loss**0.5,
        "held_out_rmse_log": pelts.forecast_error(found, origin, config.ahead),
        "estimates": found.estimates,
        "converged": found.converged,
        "warnings": [str(warning.message) for warning in caught],
        "seconds": round(time.perf_counter() - began, 3),
    }
