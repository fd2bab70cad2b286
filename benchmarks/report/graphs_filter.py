"""What a training makes of the filter of F-GRAND-l, and what changes of the training do to that."""

from __future__ import annotations

from .markdown import measured, table
from .record import run


def filters() -> str:
    """Validation accuracies and shares of own features, with each change of the training."""
    found = run("graphs-filter", "cora")
    accuracies, shares = ("best", "other", "after"), ("own early", "own late")
    lines = [
        [r["training"], *(f"{r[k]:.1f}" for k in accuracies), *(f"{100 * r[k]:.0f}" for k in shares)]
        for r in found["rows"]
    ]
    s = found["settings"]
    head = ["training", "best epoch, %", "by halves, %", "from the best on, %"]
    head += [f"own features after {s['early']} epochs, %", f"after {s['epochs']}, %"]
    return f"{table(head, lines, 1)}\n\n{measured(found)}"


PLACES = {"graphs-filter": filters}
