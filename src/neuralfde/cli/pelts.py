"""The Hudson Bay series of lynx and hare, and Lotka-Volterra equations fitted to it.

The series has 21 years of pelts, 1900 to 1920 (source: stan-dev/example-models,
knitr/lotka-volterra/hudson-bay-lynx-hare.csv, new BSD licence).
"""

from __future__ import annotations

import csv
import math
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from ..fitting import Fit, LevenbergMarquardt, fit
from .predator_prey import lotka_volterra


def load() -> tuple[Tensor, Tensor]:
    """Years (21,) and thousands of pelts (21, 2): hare, lynx."""
    text = (files("neuralfde") / "cli" / "hudson-bay-lynx-hare.csv").read_text()
    lines = [row for row in csv.reader(text.splitlines()) if row and not row[0].startswith("#")]
    table = torch.tensor([[float(v) for v in row] for row in lines[1:]], dtype=torch.float64)
    return table[:, 0], table[:, [2, 1]]


def fit_until(origin: int, fractional: bool, steps_per_year: int = 8, order_guess: float = 0.95) -> Fit:
    """Fit the years up to ``origin`` on the log scale.

    First guesses come from these years alone: the means give the equilibrium, and a period of ten years the rates.

    Args:
        origin: the last year that is seen.
        fractional: find the order too; otherwise it is 1.
        steps_per_year: grid steps of the solver in a year.
        order_guess: where the search for the order starts.
    """
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
        order=order_guess if fractional else 1.0,
        learn_order=fractional,
        order_bounds=(0.5, 1.0),
        bounds=dict.fromkeys((*"abcd", "initial"), (0.0, None)),
        optimiser=LevenbergMarquardt(iterations=60, tolerance=1e-6),
        steps=int(seen.sum() - 1) * steps_per_year,
    )


def forecast_error(found: Fit, origin: int, ahead: int = 20) -> float:
    """Root mean square error, on the log scale, of the forecasts of at most ``ahead`` years after ``origin``."""
    years, pelts = load()
    later = (years > origin) & (years <= origin + ahead)
    error = found.predict(years[later] - years[0])[:, 0] - pelts[later].log()
    return float(error.square().mean().sqrt())


def draw(fits: dict[str, Fit], origin: int) -> Any:
    """A figure of the data, the fitted curves and their forecasts to 1920. Needs matplotlib."""
    from matplotlib.figure import Figure

    years, pelts = load()
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    for k, (ax, name) in enumerate(zip(axes, ("hare", "lynx"), strict=True)):
        ax.plot(years, pelts[:, k], "o", ms=4, color="#7d838d", label="pelts")
        for (kind, found), style in zip(fits.items(), ("-", "--"), strict=False):
            label = f"{kind}, order {found.order:.2f}"
            colour = "#4c8dff" if kind == "fractional" else "#ff8c42"
            times = found.grid(20.0)
            ax.plot(1900 + times, found.predict(times)[:, 0, k].exp(), style, color=colour, label=label)
        ax.axvspan(origin, 1920, color="#7d838d", alpha=0.15, lw=0)
        ax.set(title=f"{name} (shaded: forecast)", xlabel="year", ylabel="thousands of pelts")
        ax.set_xticks([1900, 1905, 1910, 1915, 1920])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure
