"""Rows recomputed for the backward pass from saved states of the memory, by the loop itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..history import Block, Memory
from ..storage import Sizes
from .plan import Coefficients, Plan
from .steppers.base import Steps


class SegmentRows:
    """Rows recomputed segment by segment, from states of the memory that the forward pass saved.

    A segment that is too long for the storage is first stepped through once more, to save further states. Rows are held
    in pieces of one block each, which are freed as they are read: pieces of one size do not fragment the memory.
    """

    def __init__(self, plan: Plan, c: Coefficients, memory: Memory, like: Tensor) -> None:
        self.plan, self.c, self.memory, self.like = plan, c, memory, like
        self.kept: dict[int, tuple[Tensor, ...]] = {}
        self.before: dict[int, Tensor | None] = {}  # for implicit schemes, the state before a segment
        self.latest: Tensor | None = None
        row = like.numel() * like.element_size()
        self.sizes = Sizes(plan.steps + 1, memory.snapshot_rows * row, plan.scheme.sums * row, memory.block)
        self.starts = plan.storage.starts(self.sizes, plan.steps + 1, 0)
        self.pieces: dict[int, Tensor] = {}  # the rows of a block, by its first step

    def write_rows(self, n: int, rows: Tensor) -> None:
        """Save the state of the memory at the start of a segment; the rows themselves are not kept."""
        if n > 0 and n in self.starts and n not in self.kept:
            self._keep(n)
        if self.plan.scheme.implicit:
            self.latest = rows[-1, 0].clone()

    def _keep(self, n: int) -> None:
        self.kept[n], self.before[n] = self.memory.snapshot(n), self.latest

    def use(self, steps: Steps, march: Callable[..., None], task: Callable[..., Any]) -> None:
        """Set the stepper, the loop and the function that makes tasks, with which rows are recomputed."""
        self.steps, self.march, self.task = steps, march, task

    def read(self, n: int) -> Tensor:
        """Row ``n``; rows are read in descending order."""
        first = n - n % self.memory.block
        self.pieces.pop(first + self.memory.block, None)
        if first not in self.pieces:
            self._recompute(n)
        return self.pieces[first][n - first]

    def _recompute(self, n: int) -> None:
        """Recompute the rows of the segment that ends with row ``n``, or of its last part if it is too long."""
        first = self.starts[-1]
        while len(parts := self.plan.storage.starts(self.sizes, n + 1 - first, len(self.kept))) > 1:
            self.starts += [first + start for start in parts[1:]]
            self._walk(first, self.starts[-1], self.write_rows)
            first = self.starts[-1]
            self._keep(first)
        self.starts.pop()
        self._walk(first, n + 1, self._hold)

    def _hold(self, n: int, rows: Tensor) -> None:
        self.pieces[n] = rows.clone()

    @torch.no_grad()
    def _walk(self, first: int, stop: int, write: Callable[[int, Tensor], None]) -> None:
        """Take the steps from a saved state up to ``stop``; free the state if no segment will start from it again."""
        self.memory.restore(self.kept.get(first))
        before = self.latest = self.before.get(first)
        if first not in self.starts:
            self.kept.pop(first, None)
            self.before.pop(first, None)

        def take(block: Block, sums: Tensor, inner: Tensor) -> tuple[Tensor, None]:
            nonlocal before
            filled = self.steps.forward(self.task(self.plan, self.c, block, sums, inner, before))
            write(block.start, filled.rows)
            before = filled.states[-1].clone() if self.plan.scheme.implicit else None
            return filled.slopes.unsqueeze(1), None

        self.march(self.memory, range(first, stop), self.like, take, lambda block: self.steps.room(block.count, False))

    @property
    def bytes(self) -> int:
        """The most memory that saved states and the rows of one segment take, in bytes."""
        most = 0
        for kept, (first, stop) in enumerate(itertools.pairwise([*self.starts, self.sizes.rows])):
            while len(parts := self.plan.storage.starts(self.sizes, stop - first, kept)) > 1:
                kept, first = kept + len(parts) - 1, first + parts[-1]
            most = max(most, kept * self.sizes.state + (stop - first) * self.sizes.row)
        return most
