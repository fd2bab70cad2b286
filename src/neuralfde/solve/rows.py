"""Rows computed again for the backward pass: from kept slopes, or from kept states of the memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..history import Block, Memory, ieee
from ..rhs.demand import derivative_only
from ..storage import Sizes, Tape
from .plan import Coefficients, Plan
from .steppers.base import Steps
from .steppers.trace import leaves, traced
from .steppers.work import local_weights
from .witness import Witness


class SlopeRows:
    """Rows computed again, block by block, from the slopes that a memory has kept: no second buffer is needed."""

    def __init__(self, plan: Plan, memory: Memory, local: Tensor) -> None:
        self.plan, self.memory, self.local = plan, memory, local
        self.first = plan.steps + 1
        self.rows: tuple[Tensor, ...] = ()
        self.block: Tensor | None = None  # the same rows in one piece

    def read(self, n: int) -> Tensor:
        """Row ``n``, (sums, groups, width); rows are asked for in descending order."""
        if n < self.first:
            self._compute(n)
        if not self.rows:
            assert self.block is not None
            self.rows = self.block.unbind(0)
        row = self.rows[n - self.first]
        if not self.plan.scheme.implicit or n == 0:
            return row
        own = self.local if self.local.ndim == 1 else self.local[n]
        return self.plan.scheme.restore(row[0], self.memory.kept(n).to(row.device), own[:, None])[None]

    def read_rows(self, steps: range) -> Tensor:
        """The rows of these steps, descending, at once."""
        parts, n = [], steps[0]
        while n >= steps[-1]:
            if n < self.first:
                self._compute(n)
            assert self.block is not None
            low = max(self.first, steps[-1])
            parts.append(self.block[low - self.first : n + 1 - self.first].flip(0))
            n = low - 1
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        later = steps[:-1] if steps[-1] == 0 else steps  # the first state is given: no stage
        if self.plan.scheme.implicit and later:
            own = self.local if self.local.ndim == 1 else self.local[later[-1] : later[0] + 1].flip(0)
            c, slopes = rows[: len(later), 0], self.memory.kept_rows(later).to(rows.device)
            c.copy_(self.plan.scheme.restore(c, slopes, own[..., None]))
        return rows

    def _compute(self, n: int) -> None:
        """The sums of a block of rows up to row ``n``."""
        count = min(self.memory.replay_block, n + 1)
        self.first, self.rows, self.block = n + 1 - count, (), None  # frees the last block before the next one is made
        with ieee(self.local) if self.local.is_cuda else contextlib.nullcontext():
            self.block = self.memory.replay(self.first, count)

    @property
    def bytes(self) -> int:
        """What it holds beside the memory."""
        return 0


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


def readers(
    plan: Plan, c: Coefficients, tape: Tape | SlopeRows | SegmentRows | None, witness: Witness | None
) -> tuple[Callable[[int], Tensor], Callable[[range], Tensor], Callable[[], None]]:
    """Row ``n`` of the forward pass, those of a block, and a comparison of slopes at the rows that were read.

    Where a stepper shows the witness what it evaluates again, none is given here. Elsewhere slopes are compared when a
    block was taken: a GPU is at work on it by then.
    """
    held: dict[int, Tensor] = {}
    if tape is None:  # the graphs of the steps are kept in place of rows
        return _unread, _unread, _nothing
    if witness is None:
        return tape.read, partial(read_rows, tape), _nothing

    def read(n: int) -> Tensor:
        row = tape.read(n)
        if n in witness.slopes:
            held[n] = row.clone()
        return row

    def read_block(steps: range) -> Tensor:
        rows = read_rows(tape, steps)
        held.update({n: rows[steps.index(n)].clone() for n in witness.slopes if n in steps})
        return rows

    def compare() -> None:
        while held:
            n, row = held.popitem()
            if n not in witness.slopes:  # the steps were taken singly after all, and compared
                continue
            own = c.local if c.local.ndim == 1 else c.local[n]
            (w0,) = local_weights(own[None], plan.field.structure.groups, weigh=False)
            with torch.enable_grad(), derivative_only(False):
                x = leaves(row, plan.field.shape)
                _, v = traced(plan.scheme, partial(plan.field, n), x, w0, slope=True, start=n == 0)
            witness.compare(n, v, x)

    return read, read_block, compare


def read_rows(tape: Tape | SlopeRows | SegmentRows, steps: range) -> Tensor:
    """The rows of these steps, descending, (steps, *shape), contiguous: at once where the tape can, else one by one."""
    at_once = getattr(tape, "read_rows", None)
    if at_once is not None:
        return at_once(steps).contiguous()  # type: ignore[no-any-return]
    first = tape.read(steps[0])
    rows = first.new_empty(len(steps), *first.shape)
    rows[0] = first
    for k, n in enumerate(steps[1:], 1):
        rows[k] = tape.read(n)
    return rows


def _unread(_: object) -> Tensor:
    raise AssertionError("the graphs of the steps are kept in place of rows")


def _nothing() -> None: ...
