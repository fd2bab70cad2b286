"""Cost of the image model over the horizon, and what gradients change in a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import paper
from .markdown import measured, table
from .record import Row, rows, run

SETS = ("mnist", "fashion-mnist")
#: Peak of a training step of torchfde's example network by direct differentiation on an H200, batches of 128, in MiB.
TORCHFDE_DIRECT = {20: 2035, 200: 19154}


def measured_horizons(found: Sequence[Row]) -> list[Row]:
    """Rows of horizons that have any figure, by horizon."""
    seen = {r["T"] for r in found if "train_seconds" in r}
    return sorted((r for r in found if r["T"] in seen), key=lambda r: r["T"])


def cost(found: Sequence[Row], dataset: str) -> str:
    """Time and memory over T, without horizons that were left out altogether."""
    return paper.image_cost_table(measured_horizons(found), dataset)


def cost_of(dataset: str) -> str:
    found = run("images-cost", dataset)
    absent = sorted(set(paper.IMAGE_MEMORY[dataset]["direct"]) - {r["T"] for r in found["rows"]})
    note = f" Not measured: T = {', '.join(map(str, absent))}." if absent else ""
    earlier = sorted({r["T"] for r in found["rows"] if r.get("earlier")})
    note += f" From an earlier run: T = {', '.join(map(str, earlier))}." if earlier else ""
    _, _, body = cost(found["rows"], dataset).partition("\n\n")  # its title is told on the page
    return f"{body.strip()}\n\n{measured(found)}{note}"


def direct(found: Sequence[Row]) -> str:
    """Memory of direct differentiation, ours and torchfde's, for the same network."""
    lines = []
    for r in found:
        theirs = TORCHFDE_DIRECT.get(r["T"]) if r["batch_size"] == 128 else None
        lines.append([r["batch_size"], r["T"], f"{r['train_mib']:.0f}", theirs or "–"])
    return table(["images in a batch", "T", "`direct` here, MiB", "torchfde's, MiB"], lines, right=0)


def ways(found: Row) -> str:
    """Seconds of a training step for each way to run the same training."""
    lines = []
    for r in found["rows"]:
        cells = [
            [f"{1000 * r[f'{s}, s']:.2f}", f"{r[f'{s}, loss']:.3f}"] if f"{s}, s" in r else ["–", "–"] for s in SETS
        ]
        lines.append([r["way"], *cells[0], *cells[1], r["setting up, s"]])
    head = [
        "way",
        "MNIST, ms",
        "loss of the first steps",
        "Fashion-MNIST, ms",
        "loss of the first steps",
        "setting up, s",
    ]
    stages = ", ".join(f"{1000 * s:.1f} ms ({name})" for name, s in found.get("stages", {}).items())
    once = f"All trainings at once do {found.get('overlap', 1):.2f} times the work in the same time."
    return f"{table(head, lines, right=1)}\n\nWith the fastest way a step takes: {stages}. {once}"


def smoke(found: Sequence[Row]) -> str:
    """A short training in several ways."""
    lines = []
    for r in found:
        numbers = [f"{r['loss']:.4f}", f"{r['accuracy']:.2f}", f"{r['seconds']:.1f}"] if "loss" in r else ["–"] * 3
        lines.append([r["way"], "out of time" if r["status"] is None else r["status"], *numbers, r["log files"] or ""])
    head = ["way", "exit status", "loss", "training accuracy, %", "s", "TensorBoard files"]
    return table(head, lines, right=1)


def gradients(dataset: str) -> str:
    """The same training with the paper's gradients, with exact ones, and with the order learned."""
    found = run("images-gradients", dataset)
    return f"{paper.gradients_table(found['rows']).strip()}\n\n{measured(found)}"


def longest() -> str:
    """The longest horizon of the image model whose exact training step was timed."""
    every = [r for name in SETS for r in rows("images-cost", name)]
    return f"T={max(r['T'] for r in every if r['variant'] == 'exact' and r.get('train_seconds')):g}"


def placed(part: str, made: Any) -> str:
    """A table of a part, with its machine."""
    return f"{made}\n\n{measured(run('images-cost', part))}"


PLACES = {
    "images-cost-mnist": lambda: cost_of("mnist"),
    "images-cost-fashion-mnist": lambda: cost_of("fashion-mnist"),
    "images-direct": lambda: placed("direct", direct(rows("images-cost", "direct"))),
    "images-ways": lambda: placed("ways", ways(run("images-cost", "ways"))),
    "images-short": lambda: placed("short trainings", smoke(rows("images-cost", "short trainings"))),
    "images-gradients-digits": lambda: gradients("digits"),
    "images-gradients-mnist": lambda: gradients("mnist"),
    "longest-horizon": longest,
}
FIGURES = {
    **{
        f"images-cost-{s}.png": ("images-cost", lambda s=s: paper.image_cost_figure(rows("images-cost", s), s))
        for s in SETS
    },
    **{
        f"images-gradients-{s}.png": (
            "images-gradients",
            lambda s=s: paper.gradients_figure(rows("images-gradients", s)),
        )
        for s in ("digits", "mnist")
    },
}
