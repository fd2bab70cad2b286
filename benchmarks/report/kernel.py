"""Whole blocks of steps in one kernel, beside CUDA graphs."""

from __future__ import annotations

from .markdown import measured, table
from .record import Row, run


def kernel() -> str:
    """Each case with both steppers in one line."""
    found = run("kernel", "training step")
    lines = []
    for r in (row for row in found["rows"] if row["stepper"] == "kernel"):
        other = next((o for o in found["rows"] if o["stepper"] == "cuda-graph" and _case(o) == _case(r)), None)
        ratio = "" if other is None else f"{other['s'] / r['s']:.1f}"
        precision = "TF32" if r["tf32"] else "float32"
        cells = [r["case"], f"{r['batch']:,}", f"{r['steps']:,}", precision, f"{1e3 * r['s']:.0f}"]
        cells += ["" if other is None else f"{1e3 * other['s']:.0f}", ratio, f"{r['peak_mib']:.0f}"]
        cells += [f"{r['gradient_error']:.0e}", "" if other is None else f"{other['gradient_error']:.0e}"]
        lines.append([*cells, f"{r['first_s']:.1f}"])
    head = ["func", "batch", "steps", "products", "kernel, ms", "CUDA graphs, ms", "faster by", "kernel, MiB"]
    head += ["gradient error", "by CUDA graphs", "first call, s"]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}"


def _case(row: Row) -> tuple[object, ...]:
    return row["case"], row["batch"], row["steps"], row["tf32"]


PLACES = {"kernel": kernel}
