"""Weighted sums over the past by blocks: the engine behind ``full``, ``fft`` and ``window``.

Rows arrive one at a time. Steps are grouped into blocks; when a block begins, what all earlier rows contribute to it
is one matrix product (or, for large blocks, one FFT), and inside the block each step adds one thin product. Fed from
the last step to the first, the same object applies the transposed matrix: reversing time transposes a Toeplitz matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .matrices import Rows, Toeplitz, Triangular
from .panels import Panels

# Numbers alive at once in an FFT product: 2^22 are 16 MiB in single precision.
_FFT_CHUNK = 1 << 22
# Numbers fetched at once from rows on the host.
_FETCHED = 1 << 22


class Blocked:
    """One sweep of a Toeplitz matrix over rows that arrive one at a time.

    Args:
        toeplitz: the weights; forward, each of its sums is an output; backward, each is an input.
        inputs: where the rows are kept, one :class:`Rows` per input.
        steps: rows are numbered 0 … steps.
        levels: block sizes, growing; each block takes from its parent block what came before it there.
        backward: sweep from the last row to the first, with the transposed matrix.
        weigh: in a backward sweep, also accumulate the gradient of the weights.
        panels: moments of distant rows, one :class:`Panels` per input, where these stand for the rows themselves.
    """

    by_views = True  # whether products read rows where they are
    apart = False  # whether each row of a block's sums is given back as soon as it has been recalled

    def __init__(
        self,
        toeplitz: Toeplitz | Triangular,
        inputs: Sequence[Rows],
        steps: int,
        levels: tuple[int, ...],
        backward: bool = False,
        reach: int | None = None,
        weigh: bool = False,
        panels: Sequence[Panels] = (),
    ) -> None:
        self.toeplitz = toeplitz
        self.panels = panels
        self.inputs = inputs
        self.steps = steps
        self.levels = levels
        self.backward = backward
        self.reach = reach
        self.pending: list[Tensor | None] = [None] * len(levels)
        self.weights_grad = torch.zeros_like(toeplitz.lags) if weigh else None
        self._slopes: list[Tensor] = []
        self._recorded = 0  # rows taken in by whole blocks
        self._start = -levels[0]  # the time at which the current block begins
        self._far: list[Any] | None = None  # what older rows contribute to each row of the block
        self._slots: list[Sequence[Tensor]] = []
        self.latest_first = inputs[0].backward
        self._block: Tensor | None = None
        one = isinstance(toeplitz, Toeplitz) and toeplitz.groups == 1 and len(inputs) == 1
        near = self.by_views and (reach is None or reach >= levels[0])
        self._flat = one and near  # thin products are single calls on flat views

    @cached_property
    def thin(self) -> list[Tensor]:
        """See :class:`BlockEngine`."""
        assert isinstance(self.toeplitz, Toeplitz)
        return self.toeplitz.near(self.levels[0], self.latest_first)

    def recall(self, n: int) -> Tensor | None:
        """What the rows recorded so far contribute to row ``n``: (outputs, groups, width); None if nothing yet.

        The result may be overwritten by the caller.
        """
        i = self.steps - n if self.backward else n
        k = i - self._start
        if k == self.levels[0]:
            self._begin(i)
            k, count = 0, min(self.levels[0], self.steps + 1 - i)
            self._slots = [rows.slots(i, count) for rows in self.inputs]
            self._far = None if self.pending[0] is None else list(self.pending[0].unbind(1))
            if self.apart and self._far is not None:
                self._far, self.pending[0] = [row.clone() for row in self._far], None
            if self._flat:
                self._block = self.inputs[0].slice(i, i + count)[:, 0]
        far = None
        if self._far is not None:
            far, self._far[k] = self._far[k], None
        if k == 0:
            return far
        if self._block is None:
            near = self.product(i, 1, max(self._start, self._oldest(i)), i)[:, 0]
            return near if far is None else near.add_(far)
        past = self._block[-k:] if self.latest_first else self._block[:k]
        near = self.thin[k] @ past if far is None else torch.addmm(far[:, 0], self.thin[k], past)
        return near.unsqueeze(1)

    def record(self, n: int, row: Tensor, slope: Tensor | None = None) -> None:
        """Take in row ``n``: (inputs, groups, width); ``slope`` is ``v_n`` where weights need a gradient."""
        i = self.steps - n if self.backward else n
        for slots, part in zip(self._slots, row, strict=True):
            slots[i - self._start].copy_(part)
        if self.weights_grad is not None and slope is not None:
            self._slopes.append(slope)
            if (i + 1) % self.levels[0] == 0 or i == self.steps:
                self._correlate(i + 1)

    def rest(self) -> None:
        """Let go of the current block's sums once the sweep has ended; the rows stay."""
        self.pending = [None] * len(self.levels)
        self._far = None

    @property
    def block(self) -> int:
        """Steps in the smallest block."""
        return self.levels[0]

    @property
    def single(self) -> bool:
        """See :class:`BlockEngine`."""
        return self._flat and self.toeplitz.lags.shape[0] == 1

    @property
    def started(self) -> bool:
        """Whether a block of rows has been recorded."""
        return self._recorded > 0

    def recall_block(self, i: int, out: Tensor | None = None) -> Tensor | None:
        """See :class:`BlockEngine`."""
        self._begin(i)
        far = self.pending[0]
        if far is not None and (out is not None or len(self.levels) > 1):  # it may belong to a larger block
            far = far.clone() if out is None else out.copy_(far.view_as(out))
        if len(self.levels) == 1:
            self.pending[0] = None
        return far

    def room(self, i: int) -> Tensor:
        """See :class:`BlockEngine`."""
        return self.inputs[0].slice(i, min(i + self.levels[0], self.steps + 1))[:, 0]

    def filled(self, count: int) -> None:
        """So many rows have been written where :meth:`room` keeps them."""
        self._recorded += count

    def record_block(self, i: int, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`BlockEngine`."""
        count = rows.shape[-3]
        for own, part in zip(self.inputs, rows.view(-1, *rows.shape[-3:]), strict=True):
            target = own.slice(i, i + count)
            if target.data_ptr() != part.data_ptr():
                target.copy_(part)
        self.filled(count)
        if self.weights_grad is not None and slopes is not None:
            self._slopes = list(slopes.unbind(0))
            self._correlate(i + count)

    @property
    def bytes(self) -> int:
        """What it holds, in bytes."""
        held = [*[rows.buffer for rows in self.inputs], *[panels.buffer for panels in self.panels]]
        return sum(b.numel() * b.element_size() for b in held)

    @property
    def snapshot_rows(self) -> int:
        """Rows in a snapshot: as far as the window reaches, or all."""
        return self.steps if self.reach is None else self.reach

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Snapshots`."""
        first = self._oldest(n)
        return torch.tensor(first), self.inputs[0].slice(first, n).clone()

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Snapshots`."""
        rows = self.inputs[0]
        rows.offset = first = 0 if kept is None else int(kept[0])
        count = 0 if kept is None else kept[1].shape[0]
        if kept is not None:
            rows.buffer[:count].copy_(kept[1])
        self._start = first + count - self.levels[0]  # the next row begins a block

    def product(self, first: int, count: int, a: int, b: int) -> Tensor:
        """Contributions of times [a, b) to rows first … first+count-1: (outputs, count, groups, width)."""
        if len(self.levels) > 1 and count > self.levels[0] and b - a > self.levels[0]:
            return self._fft_product(first, count, a, b)
        distant = self.panels[0].table.count(first) if self.panels and a == 0 else 0
        if distant:
            a = distant * self.panels[0].table.length
        blocks = self.toeplitz.block(first, count, a, b, self.inputs[0].backward)
        near = self._apply(blocks, [rows.slice(a, b) for rows in self.inputs])
        return near if distant == 0 else near.add_(self._distant(first, count, distant))

    def _distant(self, first: int, count: int, panels: int) -> Tensor:
        """What the first panels contribute to these rows, from their moments."""
        for own, rows in zip(self.panels, self.inputs, strict=True):
            while own.done < panels:
                start = own.done * own.table.length
                own.take(rows.slice(start, start + own.table.length))
        blocks = self.panels[0].table.block(first, count, panels, self.inputs[0].backward)
        return self._apply(blocks, [own.slice(panels) for own in self.panels])

    def _apply(self, blocks: Tensor, past: Sequence[Tensor]) -> Tensor:
        """Blocks (sums, groups, count, times) times rows: forward each sum is an output, backward an input."""
        if not self.backward:
            return _matmul(blocks, past[0])
        parts = [_matmul(w[None], rows) for w, rows in zip(blocks, past, strict=True)]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def _oldest(self, i: int) -> int:
        return 0 if self.reach is None else max(0, i - self.reach)

    def _begin(self, i: int) -> None:
        """Blocks that begin at time ``i``: gather what their parents hold so far."""
        self._far = None  # frees the last block before the next one is made
        for level in reversed(range(len(self.levels))):
            if i % self.levels[level] == 0:
                self.pending[level] = None
                self.pending[level] = self._gather(level, i)
        self._start = i
        for rows in self.inputs:
            rows.make_room(i, min(self.levels[0], self.steps + 1 - i))

    def _gather(self, level: int, i: int) -> Tensor | None:
        """What the block of this level that begins at ``i`` takes from its parent, and from rows inside the parent."""
        count = min(self.levels[level], self.steps + 1 - i)
        start, far = 0, None
        if level + 1 < len(self.levels):
            parent, offset = self.pending[level + 1], i % self.levels[level + 1]
            start = i - offset
            far = None if parent is None else parent[:, offset : offset + count]
        start = max(start, self._oldest(i))
        if start == i:
            return far
        own = self.product(i, count, start, i)
        return own if far is None else own.add_(far)

    def _fft_product(self, first: int, count: int, a: int, b: int) -> Tensor:
        assert isinstance(self.toeplitz, Toeplitz)
        lags = self.toeplitz.lags[..., : first + count - a]
        size = _fast_length(lags.shape[-1] + max(0, b - first))
        spectrum = torch.fft.rfft(lags, size)[..., None]  # (sums, groups, frequency, 1)
        groups, width = self.inputs[0].buffer.shape[1:]
        outputs = 1 if self.backward else lags.shape[0]
        out = lags.new_empty(outputs, count, groups, width)
        chunk = max(1, _FFT_CHUNK // (size * groups))
        for c in range(0, width, chunk):
            total = spectrum.new_zeros(())
            for k, rows in enumerate(self.inputs):
                part = rows.slice(a, b)[:, :, c : c + chunk]
                part = part.flip(0) if rows.backward else part
                wave = torch.fft.rfft(part.permute(1, 0, 2), size, dim=1)
                total = total + (spectrum[k : k + 1] if self.backward else spectrum) * wave
            total = torch.fft.irfft(total, size, dim=2)[:, :, first - a : first - a + count]
            out[..., c : c + chunk] = total.permute(0, 2, 1, 3)
        return out

    def _inner(self, slopes: Tensor, past: Tensor) -> Tensor:
        """Inner products of slopes and rows: (groups, own, times)."""
        return slopes.permute(1, 0, 2) @ past.permute(1, 2, 0)

    def _correlate(self, end: int) -> None:
        """Add ``⟨v_i, μ_{i'}⟩`` to the gradient of the weight of lag ``i - i'`` for the slopes of one block."""
        assert self.weights_grad is not None
        slopes = torch.stack(self._slopes)
        self._slopes = []
        first = end - slopes.shape[0]
        a = self._oldest(first)
        times = torch.arange(a, end, device=slopes.device)
        own = torch.arange(first, end, device=slopes.device)
        times = times.flip(0) if self.inputs[0].backward else times
        for k, rows in enumerate(self.inputs):
            inner = self._inner(slopes, rows.slice(a, end))
            self.toeplitz.correlate(self.weights_grad[k], inner, own, times, self.reach or self.steps)


class HostBlocked(Blocked):
    """The same with rows in host memory; what a sum needs of them comes to the weights' device in parts."""

    by_views = False

    def _apply(self, blocks: Tensor, past: Sequence[Tensor]) -> Tensor:
        out = blocks.new_empty(1 if self.backward else len(blocks), blocks.shape[-2], *past[0].shape[1:])
        for a, b in _parts(past):
            out[..., a:b] = super()._apply(blocks, [_fetched(rows, a, b, blocks) for rows in past])
        return out

    def _inner(self, slopes: Tensor, past: Tensor) -> Tensor:
        out = slopes.new_zeros(slopes.shape[1], slopes.shape[0], past.shape[0])
        for a, b in _parts([past]):
            out += super()._inner(slopes[..., a:b], _fetched(past, a, b, slopes))
        return out

    @property
    def bytes(self) -> int:
        """What it holds on the device."""
        return 0


def _parts(past: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Columns [a, b) of these rows that are fetched at once."""
    width, times = past[0].shape[-1], sum(p[..., 0].numel() for p in past)
    size = max(1, _FETCHED // max(1, times))
    return [(a, min(a + size, width)) for a in range(0, width, size)]


def _fetched(rows: Tensor, a: int, b: int, like: Tensor) -> Tensor:
    """Columns [a, b) of rows on the device of ``like``; row by row, since each is one piece of pinned memory."""
    if rows.device == like.device:
        return rows[..., a:b]
    out = like.new_empty(*rows.shape[:-1], b - a)
    for there, here in zip(out.flatten(0, 1), rows.flatten(0, 1), strict=True):
        there.copy_(here[a:b], non_blocking=True)
    return out


def _matmul(weights: Tensor, past: Tensor) -> Tensor:
    """(sums, groups, count, times) × (times, groups, width) → (sums, count, groups, width)."""
    sums, groups, count, times = weights.shape
    if groups == 1:
        return (weights.reshape(sums * count, times) @ past[:, 0]).view(sums, count, 1, -1)
    stacked = weights.permute(1, 0, 2, 3).reshape(groups, sums * count, times)
    out = stacked @ past.permute(1, 0, 2)
    return out.view(groups, sums, count, -1).permute(1, 2, 0, 3)


def _fast_length(n: int) -> int:
    """The smallest 2^a·3^b·5^c ≥ n with a ≥ 2: lengths an FFT likes."""
    best = 1 << max(2, (n - 1).bit_length())
    five = 1
    while five < best:
        three = five
        while three < best:
            two = max(4, 1 << max(0, -(-n // three) - 1).bit_length())
            best = min(best, three * two) if three * two >= n else best
            three *= 3
        five *= 5
    return best
