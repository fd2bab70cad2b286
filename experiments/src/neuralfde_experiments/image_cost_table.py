"""The cost of the image model as a Markdown table and a figure, with the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuralfde.cli.experiment import Row

from . import tables

#: Training memory in MiB over T. MNIST is printed in GB (tab:mnist_T), Fashion-MNIST in MB (tab:fmnist_T).
PAPER_MEMORY: dict[str, dict[str, dict[int, float]]] = {
    "mnist": {
        "direct": {
            1: 1800, 5: 2200, 10: 2700, 20: 3600, 30: 4600, 40: 5500, 50: 6500, 60: 7400, 70: 8400, 100: 11200,
            200: 20700,
        },
        "adjoint": {
            1: 1800, 5: 1900, 10: 2100, 20: 2400, 30: 2500, 40: 2900, 50: 3200, 60: 3500, 70: 3900, 100: 5000,
            200: 8400,
        },
    },
    "fashion-mnist": {
        "direct": {
            1: 1600, 10: 2692, 20: 3906, 30: 5122, 40: 6336, 50: 7532, 60: 8746, 70: 9962, 100: 13606, 170: 22072,
        },
        "adjoint": {
            1: 1552, 10: 1818, 20: 2166, 30: 2510, 40: 2854, 50: 3178, 60: 3526, 70: 3870, 100: 4906, 170: 7298,
        },
    },
}  # fmt: skip
#: tab:mnist, T=20: seconds of training and of inference, MB of inference.
PAPER_TIMES = {"direct": (1.46, 0.54, 1628), "adjoint": (1.41, 0.54, 1628)}


def markdown(rows: Sequence[Row], dataset: str) -> str:
    """Training memory and its ratio to ``direct``, and the times of training and inference, over T."""
    horizons = sorted({r["T"] for r in rows})
    names = list(dict.fromkeys(r["variant"] for r in rows))
    cell = {(r["variant"], r["T"]): r for r in rows}
    device = rows[0]["device"] if rows else ""
    head = ["what", "whose", *(f"T={t}" for t in horizons)]
    body = []
    for what, field, form in _COLUMNS:
        for name in names:
            values = [_show(cell.get((name, t)), field, form) for t in horizons]
            body.append([what, name, *values])
        if field == "train_mib":
            body += _ratios(cell, names, horizons)
            body += _paper(dataset, horizons)
        if dataset == "mnist" and field in ("train_seconds", "inference_seconds"):
            at = 0 if field == "train_seconds" else 1
            for name, numbers in PAPER_TIMES.items():
                body.append(
                    [what, f"paper's table, {name}", *[f"{numbers[at]:.2f}" if t == 20 else "" for t in horizons]]
                )
    title = f"Cost of a training step, {dataset}, {device}; rows marked *paper's table* are the paper's own numbers.\n"
    return f"{title}\n{tables.markdown(head, body, numbers=len(horizons))}\n"


_COLUMNS = (
    ("training memory, MiB", "train_mib", ".0f"),
    ("training step, s", "train_seconds", ".3f"),
    ("inference memory, MiB", "inference_mib", ".0f"),
    ("inference, s", "inference_seconds", ".3f"),
)


def _show(row: Row | None, field: str, form: str) -> str:
    if row is None or row.get(field) is None:
        return "–" if row is None or "error" not in row else str(row["error"]).split(":")[0]
    return format(row[field], ".1f" if field.endswith("mib") and row[field] < 100 else form)


def _ratios(cell: dict[Any, Row], names: Sequence[str], horizons: Sequence[int]) -> list[list[str]]:
    """Training memory relative to that of ``direct``."""
    out = []
    for name in names:
        if name == "direct" or "direct" not in names:
            continue
        ratio = []
        for t in horizons:
            ours, base = (cell.get((k, t), {}).get("train_mib") for k in (name, "direct"))
            ratio.append(f"{ours / base:.3f}" if ours is not None and base else "–")
        out.append(["memory / direct", name, *ratio])
    return out


def _paper(dataset: str, horizons: Sequence[int]) -> list[list[str]]:
    """The paper's memory rows and their ratio."""
    table = PAPER_MEMORY[dataset]
    out = [
        ["training memory, MB", f"paper's table, {name}", *[f"{line[t]:.0f}" if t in line else "" for t in horizons]]
        for name, line in table.items()
    ]
    ratio = [f"{table['adjoint'][t] / table['direct'][t]:.2f}" if t in table["direct"] else "" for t in horizons]
    return [*out, ["memory / direct", "paper's table, adjoint", *ratio]]


def figure(rows: Sequence[Row], dataset: str) -> Any:
    """Memory and time of a training step over T, with the paper's memory as dashed lines."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 4.4), layout="constrained")
    left, right = picture.subplots(1, 2)
    for k, name in enumerate(dict.fromkeys(r["variant"] for r in rows)):
        for axis, field in ((left, "train_mib"), (right, "train_seconds")):
            line = sorted((r["T"], r[field]) for r in rows if r["variant"] == name and r.get(field))
            if line:
                axis.plot(*zip(*line, strict=True), marker="o", markersize=4, color=f"C{k}", label=name)
    last = max((r["T"] for r in rows), default=0)
    for name, dashes in (("direct", ":"), ("adjoint", "--")):
        line = sorted((t, m) for t, m in PAPER_MEMORY[dataset][name].items() if t <= last)
        left.plot(*zip(*line, strict=True), dashes, color="0.5", label=f"paper's table, {name} (another GPU)")
    for axis, label in ((left, "training memory, MiB"), (right, "training step, s")):
        axis.set(xscale="log", yscale="log", xlabel="T (h = 0.1)", ylabel=label)
        axis.grid(alpha=0.3, which="both", linewidth=0.5)
    picture.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    picture.suptitle(f"Image model, {dataset}, {rows[0]['device'] if rows else ''}", fontsize=11)
    return picture
