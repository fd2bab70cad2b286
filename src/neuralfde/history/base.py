"""The contract of a history: the linear part of a solve, ``c = W v``, applied in blocks of steps, and its transpose."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Block(NamedTuple):
    """Consecutive steps of a pass; times are counted in the order of the pass, from 0 to N.

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

    It never sees ``func``, a scheme or autograd. A forward pass receives one slope per step and returns ``sums``
    weighted sums of them; a backward pass receives ``sums`` rows per step and returns one sum, with the transposed
    matrix.

    Attributes:
        block: the number of steps in a block; the last one may be shorter.
        backward: whether this is the transposed matrix.
        weights_grad: in a backward pass, the gradient of the weights, (sums, groups, lags or rows and columns), if
            requested.
    """

    block: int
    backward: bool
    weights_grad: Tensor | None = None

    @abstractmethod
    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """The contribution of all earlier rows to those of the block: (count, outputs, groups, width); None if none.

        It is written to ``out`` if that is given. The caller may overwrite the result.
        """

    @abstractmethod
    def inner(self, block: Block) -> Any:
        """The weights between the rows of a block: (groups, row, output, earlier row, input).

        They are zero unless the earlier row is earlier. Blocks with the same weights get the same object. A memory with
        long blocks returns :class:`~.long_blocks.Modes`.
        """

    @abstractmethod
    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """Store (a copy of) the rows of a block, (count, inputs, groups, width).

        ``slopes`` (count, groups, width) are those of these steps, in a backward pass with ``weigh``.
        """

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The memory it holds on the device of the rows, in bytes."""

    # A history that says `keeps_slopes` has the first three of these.

    def replay(self, first: int, count: int) -> Tensor:
        """After a forward pass: recompute all sums of these steps, (count, outputs, groups, width)."""
        raise NotImplementedError

    @property
    def replay_block(self) -> int:
        """The best number of steps to replay at once."""
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
        """The size of a snapshot in rows."""
        raise NotImplementedError

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """The state of the memory before time ``n``, the start of a block, for ``restore``."""
        raise NotImplementedError

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """Go back to a snapshot; None: to the beginning."""
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
        keeps_slopes: its memory holds every slope of a forward pass, so that sums can be recomputed from them.
        snapshots: the state of its memory has a fixed size and can be saved and restored, as ``storage='checkpoint'``
            requires.
    """

    block: int
    keeps_slopes: bool = False
    snapshots: bool = False

    def tabulate(self, weights: Tensor) -> Tensor:
        """Lag weights (sums, steps + 1, groups) in float64, in the form that the memories use; differentiable."""
        return weights

    def lags(self, weights: Tensor, steps: int) -> Tensor:
        """From the result of :meth:`tabulate`, the weights that the memories apply at each lag; differentiable."""
        return weights

    @abstractmethod
    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Memory:
        """A memory for a forward pass over rows like ``row`` (groups, width)."""

    @abstractmethod
    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Memory:
        """The transposed memory, for a backward pass.

        ``spare`` is the memory of the forward pass, if its space may be reused: slope ``n`` of it is free once
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
