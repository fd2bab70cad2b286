"""No stored rows: the state of the history is saved at some steps, and the rows between are recomputed."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch

from ..base.checks import whole
from ..base.policy import CHECKPOINT_BYTES, CHECKPOINT_STEPS
from ..errors import InputError
from .base import Sizes, Storage, Tape


@dataclass(frozen=True)
class Checkpoint(Storage):
    """Save the fixed-size state of the history at the start of each segment; recompute one segment at a time.

    With a state of k rows, N steps take about ``√(2kN)`` rows of memory and one more evaluation of ``func`` per step.
    Segments shrink towards the end, because all saved states are still held when the backward pass begins, and one less
    with each segment. With less memory, a segment is divided into shorter ones when the backward pass reaches it, and
    so on: s states and p evaluations reach ``C(s+p, p)`` times as far as the rows of one segment (Griewank and Walther
    2000).

    Args:
        budget: bytes for saved states and the rows of one segment, for any number of steps; default: what one more
            evaluation per step needs, but beyond 10,000 steps and 16 MiB no more than that.
        every: a fixed segment length in steps, in place of ``budget``.
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
        """See ``Storage``; never called, since rows are recomputed."""
        raise NotImplementedError

    def starts(self, sizes: Sizes, count: int, kept: int) -> list[int]:
        """See ``Storage``: as few evaluations as the budget allows."""
        if self.every is not None:
            return list(range(0, count, -(-self.every // sizes.block) * sizes.block))
        budget, unit, blocks = self.bytes_for(sizes), sizes.row * sizes.block, -(-count // sizes.block)
        # for each further saved state, how many blocks of rows fit beside it: these need one evaluation
        reach = [(budget - k * sizes.state) // unit for k in range(kept, (budget - unit) // sizes.state + 1)]
        if reach and reach[0] >= blocks:
            return [0]
        if len(reach) < 2:
            raise InputError(
                f"Checkpoint(budget={budget}): {sizes.rows - 1} steps need at least {sizes.state + unit} bytes (a kept "
                f"state takes {sizes.state}, a row {sizes.row}). Raise the budget, or use storage='host'."
            )
        fewer = reach
        while sum(reach) < blocks:  # one more evaluation: a segment becomes as long as it and all later ones were
            fewer, reach = reach, list(accumulate(reversed(reach)))[::-1]
        starts, rest = [0], blocks - sum(fewer)
        for least, most in zip(fewer, reach, strict=True):  # as many steps as possible get by with one evaluation less
            more = max(0, min(rest, most - least))
            starts, rest = [*starts, starts[-1] + least + more], rest - more
        return [start * sizes.block for start in starts if start < blocks]

    def bytes_for(self, sizes: Sizes) -> int:
        """The bytes that saved states and the rows of a segment may take."""
        if self.budget is not None:
            return self.budget
        short = least_budget(sizes._replace(rows=min(sizes.rows, CHECKPOINT_STEPS)))
        return min(least_budget(sizes), max(short, CHECKPOINT_BYTES))


@lru_cache(maxsize=64)
def least_budget(sizes: Sizes) -> int:
    """The fewest bytes with which one more evaluation per step suffices, to within one block of rows."""
    unit = sizes.row * sizes.block

    def covers(budget: int) -> bool:
        steps, kept = 0, 0
        while steps < sizes.rows and (more := max(0, budget - kept * sizes.state) // unit):
            steps, kept = steps + more * sizes.block, kept + 1
        return steps >= sizes.rows

    blocks = range(-(-sizes.rows // sizes.block))
    return unit * bisect.bisect_left(blocks, True, lo=1, key=lambda count: covers(count * unit))
