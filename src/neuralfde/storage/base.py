"""The contract of a storage: rows written in step order, read back in reverse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import InputTypeError


class Sizes(NamedTuple):
    """The sizes that a storage needs to recompute rows: rows, bytes of a saved state and of a row, steps in a block."""

    rows: int
    state: int
    row: int
    block: int


class Tape(Protocol):
    """The rows of one forward pass; the optional ``read_rows(steps)`` reads several, with descending steps, at once."""

    def write_rows(self, n: int, rows: Tensor) -> None:
        """Store (a copy of) rows ``n``, ``n + 1``, …, (count, *shape); called in the order of the steps."""

    def read(self, n: int) -> Tensor:
        """Row ``n``, valid until the next one is read; called with descending n."""

    @property
    def bytes(self) -> int:
        """The memory it holds on the device of the state, in bytes."""


class Storage(ABC):
    """Where the rows for the backward pass are kept: a frozen description that opens tapes.

    Attributes:
        dtype: the dtype of stored rows; None: that of the state.
        recomputes: rows are not stored but recomputed, segment by segment, from saved states of the history; ``starts``
            then returns where segments begin, and ``open`` is not called.
    """

    dtype: torch.dtype | None = None
    recomputes: bool = False

    @abstractmethod
    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tape:
        """A tape for ``count`` rows of this shape."""

    def starts(self, sizes: Sizes, count: int, kept: int) -> list[int]:
        """Where segments of ``count`` rows begin, ascending from 0, while ``kept`` states are held; whole blocks.

        If there is a single segment, its rows are computed and held. If there are several, the states at their starts
        are saved, and each segment is divided again when the backward pass reaches it.
        """
        raise NotImplementedError


def check_dtype(name: str, dtype: torch.dtype | None) -> None:
    """Raise unless ``dtype`` is one that rows can be stored in."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputTypeError(
            f"{name}(dtype={dtype!r}): rows are stored in a floating-point dtype: "
            "torch.bfloat16, torch.float16, torch.float32, or None for the dtype of the state."
        )
