"""Rows in one buffer on the device of the state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Storage, check_dtype


@dataclass(frozen=True)
class Device(Storage):
    """One buffer of N rows on the device of the state, shared with histories that keep every row anyway.

    Args:
        dtype: the dtype of stored rows. ``torch.bfloat16`` or ``torch.float16`` halves the memory of float32 rows, but
            makes the gradient approximate; sums stay in the dtype of the state.
    """

    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_dtype("Device", self.dtype)

    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DeviceTape:
        """See ``Storage``."""
        return DeviceTape(torch.empty(count, *shape, dtype=self.dtype or dtype, device=device), dtype)


class DeviceTape:
    """A buffer with one row per step, which are read in another ``dtype``."""

    def __init__(self, buffer: Tensor, dtype: torch.dtype) -> None:
        self.buffer, self.dtype = buffer, dtype

    def write_rows(self, n: int, rows: Tensor) -> None:
        """See ``Tape``."""
        self.buffer[n : n + rows.shape[0]].copy_(rows)

    def read(self, n: int) -> Tensor:
        """See ``Tape``."""
        row = self.buffer[n]
        return row if row.dtype == self.dtype else row.to(self.dtype)  # a call that does nothing takes time too

    def read_rows(self, steps: range) -> Tensor:
        """See ``Tape``."""
        return self.buffer[steps[-1] : steps[0] + 1].flip(0).to(self.dtype)

    @property
    def bytes(self) -> int:
        """See ``Tape``."""
        return self.buffer.nbytes
