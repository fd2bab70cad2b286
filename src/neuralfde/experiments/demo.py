"""A tour in about a minute: why exact gradients matter, an equation found from data, and one page that shows it.

First the gradients of the paper's adjoint and of the exact one are compared with direct differentiation. Then four
parameters of a fractional predator-prey equation are fitted with both: to clean data, and with a model that is not
quite right (its order is assumed to be 0.9 and is 0.6), where a wrong gradient stops short of the best fit. Then the
order is found as well, from noisy data, with 95 % intervals. Last, a series of lynx and hare pelts is forecast. A
picture and a self-contained ``report.html`` are left in the output folder.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch

import neuralfde
from neuralfde.fitting import Adam, Progress, fit

from . import lotka_volterra as lv
from . import lynx_hare
from .runtime import FolderReport, Report, Row, option

EXAMPLES = ("neuralfde demo", "neuralfde demo --out out/tour --no-lynx", "neuralfde demo --epochs 5 --json")
COLUMNS = ("case", "a", "b", "c", "d", "order", "error", "seconds")


@dataclass(frozen=True)
class Config:
    """Settings of the tour."""

    epochs: int = option(30, "passes over the trajectories, for each kind of gradient")
    trajectories: int = option(80, "how many trajectories are measured")
    noise: float = option(0.01, "noise of the data in which the order is unknown")
    lynx: bool = option(True, "fit the lynx and hare series too")
    size: str = option("full", "full, or tiny for a trial of a few seconds")
    seed: int = option(3, "random seed")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """Rows of all parts; the picture and the page are made where the report keeps figures."""
    report = Report() if report is None else report
    began = time.perf_counter()
    report.message("1. Gradients: exact and the paper's, against direct differentiation")
    orders = (0.3, 0.5, 0.7, 0.9)
    for k, order in enumerate(orders):
        report.case(f"order {order}", lambda o=order: gradient_errors(o, config.seed))  # type: ignore[misc]
        report.progress("gradients", k + 1, len(orders))
    shown = [r for r in report.rows if r.get("part") == "gradient"]
    report.table("relative error of the gradient", shown, ("true_order", "exact_error", "paper_error"))
    report.message(f"2. Four parameters from clean data: {config.epochs} epochs of Adam, exact and paper gradients")
    fits: dict[str, Any] = {}
    for adjoint in ("exact", "paper"):
        report.case(f"clean: {adjoint}", lambda a=adjoint: _recover(config, a, report, fits))  # type: ignore[misc]
    report.message("   The same with a model that is not quite right: the order is taken to be 0.9 and is 0.6")
    for how in ("best fit", "exact", "paper"):
        report.case(f"wrong: {how}", lambda h=how: _wrong_model(config, h, report, fits))  # type: ignore[misc]
    report.message("3. Parameters and order from noisy data, with intervals")
    report.case("unknown order", lambda: _unknown_order(config, report, fits))
    if config.lynx:
        report.message("4. Lynx and hare, fitted to 1900-1914 and forecast to 1920")
        for k, kind in enumerate(("integer", "fractional")):
            report.case(f"{kind} order", lambda a=kind: _lynx(a, report, fits))  # type: ignore[misc]
            report.progress("lynx and hare", k + 1, 2)
    rows = report.rows
    seconds = time.perf_counter() - began
    exact = next(r for r in rows if r["case"] == "clean: exact")
    report.verdict("exact gradients recover the parameters within 5 %", exact["error"] <= 0.05)
    folder = getattr(report, "folder", None) or (report.out if isinstance(report, FolderReport) else None)
    if folder is not None:
        from .page import write_page

        path = write_page(folder, rows, fits, seconds)
        report.message(f"open {path} in a browser")
    return rows


def gradient_errors(order: float, seed: int) -> Row:
    """Relative errors of two gradients of a trajectory loss in [a, b, c, d], against direct differentiation."""
    setting = lv.Config(trajectories=16, order=order, horizon=2.0, steps=40, samples=10, seed=seed)
    times, values, z0 = lv.measure(setting, seed)
    found = {}
    for adjoint in ("direct", "exact", "paper"):
        guess = tuple(torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.7, 0.7, 0.7, 0.4))
        states = neuralfde.fdeint(lv.lotka_volterra, z0, times, order, steps=40, adjoint=adjoint, args=guess)
        (states - values).square().mean().backward()
        found[adjoint] = torch.stack([g.grad for g in guess if g.grad is not None])
    scale = found["direct"].norm()
    errors = {a: float((found[a] - found["direct"]).norm() / scale) for a in ("exact", "paper")}
    return {"part": "gradient", "true_order": order, "exact_error": errors["exact"], "paper_error": errors["paper"]}


def _recover(config: Config, adjoint: str, report: Report, fits: dict[str, Any]) -> Row:
    setting = lv.Config(
        adjoint=adjoint, epochs=config.epochs, trajectories=config.trajectories, seed=config.seed, order=0.6,
        intervals="none",
    )  # fmt: skip
    path: list[list[float]] = []
    watcher = _Watcher(report, f"clean: {adjoint}", path)
    found = fits[adjoint] = lv.estimate(setting, config.seed, watcher, f"clean: {adjoint}")
    fits[f"{adjoint} path"] = path
    errors = [abs(found.estimates[n] / v - 1) for n, v in lv.TRUTH.items()]
    return {
        "part": "recovery",
        "estimates": found.estimates,
        "error": max(errors),
        "loss": found.loss,
        "order": found.order,
        "seconds": round(found.seconds, 2),
    }


def _wrong_model(config: Config, how: str, report: Report, fits: dict[str, Any]) -> Row:
    """All trajectories in every step of Adam, or the minimum of the same loss by Levenberg-Marquardt."""
    times, values, z0 = lv.measure(lv.Config(order=0.6, trajectories=20, seed=config.seed), config.seed)
    path: list[float] = []
    key = f"wrong: {how}"

    def watch(p: Progress) -> None:
        path.append(p.loss)
        report.progress(key, p.iteration, p.total, p.loss)

    best = how == "best fit"
    found = fit(
        lv.lotka_volterra,
        times,
        values,
        params=lv.first_guess(config.seed),
        order=0.9,
        initial=z0,
        weights=1 / values.square().mean((0, 1), keepdim=True),
        optimiser="lm" if best else Adam(epochs=10 * config.epochs, lr=0.02),
        intervals=None,
        callback=watch,
        steps=10,
        method="predictor",
        adjoint="exact" if best else how,
    )
    fits[key] = path
    if best:
        fits["best fit"] = found.estimates
    errors = [abs(found.estimates[n] / fits["best fit"][n] - 1) for n in lv.TRUTH] if not best else []
    return {
        "part": "wrong model",
        "estimates": found.estimates,
        "loss": found.loss,
        "order": found.order,
        "error": max(errors, default=0.0),
        "seconds": round(found.seconds, 2),
    }


class _Watcher(Report):
    """Passes progress on and keeps the estimates after every epoch."""

    def __init__(self, report: Report, key: str, path: list[list[float]]) -> None:
        super().__init__()
        self.report, self.key, self.path = report, key, path

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        self.report.progress(task, done, total, loss, text)

    def checkpoint(self, key: str, state: Any) -> None:
        self.path.append(state["free"].tolist())


def _unknown_order(config: Config, report: Report, fits: dict[str, Any]) -> Row:
    setting = lv.Config(
        optimiser="lm", learn_order=True, noise=config.noise, trajectories=8, horizon=4.0, samples=16, steps=64,
        method="abm", seed=config.seed, profile=True,
    )  # fmt: skip
    if config.size == "tiny":
        setting = dataclasses.replace(setting, horizon=2.0, samples=8, steps=8, profile=False)
    found = fits["order"] = lv.estimate(setting, config.seed, _Watcher(report, "", []), "parameters and order")
    real = {**lv.TRUTH, "order": setting.order}
    return {
        "part": "order",
        "estimates": found.estimates,
        "truth": real,
        "intervals": {n: list(v) for n, v in found.intervals.items()},
        "error": max(abs(found.estimates[n] / v - 1) for n, v in real.items()),
        "order": found.order,
        "identifiable": found.identifiable,
        "seconds": round(found.seconds, 2),
    }


def _lynx(kind: str, report: Report, fits: dict[str, Any]) -> Row:
    years, pelts = lynx_hare.load()
    setting = dataclasses.replace(lynx_hare.Config(), steps_per_year=5)
    found = fits[kind] = lynx_hare.fit_until(1914, kind == "fractional", setting)
    late = years > 1914
    error = found.predict(years[late] - 1900)[:, 0] - pelts[late].log()
    return {
        "part": "lynx",
        "order": found.order,
        "train_rmse_log": found.loss**0.5,
        "held_out_rmse_log": float(error.square().mean().sqrt()),
        "seconds": round(found.seconds, 2),
    }
