"""Rows in host memory or in a file, so that device memory does not grow with the horizon."""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.policy import TRANSFER_BYTES, TRANSFER_LEAST, TRANSFER_ROWS
from ..errors import InputError, InputTypeError
from .base import Storage, Tape, check_dtype
from .device import DeviceTape
from .pinned import PinnedTape


@dataclass(frozen=True)
class Host(Storage):
    """Rows in pinned host memory: copied there on a side stream, and back one block ahead of the backward pass.

    Args:
        path: for states on the CPU, a folder: rows go to a temporary file there, for horizons beyond memory. The file
            is read and written a block at a time, not mapped, since mapped pages would count as memory of the process.
        dtype: the dtype of stored rows, as for ``Device``.
    """

    path: str | os.PathLike[str] | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_dtype("Host", self.dtype)
        if self.path is not None and not isinstance(self.path, str | os.PathLike):
            raise InputTypeError(f"Host.path must be the path of a folder, got {type(self.path).__name__}.")

    def open(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tape:
        """See ``Storage``."""
        stored = self.dtype or dtype
        row = torch.Size(shape).numel() * stored.itemsize
        rows = max(1, min(count, max(TRANSFER_ROWS, TRANSFER_LEAST // row), TRANSFER_BYTES // row))
        if device.type == "cuda":
            if self.path is not None:
                raise InputError(
                    "Host(path=...) is for states on the CPU; on a GPU rows go to pinned host memory. Drop path=, "
                    "or use storage='checkpoint', which needs no host memory."
                )
            return PinnedTape(count, shape, stored, dtype, device, rows)
        if self.path is None:
            return DeviceTape(torch.empty(count, *shape, dtype=stored, device=device), dtype)
        return FileTape(os.fspath(self.path), shape, stored, dtype, rows)


class FileTape:
    """A temporary file of rows without a name; it is deleted together with the tape."""

    def __init__(self, folder: str, shape: tuple[int, ...], stored: torch.dtype, dtype: torch.dtype, rows: int) -> None:
        self.rows, self.dtype = rows, dtype
        self.row_bytes = torch.Size(shape).numel() * stored.itemsize
        self.memory = bytearray(rows * self.row_bytes)
        self.stage = torch.frombuffer(self.memory, dtype=stored).view(rows, *shape)
        try:
            self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise InputError(
                f"Host(path={folder!r}): no file can be made: {error.strerror}. Give a folder that exists and can be "
                "written to."
            ) from error
        self.close = weakref.finalize(self, self.file.close)
        self.held = 0  # the block in the stage
        self.dirty = False

    def write_rows(self, n: int, rows: Tensor) -> None:
        """See ``Tape``."""
        for i, row in enumerate(rows, n):
            block, k = divmod(i, self.rows)
            if block != self.held:
                self._flush()
                self.held = block
            self.stage[k].copy_(row)
            self.dirty = True

    def read(self, n: int) -> Tensor:
        """See ``Tape``."""
        block, k = divmod(n, self.rows)
        if block != self.held:
            self._flush()
            self.file.seek(block * self.rows * self.row_bytes)
            self._all(self.file.readinto(self.memory))
            self.held = block
        return self.stage[k].to(self.dtype)

    def _flush(self) -> None:
        if self.dirty:
            self.file.seek(self.held * self.rows * self.row_bytes)
            self._all(self.file.write(self.memory))
            self.dirty = False

    def _all(self, moved: int | None) -> None:
        if moved != len(self.memory):
            raise OSError(f"moved {moved} of {len(self.memory)} bytes of stored rows; is the disk full?")

    @property
    def bytes(self) -> int:
        """See ``Tape``: the block that is in memory."""
        return len(self.memory)
