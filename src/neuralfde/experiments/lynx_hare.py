"""Fractional against integer Lotka-Volterra on the Hudson Bay lynx and hare, by the error of forecasts.

The series has 21 years of pelts, 1900 to 1920 (shipped with the package; source: stan-dev/example-models,
knitr/lotka-volterra/hudson-bay-lynx-hare.csv, new BSD licence). Both models are fitted to the years up to an origin
on the log scale, and forecast the years after it. First guesses come from the training years alone: the means give
the equilibrium, and a period of ten years the rates. The fits are dealt out to the processes that ``torchrun`` starts.
"""

from __future__ import annotations

import csv
import math
import time
import warnings
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

import neuralfde
from neuralfde.fitting import Fit, IdentifiabilityWarning, LevenbergMarquardt, fit

from .lotka_volterra import lotka_volterra, say_warnings
from .processes import Processes
from .runtime import Report, Row, option

EXAMPLES = (
    "neuralfde run lynx-hare                               four origins, forecasts of three years",
    "neuralfde run lynx-hare --first 1914 --last 1914 --ahead 6 --out out/lynx",
)
PROCESSES = True
COLUMNS = ("model", "origin", "order", "train_rmse_log", "held_out_rmse_log", "seconds")


@dataclass(frozen=True)
class Config:
    """Settings of the experiment."""

    first: int = option(1911, "first year a forecast starts from")
    last: int = option(1917, "last year a forecast starts from")
    every: int = option(2, "years between origins")
    ahead: int = option(3, "years forecast from each origin")
    steps_per_year: int = option(8, "grid steps of the solver in a year")
    order_guess: float = option(0.95, "where the search for the order starts")
    seed: int = option(0, "unused: nothing here is random")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each model and origin, then one for each model with the mean over origins."""
    report = Report() if report is None else report
    years, pelts = load()
    origins = list(range(config.first, config.last + 1, config.every))
    if not origins or origins[0] < 1906 or origins[-1] + config.ahead > 1920 or config.ahead < 1:
        raise neuralfde.InputError(
            "origins need seven years before them and --ahead years after them; the data are 1900 to 1920."
        )
    kinds = ("integer", "fractional")
    cases = {f"{kind}-{o}": partial(_one, config, kind, o, years, pelts, report) for kind in kinds for o in origins}
    with Processes.from_environment("cpu") as processes:
        rows = processes.cases(report, cases, "forecasts")
    say_warnings(rows, report)
    for kind in kinds:
        mine = [r for r in rows if r["model"] == kind]
        mean = math.sqrt(sum(r["held_out_rmse_log"] ** 2 for r in mine) / len(mine))
        rows.append(report.case(f"{kind}-mean", lambda a=kind, m=mean: {"model": a, "held_out_rmse_log": m}))  # type: ignore[misc]
    return rows


def load() -> tuple[Tensor, Tensor]:
    """Years (21,) and thousands of pelts (21, 2): hare, lynx."""
    text = (files("neuralfde") / "data" / "hudson-bay-lynx-hare.csv").read_text()
    lines = [row for row in csv.reader(text.splitlines()) if row and not row[0].startswith("#")]
    table = torch.tensor([[float(v) for v in row] for row in lines[1:]], dtype=torch.float64)
    return table[:, 0], table[:, [2, 1]]


def fit_until(origin: int, fractional: bool, config: Config) -> Fit:
    """Fit the years up to ``origin``."""
    years, pelts = load()
    seen = years <= origin
    rate = 2 * math.pi / 10
    hare, lynx = pelts[seen].mean(0).tolist()
    return fit(
        lotka_volterra,
        years[seen] - years[0],
        pelts[seen].log(),
        params={"a": rate, "b": rate, "c": rate / lynx, "d": rate / hare},
        observe=torch.log,
        initial=pelts[:1],
        learn_initial=True,
        order=config.order_guess if fractional else 1.0,
        learn_order=fractional,
        order_bounds=(0.5, 1.0),
        bounds=dict.fromkeys((*"abcd", "initial"), (0.0, None)),
        optimiser=LevenbergMarquardt(iterations=60, tolerance=1e-6),
        steps=int(seen.sum() - 1) * config.steps_per_year,
    )


def _one(config: Config, kind: str, origin: int, years: Tensor, pelts: Tensor, report: Report) -> Row:
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", IdentifiabilityWarning)
        found = fit_until(origin, kind == "fractional", config)
    ahead = (years > origin) & (years <= origin + config.ahead)
    forecast = found.predict(years[ahead] - years[0])[:, 0]
    error = forecast - pelts[ahead].log()
    if report.wants_figures:
        report.figure(f"{kind}-{origin}", draw({kind: found}, origin))
    return {
        "model": kind,
        "origin": origin,
        "order": found.order,
        "order_interval": found.intervals.get("order"),
        "identifiable": found.identifiable,
        "train_rmse_log": found.loss**0.5,
        "held_out_rmse_log": float(error.square().mean().sqrt()),
        "estimates": found.estimates,
        "converged": found.converged,
        "warnings": [str(warning.message) for warning in caught],
        "seconds": round(time.perf_counter() - began, 3),
    }


def draw(fits: dict[str, Fit], origin: int) -> Any:
    """Data, fitted curves and forecasts to 1920."""
    from matplotlib.figure import Figure

    years, pelts = load()
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    for k, (ax, name) in enumerate(zip(axes, ("hare", "lynx"), strict=True)):
        ax.plot(years, pelts[:, k], "o", ms=4, color="#555555", label="pelts")
        for (kind, found), style in zip(fits.items(), ("-", "--"), strict=False):
            label = f"{kind}, order {found.order:.2f}"
            colour = "#0072B2" if kind == "fractional" else "#D55E00"
            times = found.grid(20.0)
            ax.plot(1900 + times, found.predict(times)[:, 0, k].exp(), style, color=colour, label=label)
        ax.axvspan(origin, 1920, color="#000000", alpha=0.06)
        ax.set(title=f"{name} (shaded: forecast)", xlabel="year", ylabel="thousands of pelts")
        ax.set_xticks([1900, 1905, 1910, 1915, 1920])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure
