"""Long horizons: time, memory and gradient error over the number of steps."""

from __future__ import annotations

from typing import Any

from .markdown import measured, table
from .record import Row, run

GPU, CPU = "image model, GPU", "perceptron, CPU"


def horizons(part: str) -> str:
    """A row for each adjoint, storage and horizon, the shortest horizon first."""
    found, lines = run("horizons", part), []
    for r in sorted(found["rows"], key=lambda r: r["steps"]):
        cells = [f"{r[k]:.3f}" if r[k] is not None else "" for k in ("forward_s", "backward_s", "total_s")]
        peak = "" if r["peak_mib"] is None else f"{r['peak_mib']:.0f}"
        error = "" if r["gradient_error"] is None else f"{r['gradient_error']:.1e}"
        note = f"{r['note']}; earlier run" if r.get("earlier") else r["note"]
        lines.append([r["name"], f"{r['t']:g}", r["steps"], *cells, peak, error, note])
    head = ["case", "T", "N", "forward s", "backward s", "total s", "peak MiB", "gradient error", ""]
    return "\n\n".join([table(head, lines), *_bare(found), measured(found)])


def _bare(found: Row) -> list[str]:
    """What no solver can be faster than, where it was measured."""
    each = [f"{name} " + ", ".join(f"{k} {v:.3f} ms" for k, v in own.items()) for name, own in found["bare"].items()]
    return [f"The bare kernels of a step: {'; '.join(each)}."] if each else []


def figure() -> Any:
    """Time and memory over N, with the bare kernels."""
    from matplotlib.figure import Figure

    found = run("horizons", GPU)
    picture = Figure(figsize=(8.6, 5.2))
    axes = picture.subplots(1, 2)
    # the lines of one problem: another order or precision is not one of them
    rows = [r for r in found["rows"] if r["total_s"] and not r.get("double") and "Fashion" not in r["name"]]
    for k, name in enumerate(dict.fromkeys(r["name"] for r in rows)):
        for axis, key in zip(axes, ("total_s", "peak_mib"), strict=True):
            points = sorted((r["steps"], r[key]) for r in rows if r["name"] == name and r[key])
            if points:
                style = f"C{k % 10}{'os^'[k // 10]}-"
                axis.loglog(*zip(*points, strict=True), style, label=name, markersize=4)
    steps = sorted({r["steps"] for r in rows})
    for name, own in found["bare"].items():
        limit = [n * sum(own.values()) * 1e-3 for n in steps]
        line = "--" if name == "eager" else ":"
        axes[0].loglog(steps, limit, line, color="#7d838d", label=f"bare kernels ({name})")
    for axis, label in zip(axes, ("seconds a training step", "peak memory, MiB"), strict=True):
        axis.set_xlabel("steps N")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    picture.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8, frameon=False)
    picture.tight_layout(rect=(0, 0.2, 1, 1))
    return picture


PLACES = {"horizons-gpu": lambda: horizons(GPU), "horizons-cpu": lambda: horizons(CPU)}
FIGURES = {"horizons.png": ("horizons", figure)}
