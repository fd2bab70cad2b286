"""Fit fractional viscoelastic models to a measured stress relaxation.

The file has two columns, time and relaxation modulus, with one header line, separated by tabs, commas or blanks.
Models: ``springpot`` G(t) = K t^-α / Γ(1-α); ``maxwell``, two spring-pots in series,
G(t) = G t^-β E_{α-β,1-β}(-(t/τ)^{α-β}) with slopes -β early and -α late; ``zener``, a spring beside a spring and a
spring-pot in series, G(t) = Gₑ + G E_α(-(t/τ)^α). All are fitted to log G, so that every decade counts alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralfde.errors import InputError, nearest
from neuralfde.fitting import CurveFit, fit_curve

from .runtime import Report, Row, option

EXAMPLES = (
    "neuralfde run relaxation --path stressrelaxation_fishmuscle_data.csv",
    "neuralfde run relaxation --path relaxation.csv --model maxwell --out out/muscle",
)
COLUMNS = ("model", "order", "slope", "slope_of", "difference", "r_squared_log")


@dataclass(frozen=True)
class Config:
    """Settings of the experiment."""

    path: str = option("", "file with time and relaxation modulus (required)")
    model: str = option("all", "springpot, maxwell, zener or all")
    early: float = option(1.5, "decades from the first time on that the early slope is taken over")
    target: float = option(0.02, "largest difference between a fitted order and the slope of the data")
    target_r2: float = option(0.995, "least R² on the log scale of the best model")
    seed: int = option(0, "unused: nothing here is random")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each model: estimates, intervals, R² on the log scale, and the slopes of the data beside them."""
    report = Report() if report is None else report
    if config.model not in (*MODELS, "all"):
        raise InputError(f"unknown model {config.model!r}. {nearest(config.model, [*MODELS, 'all'])}")
    times, modulus = read(config.path)
    slope = slope_of(times, modulus)
    begin = times <= times[0] * 10**config.early
    early = slope_of(times[begin], modulus[begin])
    names = list(MODELS) if config.model == "all" else [config.model]
    curves: dict[str, CurveFit] = {}

    def one(name: str) -> Row:
        began = time.perf_counter()
        found = curves[name] = MODELS[name](times, modulus, slope, early)
        order = found.estimates["order"]
        compared = early if name == "maxwell" else slope
        return {
            "model": name,
            "order": order,
            "order_interval": found.intervals["order"],
            "slope": compared,
            "slope_of": "the first decades" if name == "maxwell" else "all data",
            "difference": abs(order + compared),
            "fitted_curve_slope": slope_of(times, found.predicted.exp()),
            "data_slope": slope,
            "r_squared_log": found.r_squared,
            "estimates": found.estimates,
            "seconds": round(time.perf_counter() - began, 3),
        }

    rows = []
    for k, name in enumerate(names):
        rows.append(report.case(name, lambda name=name: one(name)))  # type: ignore[misc]
        report.progress("models", k + 1, len(names))
    best = max(r["r_squared_log"] for r in rows)
    report.verdict(f"R² ≥ {config.target_r2:g}", best >= config.target_r2, f"best {best:.5f}")
    for row in rows:
        if row["model"] != "zener":  # its order is that of the transition, not a slope
            name = f"{row['model']}: order within {config.target:g} of the slope of {row['slope_of']}"
            report.verdict(name, row["difference"] <= config.target, f"{row['order']:.4f} and {-row['slope']:.4f}")
    if report.wants_figures and curves:
        report.figure("relaxation", _draw(times, modulus, curves))
    return rows


def read(path: str) -> tuple[Tensor, Tensor]:
    """Positive times and moduli, sorted by time."""
    if not path:
        raise InputError("this experiment needs a file: --path FILE with two columns, time and relaxation modulus.")
    if not Path(path).is_file():
        raise InputError(f"there is no file {path!r}.")
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines()):
        parts = line.replace(",", " ").replace(";", " ").split()
        try:
            rows.append((float(parts[0]), float(parts[1])))
        except (ValueError, IndexError):
            if number > 2 and line.strip():
                raise InputError(f"line {number + 1} of {path} is not two numbers: {line[:60]!r}.") from None
    kept = sorted({r for r in rows if r[0] > 0 and r[1] > 0})
    if len(kept) < 10:
        raise InputError(f"{path} has {len(kept)} rows with a positive time and modulus; at least 10 are needed.")
    table = torch.tensor(kept, dtype=torch.float64)
    return table[:, 0], table[:, 1]


def slope_of(times: Tensor, modulus: Tensor) -> float:
    """The slope of a straight line through the points on log-log axes."""
    x, y = times.log(), modulus.log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _springpot(times: Tensor, modulus: Tensor, slope: float, early: float) -> CurveFit:
    def curve(x: Tensor, log_k: Tensor, order: Tensor) -> Tensor:
        return log_k - order * x - torch.lgamma(1 - order)

    start = {"log_k": float(modulus.log().mean()), "order": 0.5}
    return fit_curve(curve, times.log(), modulus.log(), start, {"order": (0.0, 1.0)})


def _maxwell(times: Tensor, modulus: Tensor, slope: float, early: float) -> CurveFit:
    from neuralfde.special import mittag_leffler

    def curve(x: Tensor, log_g: Tensor, order: Tensor, gap: Tensor, log_tau: Tensor) -> Tensor:
        rise = gap * (1 - order)  # the late order is order + gap (1 - order), at most 1
        return log_g - order * x + mittag_leffler(-(rise * (x - log_tau)).exp(), rise, 1 - order).log()

    x = times.log()
    start = {"log_g": float(modulus.log()[0]), "order": 0.2, "gap": 0.5, "log_tau": float(x[-1] + x[0]) / 2}
    return fit_curve(curve, x, modulus.log(), start, {"order": (0.0, 1.0), "gap": (0.0, 1.0)})


def _zener(times: Tensor, modulus: Tensor, slope: float, early: float) -> CurveFit:
    from neuralfde.special import mittag_leffler

    def curve(x: Tensor, log_e: Tensor, log_g: Tensor, order: Tensor, log_tau: Tensor) -> Tensor:
        return (log_e.exp() + log_g.exp() * mittag_leffler(-(order * (x - log_tau)).exp(), order)).log()

    x, y = times.log(), modulus.log()
    start = {"log_e": float(y[-1]) - 1, "log_g": float(y[0]), "order": 0.3, "log_tau": float(x[-1] + x[0]) / 2}
    return fit_curve(curve, x, y, start, {"order": (0.0, 1.0)})


MODELS: dict[str, Callable[[Tensor, Tensor, float, float], CurveFit]] = {
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
