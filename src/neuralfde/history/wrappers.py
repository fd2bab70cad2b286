"""What a solve adds to its memory: initial values, starting weights, a past that is resumed, output between nodes.

Each is linear, so each is a memory around a memory and has a transpose; no stepper knows of them. ``Forward`` parts
change what the steps are given; their transposes collect the gradients of what they added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .base import Block, Memory


class Wrapped(Memory):
    """A memory around another one, the same but for what a subclass adds."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.block, self.backward = memory, memory.block, memory.backward

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        return self.memory.recall(block, out)

    def inner(self, block: Block) -> Any:
        """See :class:`Memory`."""
        return self.memory.inner(block)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        self.memory.record(block, rows, slopes)

    @property
    def bytes(self) -> int:
        """See :class:`Memory`."""
        return self.memory.bytes

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        return self.memory.replay(first, count)

    @property
    def replay_block(self) -> int:
        """See :class:`Memory`."""
        return self.memory.replay_block

    def kept(self, n: int) -> Tensor:
        """See :class:`Memory`."""
        return self.memory.kept(n)

    def kept_rows(self, steps: range) -> Tensor:
        """See :class:`Memory`."""
        return self.memory.kept_rows(steps)

    @property
    def snapshot_rows(self) -> int:
        """See :class:`Memory`."""
        return self.memory.snapshot_rows

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Memory`."""
        return self.memory.snapshot(n)

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Memory`."""
        self.memory.restore(kept)


class Initial(Wrapped):
    """Adds ``Σ_i base_{i,n} z_0^{(i)}`` to every sum of step ``n``, or ``z_0`` where there is no ``base``.

    Args:
        memory: the weighted sums.
        initial: (groups, width), or (initials, groups, width) with ``base``.
        base: (initials, steps + 1, groups) or None.
    """

    def __init__(self, memory: Memory, initial: Tensor, base: Tensor | None, sums: int) -> None:
        super().__init__(memory)
        self.initial, self.base, self.sums = initial, base, sums

    def _lines(self, first: int, count: int) -> Tensor:
        """What the initial values contribute to these steps, broadcastable to (count, sums, groups, width)."""
        if self.base is None:
            return self.initial
        return torch.einsum("ing,igm->ngm", self.base[:, first : first + count], self.initial)[:, None]

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor:
        """See :class:`Memory`."""
        found, lines = self.memory.recall(block, out), self._lines(block.start, block.count)
        if found is not None:
            return found.add_(lines)
        shape = (block.count, self.sums, *self.initial.shape[-2:])
        return lines.expand(shape).clone() if out is None else out.copy_(lines.expand(shape))

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        return self.memory.replay(first, count).add_(self._lines(first, count))


class InitialGradient(Wrapped):
    """The transpose of :class:`Initial`: ``gradient`` is that of the initial values, ``base_grad`` that of ``base``."""

    def __init__(self, memory: Memory, steps: int, initial: Tensor, base: Tensor | None, weigh: bool) -> None:
        super().__init__(memory)
        self.steps, self.initial, self.base = steps, initial, base
        self.gradient = torch.zeros_like(initial)
        self.base_grad = torch.zeros_like(base) if weigh and base is not None else None

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        if self.base is None:
            self.gradient.add_(rows.sum((0, 1)))
        else:
            total = rows.sum(1)
            steps = slice(self.steps + 1 - block.stop, self.steps + 1 - block.start)
            self.gradient.add_(torch.einsum("ing,ngm->igm", self.base[:, steps].flip(1), total))
            if self.base_grad is not None:
                self.base_grad[:, steps] = torch.einsum("igm,ngm->ing", self.initial, total).flip(1)
        super().record(block, rows, slopes)


class Resumed(Wrapped):
    """Adds what the slopes of an earlier solve contribute, ``known`` (steps + 1, sums, groups, width)."""

    def __init__(self, memory: Memory, known: Tensor) -> None:
        super().__init__(memory)
        self.known = known

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor:
        """See :class:`Memory`."""
        found, known = self.memory.recall(block, out), self.known[block.start : block.stop]
        if found is not None:
            return found.add_(known)
        return known.clone() if out is None else out.copy_(known)

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        return self.memory.replay(first, count).add_(self.known[first : first + count])


class Starting(Wrapped):
    """Starting weights: ``start`` (sums, starts, steps + 1, groups) weighs the first slopes in the first sums."""

    def __init__(self, memory: Memory, start: Tensor) -> None:
        super().__init__(memory)
        self.start, self.heads = start, start.new_zeros(0)  # the first slopes, (so far, groups, width)

    def _extra(self, rows: Tensor, first: int, slopes: Tensor) -> Tensor:
        """Add what these slopes get beside their lag weights to rows (count, sums, …) of steps from ``first`` on."""
        if slopes.shape[0]:
            weights = self.start[:, : slopes.shape[0], first : first + rows.shape[0]]
            rows[:, : len(weights)] += torch.einsum("sjng,jgm->nsgm", weights, slopes)
        return rows

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        found = self.memory.recall(block, out)
        assert found is not None  # the initial values are inside
        return self._extra(found, block.start, self.heads[: block.start])

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        found, early = self.memory.inner(block), min(self.start.shape[1], block.stop) - block.start
        if early <= 0:
            return found
        extra = self.start[:, block.start : block.start + early, block.start : block.stop].permute(3, 0, 2, 1)
        found = found.clone()
        found[:, :, : extra.shape[1], :early, 0] += extra.tril(-1).transpose(1, 2)
        return found

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        missing = self.start.shape[1] - block.start
        if missing > 0 and self.heads.shape[0] <= block.start:
            first = rows[:missing, 0].clone()
            self.heads = first if block.start == 0 else torch.cat([self.heads, first])
        super().record(block, rows, slopes)

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        found = self.memory.replay(first, count)
        for j, slope in enumerate(self.heads):
            later = max(0, j + 1 - first)
            self._one(found[later:], first + later, j, slope)
        return found

    def _one(self, rows: Tensor, first: int, j: int, slope: Tensor) -> None:
        weights = self.start[:, j, first : first + rows.shape[0], :, None].transpose(0, 1)
        rows[:, : weights.shape[1]] += weights * slope


class StartingGradient(Wrapped):
    """The transpose of :class:`Starting`: gradients of the first slopes, and of the starting weights themselves."""

    def __init__(self, memory: Memory, steps: int, start: Tensor, heads: Tensor, weigh: bool) -> None:
        super().__init__(memory)
        self.steps, self.start, self.heads = steps, start, heads
        self.early = torch.zeros_like(heads)
        self.start_grad = torch.zeros_like(start) if weigh else None

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`; the first slopes belong to the last steps of the pass."""
        found = self.memory.recall(block, out)
        low, heads = self.steps + 1 - block.stop, self.heads.shape[0]
        if low < heads:
            if found is None:
                found = self.early.new_zeros(block.count, 1, *self.early.shape[1:]) if out is None else out.zero_()
            count = min(heads - low, block.count)
            found[block.count - count :, 0] += self.early[low : low + count].flip(0)
        return found

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        found = self.memory.inner(block)
        low, high = self.steps + 1 - block.stop, self.steps - block.start
        early = min(self.heads.shape[0], high + 1) - low
        if early <= 0:
            return found
        extra = self.start[:, low : low + early, low : high + 1].permute(3, 0, 2, 1).tril(-1)  # group, sum, step, head
        found = found.clone()
        found[:, block.count - early :, 0, :, : extra.shape[1]] += extra.flip(2, 3).permute(0, 3, 2, 1)
        return found

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        low, high = self.steps + 1 - block.stop, self.steps - block.start
        first = rows[:, : len(self.start)].flip(0)  # steps low … high
        before = min(low, self.heads.shape[0])
        if before:
            self.early[:before] += torch.einsum("sjng,nsgm->jgm", self.start[:, :before, low : high + 1], first)
        if self.start_grad is not None:
            count = self.heads.shape[0]
            steps = torch.arange(low, high + 1, device=first.device)
            later = (torch.arange(count, device=first.device)[:, None] < steps)[..., None]
            found = torch.einsum("jgm,nsgm->sjng", self.heads, first)
            self.start_grad[:, :count, low : high + 1] = torch.where(later, found, 0.0)
        super().record(block, rows, slopes)


class Between(Wrapped):
    """States between nodes: slopes weighted by ``dense`` (times, steps + 1, parts) add up in ``states``.

    These, (times, groups, width), begin with what the initial values contribute there. The parts of a row are its
    groups, or pieces of one length that each group is cut into.
    """

    def __init__(self, memory: Memory, dense: Tensor, states: Tensor) -> None:
        super().__init__(memory)
        self.dense, self.states = dense, states
        self.parts = states.view(states.shape[0], dense.shape[2], -1)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        weights, parts = self.dense[:, block.start : block.stop], in_parts(rows[:, 0], self.dense)
        self.parts.transpose(0, 1).baddbmm_(weights.permute(2, 0, 1), parts.transpose(0, 1))
        super().record(block, rows, slopes)


class BetweenGradient(Wrapped):
    """The transpose of :class:`Between`, for gradients ``grads`` (times, groups, width) of these states."""

    def __init__(self, memory: Memory, steps: int, dense: Tensor, grads: Tensor, weigh: bool) -> None:
        super().__init__(memory)
        self.steps, self.dense, self.grads = steps, dense, grads
        self.dense_grad = torch.zeros_like(dense) if weigh else None

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor:
        """See :class:`Memory`."""
        found = self.memory.recall(block, out)
        steps = slice(self.steps + 1 - block.stop, self.steps + 1 - block.start)
        direct = torch.einsum("ong,ogm->ngm", self.dense[:, steps], in_parts(self.grads, self.dense)).flip(0)
        direct = direct.reshape(block.count, 1, *self.grads.shape[1:])
        if found is not None:
            return found.add_(direct)
        return direct if out is None else out.copy_(direct)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        if self.dense_grad is not None and slopes is not None:
            steps = slice(self.steps + 1 - block.stop, self.steps + 1 - block.start)
            grads, parts = in_parts(self.grads, self.dense), in_parts(slopes.flip(0), self.dense)
            self.dense_grad[:, steps] = torch.einsum("ogm,ngm->ong", grads, parts)
        super().record(block, rows, slopes)


def in_parts(rows: Tensor, dense: Tensor) -> Tensor:
    """Rows (n, groups, width) as (n, parts, …), with the parts of ``dense`` (times, steps + 1, parts)."""
    return rows.reshape(rows.shape[0], dense.shape[2], -1)


class Tabled(Wrapped):
    """Keeps the weights inside the first block in ``tables``, for later solves with the same weights."""

    def __init__(self, memory: Memory, tables: dict[Block, Tensor]) -> None:
        super().__init__(memory)
        self.tables = tables

    def inner(self, block: Block) -> Any:
        """See :class:`Memory`."""
        if block.start > 0:
            return self.memory.inner(block)
        if block not in self.tables:
            self.tables[block] = self.memory.inner(block)
        return self.tables[block]


class Assembled(NamedTuple):
    """The memory of a forward pass with all that is added to its sums."""

    memory: Memory
    starting: Starting | None
    between: Between | None


def assembled(
    memory: Memory,
    initial: Tensor,
    sums: int,
    start: Tensor | None,
    dense: Tensor | None,
    base: Tensor | None,
    known: Tensor | None,
    tables: dict[Block, Tensor] | None,
) -> Assembled:
    """Add initial values (or a ``known`` past in their place), starting weights and output between nodes.

    ``base`` has a row for each step, then one for each output between nodes. ``tables`` are kept from solve to solve.
    """
    starting = between = None
    if known is not None:
        memory = Resumed(memory, known)
    else:
        memory = Initial(memory, initial, base, sums)
    if start is not None:
        memory = starting = Starting(memory, start)
    if dense is not None:
        times, steps = dense.shape[:2]
        if base is None:
            states = initial.expand(times, *initial.shape).clone(memory_format=torch.contiguous_format)
        else:
            states = torch.einsum("iog,igm->ogm", base[:, steps:], initial)
        memory = between = Between(memory, dense, states)
    return Assembled(memory if tables is None else Tabled(memory, tables), starting, between)


class Transposed(NamedTuple):
    """The transpose of :class:`Assembled`; after a pass it has the gradients of all that was added."""

    memory: Memory
    initial: InitialGradient
    starting: StartingGradient | None
    between: BetweenGradient | None

    def initial_grad(self) -> Tensor:
        """The gradient of the initial values."""
        grad, base = self.initial.gradient, self.initial.base
        if self.between is None:
            return grad
        tail = self.between.grads
        if base is None:
            return grad + tail.sum(0)
        return grad + torch.einsum("iog,ogm->igm", base[:, self.initial.steps + 1 :], tail)

    def start_grad(self) -> Tensor | None:
        """The gradient of the starting weights."""
        return None if self.starting is None else self.starting.start_grad

    def dense_grad(self) -> Tensor | None:
        """The gradient of ``dense``."""
        return None if self.between is None else self.between.dense_grad

    def base_grad(self) -> Tensor | None:
        """The gradient of ``base``."""
        found = self.initial.base_grad
        if found is not None and self.between is not None:
            tail = torch.einsum("igm,ogm->iog", self.initial.initial, self.between.grads)
            found[:, self.initial.steps + 1 :] = tail
        return found


def transposed(
    memory: Memory,
    initial: Tensor,
    steps: int,
    start: Tensor | None,
    dense: Tensor | None,
    base: Tensor | None,
    heads: Tensor | None,
    between: Tensor | None,
    weigh: bool,
) -> Transposed:
    """The transpose of :func:`assembled`: ``heads`` are the first slopes, ``between`` the gradients of that output."""
    first = InitialGradient(memory, steps, initial, base, weigh)
    starting = early = None
    memory = first
    if start is not None and heads is not None:
        memory = starting = StartingGradient(memory, steps, start, heads, weigh)
    if dense is not None and between is not None:
        memory = early = BetweenGradient(memory, steps, dense, between, weigh)
    return Transposed(memory, first, starting, early)
