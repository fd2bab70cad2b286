"""What a solve adds to its memory: initial values, starting weights, a resumed past, output between grid points.

Each of these is linear, so each is a memory that wraps another one and has a transpose; no stepper needs to know. In a
forward pass the wrappers add to the sums; in a backward pass their transposes collect the gradients of what was added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .base import Block, Memory, Wrapped
from .between import Between, BetweenGradient
from .starting import Starting, StartingGradient


class Initial(Wrapped):
    """Adds ``Σ_i base_{i,n} z_0^{(i)}`` to every sum of step ``n``, or ``z_0`` where there is no ``base``.

    Args:
        memory: the memory that is wrapped.
        initial: (groups, width), or (initials, groups, width) with ``base``.
        base: (initials, steps + 1, groups) or None.
        sums: the number of sums of a step.
        known: (steps + 1, sums, groups, width), added in place of the initial values: the past of a resumed solve.
    """

    def __init__(
        self, memory: Memory, initial: Tensor, base: Tensor | None, sums: int, known: Tensor | None = None
    ) -> None:
        super().__init__(memory)
        self.initial, self.base, self.sums, self.known = initial, base, sums, known

    def _lines(self, first: int, count: int) -> Tensor:
        """What is added to the sums of these steps; it broadcasts to (count, sums, groups, width)."""
        if self.known is not None:
            return self.known[first : first + count]
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


#: The weights inside the first block of a pass, by whether the pass is backward, and by the block.
Tables = dict[tuple[bool, Block], Tensor]


class Tabled(Wrapped):
    """Keeps the weights inside the first block in ``tables``, for later solves with the same weights."""

    def __init__(self, memory: Memory, tables: Tables, backward: bool) -> None:
        super().__init__(memory)
        self.tables, self.backward = tables, backward

    def inner(self, block: Block) -> Any:
        """See :class:`Memory`."""
        if block.start > 0:
            return self.memory.inner(block)
        key = self.backward, block
        if key not in self.tables:
            self.tables[key] = self.memory.inner(block)
        return self.tables[key]


class Assembled(NamedTuple):
    """The memory of a forward pass with all wrappers; those that are needed after the pass have names.

    ``again`` is the memory for steps that are taken again: without output between grid points, which is part of the
    result and would be added to a second time.
    """

    memory: Memory
    again: Memory
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
    tables: Tables | None,
) -> Assembled:
    """Add initial values (or a ``known`` past in their place), starting weights and output between grid points.

    ``base`` (initials, steps + 1 + times, groups) is for the steps, then for the output times between grid points.
    ``tables`` are kept from solve to solve.
    """
    starting = between = None
    memory = Initial(memory, initial, base, sums, known)
    if start is not None:
        memory = starting = Starting(memory, start)
    memory = again = memory if tables is None else Tabled(memory, tables, False)
    if dense is not None:
        times, steps = dense.shape[:2]
        if base is None:
            states = initial.expand(times, *initial.shape).clone(memory_format=torch.contiguous_format)
        else:
            states = torch.einsum("iog,igm->ogm", base[:, steps:], initial)
        memory = between = Between(memory, dense, states)
    return Assembled(memory, again, starting, between)


class Transposed(NamedTuple):
    """The transpose of :class:`Assembled`; after a pass it has the gradients of everything that was added."""

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
    tables: Tables | None,
) -> Transposed:
    """The transpose of :func:`assembled`; ``heads`` are the first slopes, ``between`` gradients of output between."""
    first = InitialGradient(memory, steps, initial, base, weigh)
    starting = early = None
    memory = first
    if start is not None and heads is not None:
        memory = starting = StartingGradient(memory, steps, start, heads, weigh)
    if dense is not None and between is not None:
        memory = early = BetweenGradient(memory, steps, dense, between, weigh)
    return Transposed(memory if tables is None else Tabled(memory, tables, True), first, starting, early)
