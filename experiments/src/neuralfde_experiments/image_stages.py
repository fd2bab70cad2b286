"""What exact gradients gain: three fractional stages with weights that change with time, trained with three gradients.

A network of three stages (28², 14² and 7² pixels, channels doubled from one to the next), each a fractional equation
whose right-hand side is a convolution, instance norm and the transposed convolution (Ruthotto and Haber's parabolic
network), with separate weights for each piece of time; T=1, h=0.1. The exact adjoint, direct differentiation and the
paper's adjoint start from the same weights and see the same batches. Every epoch is tested, and every few epochs the
gradient is compared with the true one, stage by stage.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuralfde.cli.experiment import ADJOINTS, Report, Row, option, words

from . import images, tables
from .data.images import ImageData, load_images
from .image_stages_training import StageTrainer, step_mib
from .processes import Processes

PROCESSES = True
SUMMARY = "three fractional stages, trained with three kinds of gradients"
EXAMPLES = (
    "neuralfde run image-stages                the digits, on a CPU",
    "neuralfde run image-stages --dataset fashion-mnist --data DIR --capture",
    "neuralfde run image-stages --dataset mnist --data DIR --order 0.7",
)
COLUMNS = ("adjoint", "dataset", "seed", "test_accuracy", "finite", "step_mib", "seconds")
COMMON: dict[str, Any] = {
    "schedule": "one-cycle", "t": 1.0, "step": 0.1, "coarse": "", "order": 0.6, "warmup": 0.2, "floor": 0.0,
    "views": 1, "agreement": 0.0, "smoothing": 0.05, "weight_decay": 0.05,
}  # fmt: skip
LARGE: dict[str, Any] = {**COMMON, "epochs": 25, "batch_size": 256, "lr": 3e-3, "ema": 0.998, "width": 24, "pad": 2}
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        **COMMON, "epochs": 15, "batch_size": 64, "lr": 4e-3, "ema": 0.95, "width": 8, "augment": "affine", "pad": 1,
        "threads": 1, "target": 95.0,
    },
    "mnist": {**LARGE, "augment": "affine+crop", "target": 99.5},
    "fashion-mnist": {**LARGE, "augment": "flip+crop", "target": 93.5},
}  # fmt: skip
#: The targets of exact gradients: points of accuracy below direct differentiation, and share of its memory. Between
#: two trainings whose gradients agree to rounding, 355 test images (digits) leave a standard error of 1 point.
NEAR, SMALL = {"digits": 2.0, "mnist": 0.3, "fashion-mnist": 0.3}, 0.35


@dataclass(frozen=True)
class Config(images.Config):
    """The settings of ``images``, and what is compared."""

    adjoint: str = option(
        "exact,direct,paper",
        "gradients: exact, direct or paper; several by commas",
        reads=words(ADJOINTS, ","),
    )
    expansion: int = option(2, "channels between the convolutions of a field, for each channel of the state", least=1)
    pieces: int = option(10, "sets of weights of a field, each for an equal part of the time", least=1)
    cosine_every: int = option(5, "epochs between two comparisons of gradients; 0: none")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each adjoint and seed: test accuracy, memory, time and the curve over the epochs."""
    report = Report() if report is None else report
    filled = images.fill(config, PRESETS)
    data = load_images(filled.dataset, filled.data or None, download=filled.download)
    each = [dataclasses.replace(filled, adjoint=name.strip()) for name in config.adjoint.split(",")]
    rows: list[Row] = []
    with Processes.from_environment(filled.device) as processes, images.cpu_threads(filled.threads):
        report = processes.quieten(report)
        for seed in range(config.seed, config.seed + config.repeats):
            for chosen in each:
                key = f"{chosen.adjoint}, seed {seed}"

                def compute(chosen: Config = chosen, key: str = key, seed: int = seed) -> Row:
                    memory = {"step_mib": step_mib(chosen, data, processes)}
                    return memory | train(chosen, data, seed, report, processes, key)

                rows.append(report.case(key, compute))
    tables.keep_table(report, f"image-stages-{config.dataset}", markdown(rows) + "\n")
    if report.wants_figures:
        report.figure(f"image-stages-{config.dataset}", figure(rows))
    if config.target > 0 or (config.epochs == 0 and config.limit == 0):
        judge(report, rows, filled.target, NEAR[filled.dataset])
    return rows


def train(config: Config, data: ImageData, seed: int, report: Report, processes: Processes, key: str) -> Row:
    """Train one model with one kind of gradients."""
    trainer = StageTrainer(config, data, seed, processes)
    trainer.fit(report, key)
    return row_of(trainer, seed)


def row_of(trainer: StageTrainer, seed: int) -> Row:
    """The row of a finished training."""
    c = trainer.config
    told = {"adjoint": c.adjoint, "dataset": c.dataset, "order": c.order, "seed": seed}
    return {**told, **trainer.result(), "curve": trainer.curve, "settings": dataclasses.asdict(c)}


def mean(rows: Sequence[Row], adjoint: str, field: str) -> float | None:
    """The mean over the seeds of an adjoint; None if there are none, or if a value is missing."""
    found = [r.get(field) for r in rows if r["adjoint"] == adjoint]
    numbers = [x for x in found if x is not None]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(found) else None


def judge(report: Report, rows: Sequence[Row], target: float, near: float) -> None:
    """Report whether exact gradients are as good as direct ones up to ``near`` points, with less memory."""
    exact, direct = (mean(rows, name, "test_accuracy") for name in ("exact", "direct"))
    if exact is not None:
        report.verdict(f"exact: at least {target:g} %", exact >= target, f"mean {exact:.2f} %")
    if exact is not None and direct is not None:
        report.verdict(f"within {near} of direct", exact >= direct - near, f"{exact - direct:+.2f}")
    memory = [mean(rows, name, "step_mib") for name in ("exact", "direct")]
    if memory[0] and memory[1]:
        share = memory[0] / memory[1]
        report.verdict(f"at most {SMALL} of direct's memory", share <= SMALL, f"{share:.2f}")


def markdown(rows: Sequence[Row]) -> str:
    """For each set, order and adjoint: accuracy over the seeds, memory and time, and the first and last cosines."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        groups.setdefault((r["dataset"], r["order"], r["adjoint"]), []).append(r)
    body = []
    for (dataset, order, adjoint), own in groups.items():
        accuracies = [r["test_accuracy"] for r in own if r["test_accuracy"] is not None]
        shown = f"{statistics.fmean(accuracies):.2f}" if accuracies else "–"
        shown += f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
        lost = sum(not r["finite"] for r in own)
        shown += f"; {lost} not finite" if lost else ""
        mib = mean(own, adjoint, "step_mib")
        base = mean([r for r in rows if (r["dataset"], r["order"]) == (dataset, order)], "direct", "step_mib")
        share = f"{mib / base:.2f}" if mib and base else "–"
        cosines = [c["cosines"].values() for c in own[0]["curve"] if c.get("cosines")]
        ends = [" ".join("–" if x is None else f"{x:.2f}" for x in c) for c in (*cosines[:1], *cosines[1:][-1:])]
        body.append(
            [
                dataset,
                f"{order:g}",
                f"`{adjoint}`",
                len(own),
                f"{own[0]['epochs']:g}",
                shown,
                f"{mib:.0f}" if mib else "–",
                share,
                *[*ends, "–", "–"][:2],
            ]
        )
    head = ("images", "β", "adjoint", "seeds", "epochs", "test accuracy, %", "training step, MiB", "/ direct",
            "cosines, first epoch", "cosines, last")  # fmt: skip
    return tables.markdown(head, body, numbers=7)


def figure(rows: Sequence[Row]) -> Any:
    """Test accuracy over the epochs, and cosines of the gradients; thin lines are further seeds."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = picture.subplots(1, 2)
    draw_accuracy(left, rows)
    for r in {r["adjoint"]: r for r in reversed(rows) if r["adjoint"] != "direct"}.values():
        points = [c for c in r["curve"] if c.get("cosines")]
        for name, line in zip(points[0]["cosines"] if points else (), ("-", "--", "-.", ":", "-"), strict=False):
            epochs, values = [c["epoch"] for c in points], [c["cosines"][name] for c in points]
            label = f"{r['adjoint']}: {name}"
            right.plot(epochs, values, line, color=colour_of(r), label=label, marker=".", linewidth=1.2)
    right.axhline(0, color="grey", linewidth=0.5)
    right.set(xlabel="epoch", ylabel="cosine with the true gradient")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend(frameon=False, fontsize=7, ncols=2)
    picture.suptitle(f"Three fractional stages, {rows[0]['dataset']}, β = {rows[0]['order']:g}", fontsize=11)
    return picture


def colour_of(row: Row) -> str:
    """One colour for each adjoint."""
    return f"C{('exact', 'paper', 'direct').index(row['adjoint'])}"


def draw_accuracy(axis: Any, rows: Sequence[Row]) -> None:
    """Test accuracy over the epochs, a colour for each adjoint; a cross where the loss was not finite."""
    names = list(dict.fromkeys(r["adjoint"] for r in rows))
    labelled: set[str] = set()
    for r in rows:
        name, colour = r["adjoint"], colour_of(r)
        told = [c for c in r["curve"] if "test_accuracy" in c]
        epochs, values = [c["epoch"] for c in told], [c["test_accuracy"] for c in told]
        first = name not in labelled
        labelled.add(name)
        style = {"linestyle": "--", "zorder": 3} if name == "direct" and len(names) > 1 else {}
        axis.plot(epochs, values, color=colour, linewidth=1.8 if first else 0.8, label=name if first else None, **style)
        if not r["finite"] and epochs:
            axis.plot(epochs[-1], values[-1], "x", color=colour)
    axis.set(xlabel="epoch", ylabel="test accuracy, %")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=9)
