"""A tour in about a minute: why exact gradients matter, an equation found from data, and one page that shows it.

First the gradients of the paper's adjoint and of the exact one are compared with direct differentiation. Then four
parameters of a fractional predator-prey equation are fitted with both: to clean data, and with a model that is not
quite right (its order is assumed to be 0.9 and is 0.6), where a wrong gradient stops short of the best fit. Then the
order is found as well, from noisy data, with 95 % intervals. Last come two forecasts: pelts of lynx and hare, where
order 1 does better, and the stress of a material over decades, where a memory is what it takes. A self-contained
``report.html`` is left in the output folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..api import fdeint
from ..fitting import Adam, Fit, Progress, fit
from . import material, pelts
from .options import Options, option
from .predator_prey import TRUTH, first_guess, lotka_volterra, measure
from .report import Report, Row

SUMMARY = "a tour in about a minute, with a page that shows it"
EXAMPLES = ("neuralfde demo", "neuralfde demo --out out/tour --no-lynx", "neuralfde demo --epochs 5 --json")
OUT = "demo-output"
COLUMNS = ("case", "a", "b", "c", "d", "order", "error")


@dataclass(frozen=True)
class Config(Options):
    """Settings of the tour."""

    epochs: int = option(30, "passes over the trajectories, for each kind of gradient", least=1)
    trajectories: int = option(80, "how many trajectories are measured", least=1)
    noise: float = option(0.01, "noise of the data in which the order is unknown")
    lynx: bool = option(True, "fit the lynx and hare series too")
    size: str = option("full", "full, or tiny for a trial of a few seconds", choices=("full", "tiny"))
    seed: int = option(3, "random seed")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """Rows of all parts; the picture and the page are made where the report keeps figures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # states are small: on a busy machine further threads wait for each other, 20 min for 1
    try:
        return _tour(config, Report() if report is None else report)
    finally:
        torch.set_num_threads(threads)


def _tour(config: Config, report: Report) -> list[Row]:
    began = time.perf_counter()
    fits: dict[str, Any] = {}
    _compare_gradients(config, report)
    report.message(f"2. Four parameters from clean data: {config.epochs} epochs of Adam, exact and paper gradients")
    for adjoint in ("exact", "paper"):
        report.case(f"clean: {adjoint}", lambda a=adjoint: _recover(config, a, report, fits))  # type: ignore[misc]
    report.message("   The same with a model that is not quite right: order 0.9 in place of 0.6")
    for how in ("best fit", "exact", "paper"):
        report.case(f"wrong: {how}", lambda h=how: _wrong_model(config, h, report, fits))  # type: ignore[misc]
    report.message("3. Parameters and order from noisy data, with intervals")
    report.case("unknown order", lambda: _unknown_order(config, report, fits))
    if config.lynx:
        report.message("4. Lynx and hare, fitted to 1900-1914 and forecast to 1920")
        for k, kind in enumerate(("integer", "fractional")):
            row = report.case(f"{kind} order", lambda a=kind: _lynx(a, fits))  # type: ignore[misc]
            report.progress("lynx and hare", k + 1, 2, text=f"forecast {row['held_out_rmse_log']:.3f} off")
    report.message("5. A material that relaxes over decades: fitted to three, forecast for one")
    for k, name in enumerate(material.MODELS):
        row = report.case(f"material: {name}", lambda n=name: _material(n, config.seed, fits))  # type: ignore[misc]
        report.progress("material", k + 1, len(material.MODELS), text=f"forecast {row['held_out_rmse_log']:.3f} off")
    _conclude(report)
    if report.folder is not None:
        from .demo_page import write_page

        path = write_page(report.folder, report.rows, fits, config.seed, time.perf_counter() - began)
        report.message(f"open {path} in a browser")
    return report.rows


def _conclude(report: Report) -> None:
    """The forecasts as a table, and whether the tour showed what it set out to show."""
    forecasts = [r for r in report.rows if r.get("part") in ("lynx", "material")]
    report.table("forecasts", forecasts, ("case", "fitted", "found_order", "train_rmse_log", "held_out_rmse_log"))
    exact = next(r for r in report.rows if r["case"] == "clean: exact")
    report.verdict("exact gradients recover the parameters within 5 %", exact["error"] <= 0.05)
    best = min((r for r in forecasts if r["part"] == "material"), key=lambda r: r["held_out_rmse_log"])
    report.verdict("a memory forecasts the material best", best["case"] == "material: order found")


def _compare_gradients(config: Config, report: Report) -> None:
    report.message("1. Gradients: exact and the paper's, against direct differentiation")
    orders = (0.3, 0.5, 0.7, 0.9)
    for k, order in enumerate(orders):
        row = report.case(f"order {order}", lambda o=order: gradient_errors(o, config.seed))  # type: ignore[misc]
        report.progress("gradients", k + 1, len(orders), text=f"the paper's {100 * row['paper_error']:.0f} % off")
    shown = [r for r in report.rows if r.get("part") == "gradient"]
    report.table("relative error of the gradient", shown, ("true_order", "exact_error", "paper_error"))


def gradient_errors(order: float, seed: int) -> Row:
    """Relative errors of two gradients of a trajectory loss in [a, b, c, d], against direct differentiation."""
    times, values, z0 = measure(16, order, seed, horizon=2.0, steps=40)
    found = {}
    for adjoint in ("direct", "exact", "paper"):
        guess = tuple(torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.7, 0.7, 0.7, 0.4))
        states = fdeint(lotka_volterra, z0, times, order, steps=40, adjoint=adjoint, args=guess)
        (states - values).square().mean().backward()
        found[adjoint] = torch.stack([g.grad for g in guess if g.grad is not None])
    scale = found["direct"].norm()
    errors = {a: float((found[a] - found["direct"]).norm() / scale) for a in ("exact", "paper")}
    return {"part": "gradient", "true_order": order, "exact_error": errors["exact"], "paper_error": errors["paper"]}


def _recover(config: Config, adjoint: str, report: Report, fits: dict[str, Any]) -> Row:
    key, path = f"clean: {adjoint}", list[list[float]]()
    fits[f"{adjoint} path"] = path
    found = fits[adjoint] = _fit(
        _finely(config.trajectories, 0.6, config.seed),
        config.seed,
        _watch(report, key, lambda p: path.append(p.state["free"].tolist())),
        order=0.6,
        optimiser=Adam(epochs=config.epochs, lr=0.01, batch_size=4, seed=config.seed),
        adjoint=adjoint,
    )
    return {"part": "recovery", **_row(found, TRUTH)}


def _wrong_model(config: Config, how: str, report: Report, fits: dict[str, Any]) -> Row:
    """All trajectories in every step of Adam, or the minimum of the same loss by Levenberg-Marquardt."""
    key, path, best = f"wrong: {how}", list[float](), how == "best fit"
    fits[key] = path
    found = _fit(
        _finely(20, 0.6, config.seed),
        config.seed,
        _watch(report, key, lambda p: path.append(p.loss)),
        order=0.9,
        optimiser="lm" if best else Adam(epochs=10 * config.epochs, lr=0.02),
        adjoint="exact" if best else how,
    )
    # the best fit comes first, perhaps in the run that this one goes on from
    known = [r["estimates"] for r in report.rows if r["case"] == "wrong: best fit"] or [found.estimates]
    return {"part": "wrong model", **_row(found, {n: known[0][n] for n in TRUTH})}


def _unknown_order(config: Config, report: Report, fits: dict[str, Any]) -> Row:
    tiny, true_order = config.size == "tiny", 0.8
    horizon, samples, steps = (2.0, 8, 32) if tiny else (4.0, 16, 64)
    found = fits["order"] = _fit(
        _finely(8, true_order, config.seed, horizon=horizon, samples=samples, noise=config.noise),
        config.seed,
        _watch(report, "parameters and order"),
        order=0.6,
        learn_order=True,
        optimiser="lm",
        stages=(0.125, 0.25, 0.5, 1.0),
        intervals="gauss-newton",
        check_order=None if tiny else True,
        steps=steps,
    )
    real = {**TRUTH, "order": true_order}
    intervals = {n: list(v) for n, v in found.intervals.items()}
    more = {"truth": real, "intervals": intervals, "identifiable": found.identifiable}
    return {"part": "order", **_row(found, real), **more}


def _lynx(kind: str, fits: dict[str, Any]) -> Row:
    found = fits[kind] = pelts.fit_until(1914, kind == "fractional", steps_per_year=5)
    return {
        "part": "lynx",
        "found_order": found.order,
        "fitted": len(found.estimates),
        "train_rmse_log": found.loss**0.5,
        "held_out_rmse_log": pelts.forecast_error(found, 1914),
        "seconds": round(found.seconds, 2),
    }


def _material(name: str, seed: int, fits: dict[str, Any]) -> Row:
    began = time.perf_counter()
    seeds = range(seed, seed + material.REPEATS)
    found = [material.fit_until(name, k) for k in seeds]
    fits[f"material: {name}"] = found[0]
    errors = [material.errors(name, one, k) for one, k in zip(found, seeds, strict=True)]
    seen, ahead = torch.tensor(errors).mean(0).tolist()
    return {
        "part": "material",
        "found_order": sum(one.estimates.get("order", 1.0) for one in found) / len(found),
        "fitted": len(found[0].estimates),
        "train_rmse_log": seen,
        "held_out_rmse_log": ahead,
        "seconds": round(time.perf_counter() - began, 2),
    }


def _finely(*args: Any, **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Data from a grid that no fit uses: 512 steps, so that they hold none of a fit's own error."""
    return measure(*args, **how, steps=512, method="abm")


def _fit(data: tuple[Tensor, Tensor, Tensor], seed: int, watch: Callable[[Progress], None], **how: Any) -> Fit:
    """The parameters of the equation, from a first guess that does not know the truth."""
    times, values, z0 = data
    options: dict[str, Any] = {"steps": 20, "method": "abm", "intervals": None, **how}
    weights = 1 / values.square().mean((0, 1), keepdim=True)
    return fit(
        lotka_volterra, times, values, params=first_guess(seed), initial=z0, weights=weights, callback=watch,
        seed=seed, **options,
    )  # fmt: skip


def _watch(report: Report, task: str, keep: Callable[[Progress], object] | None = None) -> Callable[[Progress], None]:
    """A callback of ``fit`` that shows how far it is and lets ``keep`` see every iteration."""

    def watch(p: Progress) -> None:
        report.progress(task, p.iteration, p.total, p.loss)
        if keep is not None:
            keep(p)

    return watch


def _row(found: Fit, truth: dict[str, float]) -> Row:
    """What every fit of the equation reports; its error is the worst relative one."""
    return {
        "estimates": found.estimates,
        "error": max(abs(found.estimates[n] / v - 1) for n, v in truth.items()),
        "loss": found.loss,
        "order": found.order,
        "seconds": round(found.seconds, 2),
    }
