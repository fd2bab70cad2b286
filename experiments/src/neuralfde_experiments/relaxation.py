"""Fit fractional viscoelastic models to a measured stress relaxation.

The file has two columns, time and relaxation modulus, or ``columns`` says which two to use; see
``neuralfde.cli.table_file`` for its formats.
Models: ``springpot`` G(t) = K t^-α / Γ(1-α); ``maxwell``, two spring-pots in series,
G(t) = G t^-β E_{α-β,1-β}(-(t/τ)^{α-β}) with slopes -β early and -α late; ``zener``, a spring beside a spring and a
spring-pot in series, G(t) = Gₑ + G E_α(-(t/τ)^α). All are fitted to log G, so that every decade counts alike.

An order is a slope only where the relaxation is a power law: a fractional Maxwell element falls as t^-β early and bends
on its way to t^-α. So orders are compared with the slope of the power-law range. This is found from the data alone: the
longest range from the first time on in which a straight line on log-log axes has R² ≥ ``straight``. The slope over all
times is given too. ``torchrun`` distributes the models.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neuralfde.cli.experiment import Options, Report, Row, option
from neuralfde.cli.table_file import read_table
from neuralfde.errors import InputError
from neuralfde.fitting import CurveFit, FitWarning, fit_curve

from .processes import Processes

SUMMARY = "viscoelastic models of a stress relaxation"
EXAMPLES = (
    "neuralfde run relaxation --path stressrelaxation_fishmuscle_data.csv",
    "neuralfde run relaxation --path data.csv --model maxwell --out out",
)
PROCESSES = True
COLUMNS = ("model", "order", "slope", "until", "difference", "r_squared_log", "slope_all", "difference_all")


@dataclass(frozen=True)
class Config(Options):
    """Settings of the experiment."""

    path: str = option("", "file with time and relaxation modulus (required)")
    columns: str = option("", "names or numbers of these two columns, joined by a comma; empty: there are no others")
    skip: int = option(0, "lines above the table that are no part of it")
    model: str = option("all", "springpot, maxwell, zener or all", choices=("springpot", "maxwell", "zener", "all"))
    straight: float = option(0.995, "R² a straight line on log-log axes must reach over the power-law range", most=1)
    target: float = option(0.02, "largest difference between a fitted order and the slope of the data")
    target_r2: float = option(0.995, "least R² on the log scale, over all times", most=1)
    seed: int = option(0, "unused: nothing here is random")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each model: estimates, intervals, R² on the log scale, and the slopes of the data."""
    report = Report() if report is None else report
    times, modulus, left_out = read(config.path, config.columns, config.skip)
    if left_out:
        report.message(
            f"{left_out} rows are left out: log axes have no place for times and moduli that are not positive"
        )
    everywhere, straight = line(times, modulus), power_law(times, modulus, config.straight)
    names = list(MODELS) if config.model == "all" else [config.model]
    missing = [name for name in names if report.known(name) is None]
    with Processes.from_environment("cpu") as processes:
        report = processes.quieten(report)
        fitted = dict(zip(missing, processes.deal([partial(_timed, n, times, modulus) for n in missing]), strict=True))

    def one(name: str) -> Row:
        found, seconds = fitted[name]
        order = found.estimates["order"]
        return {
            "model": name,
            "order": order,
            "order_interval": found.intervals["order"],
            "slope": straight.slope,
            "until": straight.until,
            "range_r_squared": straight.r_squared,
            "difference": abs(order + straight.slope),
            "r_squared_log": found.r_squared,
            "slope_all": everywhere.slope,
            "difference_all": abs(order + everywhere.slope),
            "estimates": found.estimates,
            "seconds": round(seconds, 3),
        }

    rows = [report.case(name, partial(one, name)) for name in names]
    _judge(config, rows, straight, report)
    if report.wants_figures and fitted:
        report.figure("relaxation", _draw(times, modulus, {name: found for name, (found, _) in fitted.items()}))
    return rows


def _timed(name: str, times: Tensor, modulus: Tensor) -> tuple[CurveFit, float]:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # models are compared here, and a poor one is told by its R²
        found = MODELS[name](times, modulus)
    return found, time.perf_counter() - began


def _judge(config: Config, rows: list[Row], straight: Line, report: Report) -> None:
    report.message(
        f"power law up to t = {straight.until:.4g} (R² {straight.r_squared:.4f}): slope {straight.slope:.4f}; "
        f"over all times: slope {rows[0]['slope_all']:.4f}"
    )
    both = [
        r["model"] for r in rows if r["difference"] <= config.target and r["r_squared_log"] >= config.target_r2
    ]  # fmt: skip
    report.verdict(
        f"a model with R² ≥ {config.target_r2:g} and its order within {config.target:g} of the slope",
        bool(both),
        ", ".join(both) or "none",
    )


def read(path: str, columns: str = "", skip: int = 0) -> tuple[Tensor, Tensor, int]:
    """Positive times and moduli, sorted by time, and the number of rows left out because they are not positive."""
    if not path:
        raise InputError("this experiment needs a file: --path FILE with two columns, time and relaxation modulus.")
    chosen = [part.strip() for part in columns.split(",")] if columns else []
    table = read_table(path, skip, chosen)
    found, width = table.numbers, table.numbers.shape[1]
    if width != 2:
        named = f" ({', '.join(table.names)})" if table.names else ""
        raise InputError(f"{path} has {width} columns{named}: say which two are time and modulus with --columns 1,2.")
    kept = sorted({(t, g) for t, g in found.tolist() if t > 0 and g > 0})
    if len({t for t, _ in kept}) < 10:
        raise InputError(f"{path} has {len(kept)} rows with a positive time and modulus; at least 10 times are needed.")
    times, modulus = torch.tensor(kept, dtype=torch.float64).T.contiguous()
    return times, modulus, int((found <= 0).any(1).sum())


@dataclass(frozen=True)
class Line:
    """A straight line on log-log axes: its slope, R² and the last time it was drawn through."""

    slope: float
    r_squared: float
    until: float


def line(times: Tensor, modulus: Tensor) -> Line:
    """The straight line through all points on log-log axes."""
    slopes, fits = _prefixes(times, modulus)
    return Line(float(slopes[-1]), float(fits[-1]), float(times[-1]))


def power_law(times: Tensor, modulus: Tensor, least: float) -> Line:
    """The longest straight line from the first time on: with R² at least ``least``, or the highest R² if none has."""
    slopes, fits = _prefixes(times, modulus)
    reached = (fits >= least).nonzero()
    last = int(reached[-1] if len(reached) else fits.argmax())
    return Line(float(slopes[last]), float(fits[last]), float(times[last + 2]))


def _prefixes(times: Tensor, modulus: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and R² of the straight lines through the first 3, 4, ... points, from running sums."""
    x, y = times.log(), modulus.log()
    x, y = x - x.mean(), y - y.mean()
    n = torch.arange(1, len(x) + 1, dtype=x.dtype)

    def spread(a: Tensor, b: Tensor) -> Tensor:
        return ((a * b).cumsum(0) - a.cumsum(0) * b.cumsum(0) / n)[2:]

    xx, xy, yy = spread(x, x), spread(x, y), spread(y, y)
    return xy / xx, xy.square() / (xx * yy)


def _springpot(times: Tensor, modulus: Tensor) -> CurveFit:
    def curve(x: Tensor, log_k: Tensor, order: Tensor) -> Tensor:
        return log_k - order * x - torch.lgamma(1 - order)

    start = {"log_k": float(modulus.log().mean()), "order": 0.5}
    return fit_curve(curve, times.log(), modulus.log(), start, {"order": (0.0, 1.0)})


def _maxwell(times: Tensor, modulus: Tensor) -> CurveFit:
    from neuralfde.special import mittag_leffler

    def curve(x: Tensor, log_g: Tensor, order: Tensor, gap: Tensor, log_tau: Tensor) -> Tensor:
        rise = gap * (1 - order)  # the late order is order + gap (1 - order), at most 1
        return log_g - order * x + mittag_leffler(-(rise * (x - log_tau)).exp(), rise, 1 - order).log()

    x = times.log()
    start = {"log_g": float(modulus.log()[0]), "order": 0.2, "gap": 0.5, "log_tau": float(x[-1] + x[0]) / 2}
    return fit_curve(curve, x, modulus.log(), start, {"order": (0.0, 1.0), "gap": (0.0, 1.0)})


def _zener(times: Tensor, modulus: Tensor) -> CurveFit:
    from neuralfde.special import mittag_leffler

    def curve(x: Tensor, log_e: Tensor, log_g: Tensor, order: Tensor, log_tau: Tensor) -> Tensor:
        return (log_e.exp() + log_g.exp() * mittag_leffler(-(order * (x - log_tau)).exp(), order)).log()

    x, y = times.log(), modulus.log()
    start = {"log_e": float(y[-1]) - 1, "log_g": float(y[0]), "order": 0.3, "log_tau": float(x[-1] + x[0]) / 2}
    return fit_curve(curve, x, y, start, {"order": (0.0, 1.0)})


MODELS: dict[str, Callable[[Tensor, Tensor], CurveFit]] = {
    "springpot": _springpot,
    "maxwell": _maxwell,
    "zener": _zener,
}


def _draw(times: Tensor, modulus: Tensor, curves: dict[str, CurveFit]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 4.2), layout="constrained")
    ax = figure.subplots()
    every = math.ceil(len(times) / 120)
    ax.loglog(times[::every], modulus[::every], "o", ms=3, color="#999999", label="measured")
    for (name, found), colour in zip(curves.items(), ("#D55E00", "#0072B2", "#009E73"), strict=False):
        text = f"{name}: order {found.estimates['order']:.3f}, R² {found.r_squared:.4f}"
        ax.loglog(times, found.predicted.exp(), color=colour, label=text)
    ax.set(xlabel="time", ylabel="relaxation modulus")
    ax.grid(alpha=0.25, which="both")
    ax.legend(frameon=False)
    return figure
