"""What a fit to a file shows: its figure and its page. Needs matplotlib, from the extra ``cli``."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..fitting.plotting import COLOURS
from .fit_data import Measured
from .page import drawn, figure_style, html_table, write_html
from .report import Row


@dataclass(frozen=True)
class Found:
    """What a fit of either kind has: all that the table, the figure and the page show."""

    estimates: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    data: Measured
    predicted: Tensor
    line: tuple[Tensor, Tensor]  # times and values of the fitted curve
    band: tuple[Tensor, ...] | None  # lower and upper ends for one more measurement, along the line
    r_squared: float
    converged: bool


def draw(found: Found, log: bool) -> Any:
    """The measurements with the fitted curve and its 95 % band, and below them what is left over."""
    from matplotlib.figure import Figure

    data = found.data

    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for k, label in enumerate(data.labels):
        observed, predicted, colour = data.values[:, k], found.predicted[:, k], COLOURS[k % len(COLOURS)]
        above.plot(data.times, observed, "o", ms=4, color=colour, label=label)
        above.plot(found.line[0], found.line[1][:, k], color=colour)
        if found.band is not None:
            low, high = (side[:, k] for side in found.band)
            above.fill_between(
                found.line[0], low, high, color=colour, alpha=0.15, lw=0, label=None if k else "95 % band"
            )
        rest = (observed / predicted - 1) * 100 if log else observed - predicted
        below.plot(data.times, rest, "o", ms=3, color=colour)
    below.axhline(0, color="#555555", linewidth=0.8)
    if log:
        above.set_yscale("log")
        first, last = float(data.times[data.times > 0][0]), float(data.times[-1])
        if last > 100 * first:
            above.set_xscale("log")
    below.set(xlabel=data.clock, ylabel="difference, %" if log else "difference")
    above.legend(frameon=False)
    for axis in (above, below):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def write_page(folder: Path, source: str, found: Found, whole: Row, log: bool) -> Path:
    """``report.html``: the model, the table of estimates and the figure."""
    lines = [
        [name, f"{value:.6g}", "[{:.6g}, {:.6g}]".format(*found.intervals[name]) if name in found.intervals else ""]
        for name, value in found.estimates.items()
    ]
    with figure_style():
        shown = drawn(draw(found, log), "measurements, fitted curve and differences")
    body = [
        f"<h1>{html.escape(str(whole['model']))}, fitted to {html.escape(source)}</h1>",
        f"<p>{html.escape(str(whole['formula']))}; {whole['points']} rows, R² {whole['r_squared']:.5f}.</p>",
        html_table(["parameter", "estimate", "95 % interval"], lines),
        *(f'<p class="note">{html.escape(text)}</p>' for text in whole["warnings"]),
        shown,
    ]
    return write_html(folder / "report.html", f"neuralfde fit {source}", body)
