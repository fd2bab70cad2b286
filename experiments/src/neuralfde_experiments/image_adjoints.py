"""What exact gradients gain: one training with the paper's adjoint, with exact gradients, and with a learned order.

All three start from the same weights and see the same batches; they differ only in the gradient. The third also trains
β, for which the paper's adjoint has no gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuralfde.cli.experiment import Report, Row, option, words

from . import images, tables
from .data.images import load_images
from .processes import Processes

PROCESSES = True
SUMMARY = "one training with three kinds of gradients"
EXAMPLES = (
    "neuralfde run image-adjoints                       the digits, on a CPU",
    "neuralfde run image-adjoints --dataset mnist --data DIR --epochs 3",
)
COLUMNS = ("variant", "seed", "test_accuracy", "best_epoch", "order", "seconds")
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"adjoint": "paper"},
    "exact": {"adjoint": "exact"},
    "exact, order learned": {"adjoint": "exact", "learn_order": True},
}


@dataclass(frozen=True)
class Config(images.Config):
    """The settings of ``images``; ``adjoint`` and ``learn_order`` are ignored, since they are what is compared."""

    variants: str = option(
        "", f"which of {'; '.join(VARIANTS)}, joined by semicolons; empty: all", reads=words(tuple(VARIANTS), ";")
    )


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each variant and seed, with its curve over the epochs."""
    report = Report() if report is None else report
    names = [n.strip() for n in config.variants.split(";")] if config.variants else list(VARIANTS)
    filled = images.fill(config)
    data = load_images(filled.dataset, filled.data or None, download=filled.download)
    rows: list[Row] = []
    with Processes.from_environment(filled.device) as processes, images.cpu_threads(filled.threads):
        report = processes.quieten(report)
        for seed in range(config.seed, config.seed + config.repeats):
            for name in names:
                chosen, key = dataclasses.replace(filled, **VARIANTS[name]), f"{name}, seed {seed}"

                def compute(chosen: images.Config = chosen, key: str = key, seed: int = seed, name: str = name) -> Row:
                    return {"variant": name, **images.train(chosen, data, seed, report, processes, key)}

                rows.append(report.case(key, compute))
    tables.keep_table(report, f"image-adjoints-{config.dataset}", markdown(rows))
    if report.wants_figures:
        report.figure(f"image-adjoints-{config.dataset}", figure(rows))
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The last epoch of every variant and seed."""
    body = []
    for r in rows:
        last = r["curve"][-1]
        shown = [f"{last['loss']:.4f}", f"{last['accuracy']:.2f}", f"{r['test_accuracy']:.2f}", f"{r['order']:.3f}"]
        body.append([r["variant"], r["seed"], *shown, f"{r['seconds']:.1f}"])
    head = ("variant", "seed", "loss", "training accuracy, %", "test accuracy, %", "β", "s")
    return tables.markdown(head, body, numbers=6) + "\n"


def figure(rows: Sequence[Row]) -> Any:
    """Loss and accuracy against epochs and against wall time; thin lines are further seeds."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 6.5), layout="constrained")
    axes = picture.subplots(2, 2, sharey="row")
    names = list(dict.fromkeys(r["variant"] for r in rows))
    labelled: set[str] = set()
    for r in rows:
        curve, first = r["curve"], r["variant"] not in labelled
        labelled.add(r["variant"])
        judged = "held_out_accuracy" if "held_out_accuracy" in curve[0] else "accuracy"
        for i, field in enumerate(("loss", judged)):
            for j, over in enumerate(("epoch", "seconds")):
                axes[i, j].plot(
                    [c[over] for c in curve],
                    [c[field] for c in curve],
                    color=f"C{names.index(r['variant'])}",
                    linewidth=1.6 if first else 0.7,
                    label=r["variant"] if first and not i and not j else None,
                )
    held = "held_out_accuracy" in rows[0]["curve"][0]
    axes[0, 0].set(ylabel="training loss")
    axes[1, 0].set(ylabel=f"{'held-out' if held else 'training'} accuracy, %", xlabel="epoch")
    axes[1, 1].set(xlabel="wall time, s")
    axes[0, 0].legend(frameon=False, fontsize=9)
    for axis in axes[:, 0]:
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes.flat:
        axis.grid(alpha=0.3, linewidth=0.5)
    picture.suptitle(f"The same training with different gradients: {rows[0]['dataset']}", fontsize=11)
    return picture
