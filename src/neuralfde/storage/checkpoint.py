"""No stored rows: the state of the history is kept now and then, and rows between are computed again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..base.checks import whole
from ..errors import InputError
from .base import Storage, Tape


@dataclass(frozen=True)
class Checkpoint(Storage):
    """Keep the fixed-size state of the history at the start of each segment; recompute one segment at a time.

    With a state of k rows, N steps take about ``√(2kN)`` rows of memory and one more evaluation of ``func`` a step:
    segments shrink towards the end, because the backward pass meets the last segment while every kept state is still
    there, and each segment before it finds one state less.

    Args:
        budget: bytes for kept states and the rows of one segment; default: as few as the segments above need.
        every: one segment length for all, in steps, in place of ``budget``.
    """

    budget: int | None = None
    every: int | None = None
    recomputes = True

    def __post_init__(self) -> None:
        if self.budget is not None and self.every is not None:
            raise InputError("Checkpoint takes budget= (bytes) or every= (steps), not both.")
        for name in ("budget", "every"):
            if (value := getattr(self, name)) is not None:
                whole(f"Checkpoint.{name}", value)

    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tape:
        """See ``Storage``; rows are computed again."""
        raise NotImplementedError

    def starts(self, count: int, state_bytes: int, row_bytes: int, block: int) -> list[int]:
        """The first step of each segment; segments are whole blocks of the history."""
        if self.every is not None:
            return list(range(0, count, -(-self.every // block) * block))
        need = least_budget(count, state_bytes, row_bytes, block)
        if self.budget is not None and self.budget < need:
            raise InputError(
                f"Checkpoint(budget={self.budget}): {count - 1} steps need at least {need} bytes "
                f"(a kept state takes {state_bytes}, a row {row_bytes}). Raise the budget, or use storage='host'."
            )
        budget = need if self.budget is None else self.budget
        found = [0]
        while (last := found[-1]) < count:
            found.append(last + _length(budget, len(found) - 1, state_bytes, row_bytes, block))
        return found[:-1]


def _length(budget: int, kept: int, state_bytes: int, row_bytes: int, block: int) -> int:
    """Steps in a segment that is recomputed while ``kept`` states are held."""
    return max(0, (budget - kept * state_bytes) // (row_bytes * block)) * block


def least_budget(count: int, state_bytes: int, row_bytes: int, block: int) -> int:
    """The fewest bytes with which all steps are covered, to within one block."""

    def covers(budget: int) -> bool:
        steps, kept = 0, 0
        while steps < count and (more := _length(budget, kept, state_bytes, row_bytes, block)):
            steps, kept = steps + more, kept + 1
        return steps >= count

    unit = row_bytes * block
    low, high = 0, -(-count // block)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if covers(middle * unit) else (middle, high)
    return high * unit
