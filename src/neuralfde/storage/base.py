"""The contract of a storage: rows written in step order, read back in reverse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import InputTypeError


class Sizes(NamedTuple):
    """A solve as a storage that recomputes sees it: its rows, bytes of a kept state and of a row, steps in a block."""

    rows: int
    state: int
    row: int
    block: int


class Tape(Protocol):
    """The rows of one forward pass; one that has ``read_rows(steps)`` gives those of descending steps at once."""

    def write_rows(self, n: int, rows: Tensor) -> None:
        """Keep (a copy of) rows ``n``, ``n + 1``, …, (count, *shape); called in the order of the steps."""

    def read(self, n: int) -> Tensor:
        """Give row ``n`` back, until the next one is read; called with n descending."""

    @property
    def bytes(self) -> int:
        """What it holds on the device of the state, in bytes."""


class Storage(ABC):
    """A frozen description that opens tapes.

    Attributes:
        dtype: what rows are stored in; None: the dtype of the state.
        recomputes: rows are not kept but computed again, segment by segment, from kept states of the history;
            ``starts`` then says where segments begin, and ``open`` is not called.
    """

    dtype: torch.dtype | None = None
    recomputes: bool = False

    @abstractmethod
    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tape:
        """A tape for ``count`` rows of this shape."""

    def starts(self, sizes: Sizes, count: int, kept: int) -> list[int]:
        """Where segments of ``count`` rows begin, ascending from 0, while ``kept`` states are held; whole blocks.

        The rows of a single segment are computed and held. Of several the states at their starts are kept, and each is
        asked for again when the backward pass reaches it.
        """
        raise NotImplementedError


def check_dtype(name: str, dtype: torch.dtype | None) -> None:
    """Raise unless ``dtype`` is one that rows can be stored in."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputTypeError(
            f"{name}(dtype={dtype!r}): rows are stored in a floating-point dtype: "
            "torch.bfloat16, torch.float16, torch.float32, or None for the dtype of the state."
        )
