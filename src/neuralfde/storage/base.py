"""The contract of a storage: rows written in step order, read back in reverse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor


class Tape(Protocol):
    """The rows of one forward pass."""

    def write(self, n: int, row: Tensor) -> None:
        """Keep row ``n``; called with n = 0, 1, 2, …"""

    def read(self, n: int) -> Tensor:
        """Give row ``n`` back; called with n descending."""

    @property
    def bytes(self) -> int:
        """What it holds, in bytes."""


class Storage(ABC):
    """A frozen description that opens tapes."""

    @abstractmethod
    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tape:
        """A tape for ``count`` rows of this shape."""
