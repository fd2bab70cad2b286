"""Tables and figures of the image experiments from their JSON files; called by ``images_gpu.py --parts render``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuralfde.experiments import image_adjoints
from neuralfde.experiments.image_cost_table import figure, markdown

Row = dict[str, Any]

#: tab:mnist and the text of the paper's section on images: test error in per cent with its adjoint and direct.
PAPER = {"mnist": (0.36, 0.39), "fashion-mnist": (7.95, 7.65)}
TARGET = {"mnist": 0.33, "fashion-mnist": 7.0}
NAMES = {"mnist": "MNIST, T=20, β=0.5", "fashion-mnist": "Fashion-MNIST, T=1, β=0.3"}


def probe(found: Row) -> str:
    """How fast the ways to train are."""
    columns = [k for k in found["ways"][0] if k != "way"]
    lines = ["| way | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for r in found["ways"]:
        cells = [f"{r[c]:.4g}" if isinstance(r.get(c), float) else str(r.get(c, r.get("error", "–"))) for c in columns]
        lines.append(f"| {r['way']} | " + " | ".join(cells) + " |")
    lines += ["", f"fastest: {found.get('fastest')}; overlap of all trainings: {found.get('overlap', 0):.2f}"]
    lines += [f"{k}: {1000 * v:.2f} ms a step" for k, v in found.get("stages", {}).items()]
    return "\n".join(lines) + "\n"


def accuracy(found: Row) -> str:
    """Test errors of the seeds and their mean, beside the paper's."""
    lines = [
        "| set | seeds | test error, % | mean, % | target | paper: adjoint, direct | epochs | minutes, all at once |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in NAMES:
        rows = sorted((r for r in found["rows"] if r["dataset"] == name), key=lambda r: r["seed"])
        if rows:
            errors = [r["test_error"] for r in rows]
            lines.append(
                f"| {NAMES[name]} | {len(rows)} | {', '.join(f'{e:.2f}' for e in errors)} | "
                f"{statistics.mean(errors):.2f} | ≤ {TARGET[name]:.2f} | {PAPER[name][0]:.2f}, {PAPER[name][1]:.2f} | "
                f"{statistics.mean(r['epochs'] for r in rows):.1f} | {max(r['seconds'] for r in rows) / 60:.1f} |"
            )
    return "\n".join(lines) + "\n"


def recipes(found: Row) -> str:
    """Recipes for Fashion-MNIST on training images held out."""
    lines = ["| recipe | epochs | training loss | held-out accuracy, % | held-out loss |", "| --- |" + " ---: |" * 4]
    for r in found["rows"]:
        judged = f"{r['held_out_accuracy']:.2f} | {r['held_out_loss']:.4f}"
        lines.append(f"| {r['recipe']} | {r['epoch']} | {r['loss']:.4f} | {judged} |")
    return "\n".join(lines) + "\n"


def cost(rows: Sequence[Row], dataset: str) -> str:
    """Time and memory over T, without horizons that were left out altogether."""
    return markdown(measured(rows), dataset)


def measured(rows: Sequence[Row]) -> list[Row]:
    """Rows of horizons that have any figure, by horizon."""
    seen = {r["T"] for r in rows if "train_seconds" in r}
    return sorted((r for r in rows if r["T"] in seen), key=lambda r: r["T"])


def curves(found: Row) -> Any:
    """Training loss and accuracy of every run over the epochs."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes = picture.subplots(1, 2)
    for axis, (field, label) in zip(
        axes, (("loss", "training loss"), ("accuracy", "training accuracy, %")), strict=True
    ):
        for r in found["rows"]:
            style = {"color": "C0" if r["dataset"] == "mnist" else "C1", "linewidth": 1.0}
            name = NAMES[r["dataset"]] if r["seed"] == 0 else None
            axis.plot([c["epoch"] for c in r["curve"]], [c[field] for c in r["curve"]], label=name, **style)
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3, linewidth=0.5)
    axes[0].legend(frameon=False, fontsize=9)
    return picture


def render(out: Path, results: Path, label: str = "h200") -> None:
    """Copy the JSON files of a run to the results, with a table and a figure of each."""
    results.mkdir(parents=True, exist_ok=True)
    for path in sorted(out.glob("*.json")):
        found = json.loads(path.read_text())
        at = found["machine"]
        on = f"Measured on {at['device']}, torch {at['torch']}, {at['date']}."
        picture = None
        stem = "images" if path.stem == "images" else f"image-{path.stem}"
        if path.stem == "probe":
            made = probe(found)
        elif path.stem == "validate":
            made = recipes(found)
        elif path.stem == "images":
            made, picture = accuracy(found), curves(found)
        elif path.stem == "adjoints":
            stem = "image-adjoints-mnist"
            made, picture = image_adjoints.markdown(found["rows"]), image_adjoints.figure(found["rows"])
        else:
            dataset = path.stem.removeprefix("cost-")
            rows = measured(found["rows"])
            made, picture = markdown(rows, dataset), figure(rows, dataset)
        (results / f"{stem}-{label}.json").write_text(path.read_text())
        (results / f"{stem}-{label}.md").write_text(f"{made}\n{on}\n")
        if picture is not None:
            picture.savefig(results / f"{stem}-{label}.png", dpi=130)
        print(f"{stem}-{label}: written to {results}")
