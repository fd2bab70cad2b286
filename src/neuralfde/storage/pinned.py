"""Rows of a GPU in pinned host memory, copied on a side stream while the device computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.policy import PINNED_BYTES


class PinnedTape:
    """Blocks of ``rows`` rows. Two of them are on the device, so that one is copied while the other is used."""

    def __init__(
        self,
        count: int,
        shape: tuple[int, ...],
        stored: torch.dtype,
        dtype: torch.dtype,
        device: torch.device,
        rows: int,
    ) -> None:
        self.count, self.rows, self.dtype, self.device = count, rows, dtype, device
        self.shape, self.stored = shape, stored
        block = rows * torch.Size(shape).numel() * stored.itemsize
        self.per_chunk = max(1, PINNED_BYTES // block)
        self.chunks: list[Tensor] = []
        self.stage = torch.empty(2, rows, *shape, dtype=stored, device=device)
        self.side = side_stream(device)
        self.stage.record_stream(self.side)  # once freed, it is not reused before its last transfer is done
        self.moved = [torch.cuda.Event(), torch.cuda.Event()]  # the end of the last transfer of each half
        self.reading = False
        self.coming: set[int] = set()

    def write_rows(self, n: int, rows: Tensor) -> None:
        """See ``Tape``."""
        while rows.shape[0] > 0:
            block, k = divmod(n, self.rows)
            half = block % 2
            if k == 0 and block > 1:
                torch.cuda.current_stream(self.device).wait_event(self.moved[half])
            part = rows[: self.rows - k]
            self.stage[half, k : k + part.shape[0]].copy_(part)
            n, rows = n + part.shape[0], rows[part.shape[0] :]
            if n % self.rows == 0 or n == self.count:
                self._send(block)

    def read(self, n: int) -> Tensor:
        """See ``Tape``."""
        block, k = divmod(n, self.rows)
        if block not in self.coming:
            self._fetch(block)
        if k == self.rows - 1 or n == self.count - 1 or not self.reading:
            torch.cuda.current_stream(self.device).wait_event(self.moved[block % 2])
            self.reading = True
            self.coming = {block}
            if block > 0:
                self._fetch(block - 1)
        return self.stage[block % 2, k].to(self.dtype)

    def read_rows(self, steps: range) -> Tensor:
        """See ``Tape``."""
        rows, n = torch.empty(len(steps), *self.shape, dtype=self.dtype, device=self.device), steps[0]
        while n >= steps[-1]:
            self.read(n)
            (block, k), low = divmod(n, self.rows), max(steps[-1], n - n % self.rows)
            part = self.stage[block % 2, low % self.rows : k + 1]
            rows[steps[0] - n : steps[0] - low + 1] = part.flip(0)
            n = low - 1
        return rows

    def _host(self, block: int) -> Tensor:
        chunk, place = divmod(block, self.per_chunk)
        while chunk >= len(self.chunks):
            left = -(-self.count // self.rows) - len(self.chunks) * self.per_chunk
            size = min(left, self.per_chunk)
            self.chunks.append(torch.empty(size, self.rows, *self.shape, dtype=self.stored, pin_memory=True))
        return self.chunks[chunk][place]

    def _send(self, block: int) -> None:
        half = block % 2
        target = self._host(block)
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            target.copy_(self.stage[half], non_blocking=True)
            self.moved[half].record(self.side)

    def _fetch(self, block: int) -> None:
        """Copy a block back, after the device has finished with the half that it goes to."""
        half = block % 2
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            self.stage[half].copy_(self._host(block), non_blocking=True)
            self.moved[half].record(self.side)
        self.coming.add(block)

    @property
    def bytes(self) -> int:
        """See ``Tape``."""
        return self.stage.nbytes


_SIDES: dict[torch.device, torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for transfers of a device."""
    if device not in _SIDES:
        _SIDES[device] = torch.cuda.Stream(device)
    return _SIDES[device]
