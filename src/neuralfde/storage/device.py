"""Rows in one buffer on the device of the state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Storage


@dataclass(frozen=True)
class Device(Storage):
    """One buffer of N rows beside the state. Histories that keep every row anyway share theirs with it."""

    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceTape:
        """See :class:`Storage`."""
        return DeviceTape(torch.empty(count, *shape, dtype=dtype, device=device))


class DeviceTape:
    """A buffer, one row a step."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer

    def write(self, n: int, row: Tensor) -> None:
        """See :class:`Tape`."""
        self.buffer[n].copy_(row)

    def read(self, n: int) -> Tensor:
        """See :class:`Tape`."""
        return self.buffer[n]

    @property
    def bytes(self) -> int:
        """See :class:`Tape`."""
        return self.buffer.numel() * self.buffer.element_size()
