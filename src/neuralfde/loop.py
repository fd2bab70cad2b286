"""The only loop over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from .history import Engine

#: ``visit(n, past)`` gets what the history contributes to row ``n`` and returns the row to record and its slope.
Visit = Callable[[int, Tensor | None], tuple[Tensor | None, Tensor | None]]


def sweep(engine: Engine, indices: Iterable[int], visit: Visit) -> None:
    """Walk through ``indices``, upwards for a solution, downwards for its adjoint."""
    for n in indices:
        row, slope = visit(n, engine.recall(n))
        if row is not None:
            engine.record(n, row, slope)
        del row, slope  # or they would live until the next step has made its own
