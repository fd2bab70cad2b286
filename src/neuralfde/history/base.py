"""The contract of a history: a Toeplitz matrix applied to rows that arrive one at a time, and its transpose."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Tensor | None, weigh: bool) -> Engine:
        """The transposed engine, fed from the last row to the first.

        ``spare`` is a buffer of (steps + 1) rows it may overwrite: row ``n`` is free once row ``n`` is recorded.
        """
