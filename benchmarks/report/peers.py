"""One training step beside torchfde and torchdiffeq."""

from __future__ import annotations

from .markdown import measured, table
from .peers_gpu import off_by
from .record import run


def peers() -> str:
    """Time, memory and gradient of each package; ours comes first."""
    found = run("peers", "perceptron, CPU")
    rows = found["rows"]
    ours, steps = rows[0]["seconds"], rows[0]["steps"]
    lines = [
        [
            f"{r['package']}, {r['gradient']}",
            r["equation"],
            f"{r['seconds']:.2f}",
            f"{r['seconds'] / ours:.1f}",
            f"{r['mib']:.1f}",
            "" if r["gradient"] == "autograd" else off_by(r),
        ]
        for r in rows
    ]
    head = [f"{steps} steps", "equation", "seconds", "/ ours", "MiB", "gradient error"]
    versions = f"torchfde {found['torchfde']}; torchdiffeq {found['torchdiffeq']}"
    return f"{table(head, lines, right=2)}\n\n{versions}. {measured(found)}"


PLACES = {"peers": peers}
