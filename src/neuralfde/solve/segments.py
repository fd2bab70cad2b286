"""Rows computed again for the backward pass from kept states of the memory, by the loop itself."""

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
    """Rows computed again, segment by segment, from states of the memory kept in the forward pass.

    A segment that is too long for the storage is walked through once more, with states kept on the way. Rows lie in
    pieces of one block each, which are given back as they are read: pieces of one size leave no holes.
    """

    def __init__(self, plan: Plan, c: Coefficients, memory: Memory, like: Tensor) -> None:
        self.plan, self.c, self.memory, self.like = plan, c, memory, like
        self.kept: dict[int, tuple[Tensor, ...]] = {}
        self.before: dict[int, Tensor | None] = {}  # of implicit schemes, the state before a segment
        self.latest: Tensor | None = None
        row = like.numel() * like.element_size()
        self.sizes = Sizes(plan.steps + 1, memory.snapshot_rows * row, plan.scheme.sums * row, memory.block)
        self.starts = plan.storage.starts(self.sizes, plan.steps + 1, 0)
        self.pieces: dict[int, Tensor] = {}  # the rows of a block, by its first step

    def write_rows(self, n: int, rows: Tensor) -> None:
        """Rows themselves are not kept; at the start of a segment the state of the memory is."""
        if n > 0 and n in self.starts and n not in self.kept:
            self._keep(n)
        if self.plan.scheme.implicit:
            self.latest = rows[-1, 0].clone()

    def _keep(self, n: int) -> None:
        self.kept[n], self.before[n] = self.memory.snapshot(n), self.latest

    def use(self, steps: Steps, march: Callable[..., None], task: Callable[..., Any]) -> None:
        """Compute rows by these steps, in this loop."""
        self.steps, self.march, self.task = steps, march, task

    def read(self, n: int) -> Tensor:
        """Row ``n``; rows are asked for in descending order."""
        first = n - n % self.memory.block
        self.pieces.pop(first + self.memory.block, None)
        if first not in self.pieces:
            self._recompute(n)
        return self.pieces[first][n - first]

    def _recompute(self, n: int) -> None:
        """The rows of the segment that ends with row ``n``, or of the last of its parts."""
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
        """Take the steps from a kept state up to ``stop``; a state that no segment starts from any more is let go."""
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
        """Kept states and the rows of one segment, at most."""
        most = 0
        for kept, (first, stop) in enumerate(itertools.pairwise([*self.starts, self.sizes.rows])):
            while len(parts := self.plan.storage.starts(self.sizes, stop - first, kept)) > 1:
                kept, first = kept + len(parts) - 1, first + parts[-1]
            most = max(most, kept * self.sizes.state + (stop - first) * self.sizes.row)
        return most
