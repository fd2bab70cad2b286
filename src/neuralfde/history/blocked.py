"""Weighted sums over the past by blocks: the memory behind ``full``, ``fft`` and ``window``.

When a block of steps begins, what all earlier rows contribute to it is one matrix product (or, for large blocks, one
FFT). Fed from the last step to the first, the same object applies the transposed matrix: reversing time transposes a
Toeplitz matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..base.policy import FETCH_CHUNK, FFT_CHUNK
from .axpy import add_rows
from .base import Block, Memory
from .matrices import Rows, Toeplitz, Triangular
from .panels import Panels


class Blocked(Memory):
    """One pass of a lower triangular matrix over rows that arrive block by block.

    Args:
        matrix: the weights; forward, each of its sums is an output; backward, each is an input.
        inputs: where the rows are kept, one :class:`Rows` per input.
        steps: rows are numbered 0 … steps.
        levels: block sizes, growing; each block takes from its parent block what came before it there.
        backward: from the last row to the first, with the transposed matrix.
        reach: sums go back this many steps; None: to the beginning.
        weigh: in a backward pass, also accumulate the gradient of the weights.
        panels: moments of distant rows, one :class:`Panels` per input, where these stand for the rows themselves.
    """

    def __init__(
        self,
        matrix: Toeplitz | Triangular,
        inputs: Sequence[Rows],
        steps: int,
        levels: tuple[int, ...],
        backward: bool = False,
        reach: int | None = None,
        weigh: bool = False,
        panels: Sequence[Panels] = (),
    ) -> None:
        self.matrix, self.inputs, self.steps, self.levels = matrix, inputs, steps, levels
        self.panels, self.backward, self.reach, self.block = panels, backward, reach, levels[0]
        self.pending: list[Tensor | None] = [None] * len(levels)  # what each level's block takes from before it
        self.weights_grad = torch.zeros_like(matrix.lags) if weigh else None

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        for level in reversed(range(len(self.levels))):
            if block.start % self.levels[level] == 0:
                self.pending[level] = None  # frees the last block before the next one is made
                self.pending[level] = self._gather(level, block.start)
        far = self.pending[0]
        if len(self.levels) == 1:
            self.pending[0] = None
        elif far is not None and out is None:
            far = far.clone()  # it may belong to a larger block
        return far if far is None or out is None else out.copy_(far)

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        return self.matrix.inner(block.start, block.count, self.backward)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        for own, part in zip(self.inputs, rows.unbind(1), strict=True):
            own.make_room(block.start, block.count)
            own.write(block.start, part)
        if self.weights_grad is not None and slopes is not None:
            self._correlate(block, slopes)

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        self.pending = [None] * len(self.levels)  # the pass has ended; the rows stay
        return self.product(first, count, 0, first + count)

    @property
    def replay_block(self) -> int:
        """See :class:`Memory`."""
        return self.levels[-1]

    def kept(self, n: int) -> Tensor:
        """See :class:`Memory`."""
        return self.inputs[0].buffer[n]

    def kept_rows(self, steps: range) -> Tensor:
        """See :class:`Memory`."""
        return self.inputs[0].buffer[steps[-1] : steps[0] + 1].flip(0)

    @property
    def bytes(self) -> int:
        """See :class:`Memory`."""
        held = [*[rows.buffer for rows in self.inputs], *[panels.buffer for panels in self.panels]]
        return sum(b.numel() * b.element_size() for b in held)

    @property
    def snapshot_rows(self) -> int:
        """Rows in a snapshot: as far as the window reaches, or all."""
        return self.steps if self.reach is None else self.reach

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Memory`."""
        first = self._oldest(n)
        return torch.tensor(first), self.inputs[0].slice(first, n).clone()

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Memory`."""
        rows = self.inputs[0]
        rows.offset = 0 if kept is None else int(kept[0])
        if kept is not None:
            rows.buffer[: kept[1].shape[0]].copy_(kept[1])

    def product(self, first: int, count: int, a: int, b: int) -> Tensor:
        """Contributions of times [a, b) to rows first … first+count-1: (count, outputs, groups, width)."""
        if len(self.levels) > 1 and count > self.levels[0] and b - a > self.levels[0]:
            return self._fft_product(first, count, a, b)
        distant = self.panels[0].table.count(first) if self.panels and a == 0 else 0
        if distant:
            a = distant * self.panels[0].table.length
        blocks = self.matrix.block(first, count, a, b, self.inputs[0].backward)
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

    def _gather(self, level: int, i: int) -> Tensor | None:
        """What the block of this level that begins at ``i`` takes from its parent, and from rows inside the parent."""
        count = min(self.levels[level], self.steps + 1 - i)
        start, far = 0, None
        if level + 1 < len(self.levels):
            parent, offset = self.pending[level + 1], i % self.levels[level + 1]
            start = i - offset
            far = None if parent is None else parent[offset : offset + count]
        start = max(start, self._oldest(i))
        if start == i:
            return far
        own = self.product(i, count, start, i)
        return own if far is None else own.add_(far)

    def _fft_product(self, first: int, count: int, a: int, b: int) -> Tensor:
        assert isinstance(self.matrix, Toeplitz)
        lags = self.matrix.lags[..., : first + count - a]
        size = _fast_length(lags.shape[-1] + max(0, b - first))
        spectrum = torch.fft.rfft(lags, size)[..., None]  # (sums, groups, frequency, 1)
        groups, width = self.inputs[0].buffer.shape[1:]
        outputs = 1 if self.backward else lags.shape[0]
        out = lags.new_empty(count, outputs, groups, width)
        chunk = max(1, FFT_CHUNK // (size * groups))
        for c in range(0, width, chunk):
            total = spectrum.new_zeros(())
            for k, rows in enumerate(self.inputs):
                part = rows.slice(a, b)[:, :, c : c + chunk]
                part = part.flip(0) if rows.backward else part
                wave = torch.fft.rfft(part.permute(1, 0, 2), size, dim=1)
                total = total + (spectrum[k : k + 1] if self.backward else spectrum) * wave
            total = torch.fft.irfft(total, size, dim=2)[:, :, first - a : first - a + count]
            out[..., c : c + chunk] = total.permute(2, 0, 1, 3)
        return out

    def _inner_products(self, slopes: Tensor, past: Tensor) -> Tensor:
        """Inner products of slopes and rows: (groups, own, times)."""
        return slopes.permute(1, 0, 2) @ past.permute(1, 2, 0)

    def _correlate(self, block: Block, slopes: Tensor) -> None:
        """Add ``⟨v_i, μ_{i'}⟩`` to the gradient of the weight of lag ``i - i'`` for the slopes of one block."""
        assert self.weights_grad is not None
        a = self._oldest(block.start)
        times = torch.arange(a, block.stop, device=slopes.device)
        own = torch.arange(block.start, block.stop, device=slopes.device)
        times = times.flip(0) if self.inputs[0].backward else times
        for k, rows in enumerate(self.inputs):
            inner = self._inner_products(slopes, rows.slice(a, block.stop))
            self.matrix.correlate(self.weights_grad[k], inner, own, times, self.reach or self.steps)


class HostBlocked(Blocked):
    """The same with rows in host memory; what a sum needs of them comes to the weights' device in parts."""

    def _apply(self, blocks: Tensor, past: Sequence[Tensor]) -> Tensor:
        out = blocks.new_empty(blocks.shape[-2], 1 if self.backward else len(blocks), *past[0].shape[1:])
        for a, b in _parts(past):
            out[..., a:b] = super()._apply(blocks, [_fetched(rows, a, b, blocks) for rows in past])
        return out

    def _inner_products(self, slopes: Tensor, past: Tensor) -> Tensor:
        out = slopes.new_zeros(slopes.shape[1], slopes.shape[0], past.shape[0])
        for a, b in _parts([past]):
            out += super()._inner_products(slopes[..., a:b], _fetched(past, a, b, slopes))
        return out

    @property
    def bytes(self) -> int:
        """What it holds on the device."""
        return 0


def _parts(past: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Columns [a, b) of these rows that are fetched at once."""
    width, times = past[0].shape[-1], sum(p[..., 0].numel() for p in past)
    size = max(1, FETCH_CHUNK // max(1, times))
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
    """(sums, groups, count, times) × (times, groups, width) → (count, sums, groups, width)."""
    sums, groups, count, times = weights.shape
    stacked = weights.permute(1, 2, 0, 3).reshape(groups, count * sums, times)
    if groups == 1 and count * sums == 1 and past.is_cuda:  # a product of matrices takes a few times as long
        out = past.new_zeros(1, past.shape[2])
        add_rows(out, stacked[0], past[:, 0])
        return out.view(1, 1, 1, -1)
    if groups == 1:
        return (stacked[0] @ past[:, 0]).view(count, sums, 1, -1)
    out = stacked @ past.permute(1, 0, 2)
    return out.view(groups, count, sums, -1).permute(1, 2, 0, 3)


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
