"""Rows computed again for the backward pass: from kept slopes, or from kept states of the history."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ..history import Blocked, Snapshots, ieee, precise
from ..loop import sweep
from ..storage import Checkpoint, DeviceTape
from .captured import Captured
from .captured_blocks import CapturedBlocks
from .plain import advance, is_plain
from .plan import Coefficients, Plan
from .step import arrive, plain_step


class Replay:
    """Rows computed again, block by block, from the slopes a history has kept: no second buffer is needed."""

    def __init__(
        self, plan: Plan, engine: Blocked, coefficients: Coefficients, z0: Tensor, heads: list[Tensor]
    ) -> None:
        self.plan = plan
        self.engine = engine
        engine.rest()
        self.coefficients = coefficients
        self.z0 = z0
        self.heads = heads
        self.first = plan.steps + 1
        self.sums: Tensor | None = None
        self.rows: tuple[Tensor, ...] = ()
        self.as_they_are = not plan.scheme.implicit

    def read(self, n: int) -> Tensor:
        """Row ``n``; rows are asked for in descending order."""
        if n < self.first or self.sums is None:
            self._compute(n)
        c = self.rows[n - self.first]
        if self.as_they_are or n == 0:
            return c
        return self.plan.scheme.restore(c, self.buffer[n].to(c.device), self.coefficients.local_at(n))

    def read_sums(self, low: int, high: int) -> Tensor:
        """The sums of rows high, high - 1, … low, (sums, rows, groups, width); asked for in descending order."""
        parts = []
        while high >= low:
            if high < self.first or self.sums is None:
                self._compute(high)
            assert self.sums is not None
            a, b = max(low, self.first) - self.first, high + 1 - self.first
            parts.append(self.sums[:, a:b].flip(1))
            high = self.first + a - 1
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _compute(self, n: int) -> None:
        """The sums of a block of rows up to row ``n``."""
        count = min(self.engine.levels[-1], n + 1)
        self.first = first = n + 1 - count
        self.sums, self.rows = None, ()  # frees the last block before the next one is made
        with ieee(self.z0):
            self.sums = self.engine.product(first, count, 0, n + 1)
        span, known = slice(first, n + 1), self.plan.known
        self.sums.add_(self.coefficients.lift(self.z0, span) if known is None else known[span].transpose(0, 1))
        start = self.coefficients.start
        for j, v in enumerate(self.heads):
            assert start is not None
            later = max(j + 1, first)
            self.sums[0, later - first :].addcmul_(start[j, later : n + 1, :, None], v)
        self.rows = self.sums.unbind(1)

    @property
    def buffer(self) -> Tensor:
        """The slopes; slot ``n`` is free once row ``n`` has been read."""
        return self.engine.inputs[0].buffer

    @property
    def bytes(self) -> int:
        """What it holds, in bytes."""
        return self.buffer.numel() * self.buffer.element_size()


class Segments:
    """Rows computed again, segment by segment, from states of the history kept in the forward pass."""

    def __init__(self, plan: Plan, engine: Snapshots, c: Coefficients, z0: Tensor, heads: list[Tensor]) -> None:
        assert isinstance(plan.storage, Checkpoint)
        self.plan, self.engine, self.c, self.z0 = plan, engine, c, z0
        self.heads = heads  # filled as the first steps are taken
        self.like = z0 if c.base is None else z0[0]
        self.captured: Captured | None = None  # set for the backward pass
        self.shape = (plan.scheme.sums, *self.like.shape)
        self.kept: dict[int, tuple[Tensor, ...]] = {}
        size = z0.element_size()
        rows = engine.snapshot_rows
        self.starts = plan.storage.starts(
            plan.steps + 1, rows * self.like.numel() * size, torch.Size(self.shape).numel() * size, plan.history.block
        )
        self.pending = iter([*self.starts, plan.steps + 1])
        self.next = next(self.pending)
        self.end = plan.steps + 1
        self.tape: DeviceTape | None = None

    def write(self, n: int, row: Tensor) -> None:
        """Rows themselves are not kept; at the start of a segment the state of the history is."""
        if n == self.next:
            if n > 0:
                self.kept[n] = self.engine.snapshot(n)
            self.next = next(self.pending)

    def write_rows(self, n: int, rows: Tensor) -> None:
        """See :class:`Tape`; segments begin where blocks do."""
        self.write(n, rows[0])

    def read(self, n: int) -> Tensor:
        """Row ``n``; rows are asked for in descending order."""
        if self.tape is None or n < self.tape.first:
            self._recompute(n)
        assert self.tape is not None
        return self.tape.read(n)

    @torch.no_grad()
    def _recompute(self, n: int) -> None:
        first = self.starts.pop()
        assert first <= n
        self.tape = None  # gives its memory back before the next one is made
        tape = self.plan.storage.open(n + 1 - first, self.shape, self.z0.dtype, self.z0.device)
        assert isinstance(tape, DeviceTape)
        tape.first = first
        self.engine.restore(self.kept.pop(first, None))

        def visit(m: int, past: Tensor | None) -> tuple[Tensor | None, None]:
            x = arrive(self.plan, self.c, self.z0, self.heads, m, past, self.captured)
            tape.write(m, x)
            if m == n:
                return None, None
            slope = self.plan.needs_slope(m, dense=False)
            v = plain_step(self.plan, m, x, self.c.local_at(m), slope, self.captured).v
            return (torch.zeros_like(self.like) if v is None else v)[None], None

        by_blocks = self.captured is None or isinstance(self.captured, CapturedBlocks)
        if by_blocks and is_plain(self.engine, self.plan, self.c):
            advance(self.plan, self.engine, self.z0, tape, None, range(first, n + 1), self.captured)
        else:
            sweep(precise(self.engine, self.z0), range(first, n + 1), visit)
        self.tape = tape

    @property
    def bytes(self) -> int:
        """Kept states and the rows of one segment."""
        held = sum(part.numel() * part.element_size() for kept in self.kept.values() for part in kept)
        spans = [b - a for a, b in itertools.pairwise([*self.starts, self.end])]
        return held + max(spans, default=0) * torch.Size(self.shape).numel() * self.z0.element_size()
