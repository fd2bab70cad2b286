"""The contract of a history: a Toeplitz matrix applied to rows that arrive one at a time, and its transpose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class Engine(Protocol):
    """One sweep. It never sees ``func``, a scheme or autograd."""

    weights_grad: Tensor | None

    @property
    def bytes(self) -> int:
        """What it holds, in bytes."""

    def recall(self, n: int) -> Tensor | None:
        """What the rows recorded so far contribute to row ``n``; None if nothing."""

    def record(self, n: int, row: Tensor, slope: Tensor | None = None) -> None:
        """Take in row ``n``."""


@runtime_checkable
class Snapshots(Engine, Protocol):
    """An engine whose past is a state of fixed size, which can be kept and gone back to at the start of a block."""

    @property
    def snapshot_rows(self) -> int:
        """How many rows a snapshot holds."""

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """The state before row ``n``, the first of a block."""

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """Go back to where a snapshot was taken; None: to the beginning."""


@runtime_checkable
class BlockEngine(Engine, Protocol):
    """An engine whose blocks can be filled by whoever runs the sweep; times are counted as the sweep meets them."""

    @property
    def single(self) -> bool:
        """Whether there is one group and one sum, so that the rows of a block are (steps, width)."""

    @property
    def block(self) -> int:
        """Steps in a block."""

    @property
    def latest_first(self) -> bool:
        """Whether rows lie in memory against the sweep."""

    @property
    def thin(self) -> Sequence[Tensor]:
        """For one group: the weights (sums, k) of the k rows before row k of a block, in memory order."""

    def room(self, i: int) -> Tensor:
        """Where the rows of the block at time ``i``, which has been recalled, are kept: (steps, width)."""

    def recall_block(self, i: int, out: Tensor | None = None) -> Tensor | None:
        """What the rows before the block at time ``i`` contribute to it: (outputs, steps, groups, width), or None.

        It goes to ``out`` (steps, width) where that is given; otherwise the caller may overwrite the result.
        """

    def record_block(self, i: int, rows: Tensor, slopes: Tensor | None = None) -> None:
        """Take in a block of rows (steps, groups, width) in memory order, with their slopes in the sweep's order."""


class History(ABC):
    """How the past is summed: a frozen description that opens engines.

    Attributes:
        block: rows are summed in blocks of this many steps.
        keeps_rows: the forward engine holds every row, so that past sums can be computed again from them.
    """

    block: int
    keeps_rows: bool

    def tabulate(self, weights: Tensor) -> Tensor:
        """Lag weights (sums, steps + 1, groups) in float64 as this history's engines take them; differentiable."""
        return weights

    @abstractmethod
    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Engine:
        """An engine for a forward sweep over rows like ``row`` (groups, width)."""

    @abstractmethod
    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Engine | None, weigh: bool) -> Engine:
        """The transposed engine, fed from the last row to the first.

        ``spare`` is the forward engine, where its memory may be taken over: row ``n`` of it is free once row ``n`` is
        recorded.
        """
