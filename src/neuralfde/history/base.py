"""The contract of a history: the linear part of a solve, ``c = W v``, walked by blocks of steps, and its transpose."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Block(NamedTuple):
    """Consecutive steps of a pass; times are counted as the pass meets them, from 0 to N.

    In a forward pass time ``i`` is step ``i``; in a backward pass, which begins at the end, it is step ``N - i``.
    """

    start: int
    count: int  # type: ignore[assignment]

    @property
    def stop(self) -> int:
        """The time after the last."""
        return self.start + self.count


class Memory(ABC):
    """One pass over the steps: a lower triangular matrix applied to rows that arrive block by block.

    It never sees ``func``, a scheme or autograd. A forward pass takes in one slope a step and gives ``sums`` weighted
    sums of them; a backward pass takes in ``sums`` rows a step and gives one sum, with the transposed matrix.

    Attributes:
        block: steps in a block; the last one may be shorter.
        backward: whether this is the transposed matrix.
        weights_grad: in a backward pass, the gradient of the weights, (sums, groups, lags or rows and columns), if
            asked for.
    """

    block: int
    backward: bool
    weights_grad: Tensor | None = None

    @abstractmethod
    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """What everything before the block contributes to its rows: (count, outputs, groups, width); None if nothing.

        It is written to ``out`` where that is given. The caller may overwrite the result.
        """

    @abstractmethod
    def inner(self, block: Block) -> Any:
        """What the rows of a block weigh in each other: (groups, row, output, earlier row, input).

        Zero unless the earlier row is earlier; the same object again where the weights are the same. A memory that was
        asked for long blocks gives :class:`~.long_blocks.Modes`.
        """

    @abstractmethod
    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """Take in (a copy of) the rows of a block, (count, inputs, groups, width).

        ``slopes`` (count, groups, width): the slopes of these steps, in a backward pass that weighs.
        """

    @property
    @abstractmethod
    def bytes(self) -> int:
        """What it holds on the device of the rows, in bytes."""

    # A history that says `keeps_slopes` has the first three of these.

    def replay(self, first: int, count: int) -> Tensor:
        """After a forward pass: all sums of steps first … first + count - 1 again, (count, outputs, groups, width)."""
        raise NotImplementedError

    @property
    def replay_block(self) -> int:
        """How many steps are best replayed at once."""
        return self.block

    def kept(self, n: int) -> Tensor:
        """After a forward pass: the slope (groups, width) of step ``n``."""
        raise NotImplementedError

    def kept_rows(self, steps: range) -> Tensor:
        """The slopes of consecutive steps, in descending order, (steps, groups, width)."""
        return torch.stack([self.kept(n) for n in steps])

    # A history that says `snapshots` has these three.

    @property
    def snapshot_rows(self) -> int:
        """How many rows a snapshot holds."""
        raise NotImplementedError

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """The state before time ``n``, where a block begins: what ``restore`` goes back to."""
        raise NotImplementedError

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """Go back to where a snapshot was taken; None: to the beginning."""
        raise NotImplementedError


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


class History(ABC):
    """How the past is summed: a frozen description that opens memories.

    Attributes:
        block: rows are summed in blocks of this many steps.
        keeps_slopes: its memory holds every slope of a forward pass, so that sums can be computed again from them.
        snapshots: its memory has a state of fixed size that can be kept and gone back to, as ``storage='checkpoint'``
            needs it.
    """

    block: int
    keeps_slopes: bool = False
    snapshots: bool = False

    def tabulate(self, weights: Tensor) -> Tensor:
        """Lag weights (sums, steps + 1, groups) in float64 as this history's memories take them; differentiable."""
        return weights

    def lags(self, weights: Tensor, steps: int) -> Tensor:
        """What :meth:`tabulate` gave as the weights that the memories apply, one for each lag; differentiable."""
        return weights

    @abstractmethod
    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Memory:
        """A memory for a forward pass over rows like ``row`` (groups, width)."""

    @abstractmethod
    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Memory:
        """The transposed memory, for a backward pass.

        ``spare`` is the memory of the forward pass, where its room may be taken over: slope ``n`` of it is free once
        step ``n`` is recorded. With ``weigh`` the gradient of the weights is accumulated.
        """


@contextlib.contextmanager
def ieee(like: Tensor) -> Iterator[None]:
    """Matrix products in full precision inside."""
    if not reduced(like):
        yield
        return
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def reduced(like: Tensor) -> bool:
    """Whether float32 products on this device are made in TF32."""
    on = like.device.type == "cuda" and like.dtype == torch.float32
    return on and torch.backends.cuda.matmul.fp32_precision == "tf32"
