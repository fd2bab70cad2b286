"""The whole past, summed by FFT: exact, and fast on long horizons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import whole
from ..base.policy import FFT_CHUNK
from .base import Block, History, Memory
from .full import Blocked, room_for
from .matrices import Rows, Toeplitz


@dataclass(frozen=True)
class FFT(History):
    """The whole past, summed exactly; the contributions of distant blocks are computed by FFT.

    For N steps of d elements it takes O(N log² N · d) work and N·d memory.

    Args:
        block: the number of steps in the smallest block.
        growth: the factor by which blocks grow from level to level; the largest, which is held in full while it is
            being filled, stays a fraction of the horizon.
    """

    block: int = 64
    growth: int = 8
    keeps_slopes = True

    def __post_init__(self) -> None:
        whole("FFT.block", self.block)
        whole("FFT.growth", self.growth, least=2)

    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Blocked:
        """See :class:`History`."""
        return self._open(weights, steps, row, None, False, False)

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Blocked:
        """See :class:`History`."""
        return self._open(weights, steps, row, spare, weigh, True)

    def levels(self, steps: int) -> tuple[int, ...]:
        """The block sizes for this many steps, in ascending order."""
        sizes = [self.block]
        while sizes[-1] * self.growth * 2 <= steps:
            sizes.append(sizes[-1] * self.growth)
        return tuple(sizes)

    def _open(
        self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool, backward: bool
    ) -> Levels:
        inputs, levels = room_for(weights, steps, row, False, spare, backward), self.levels(steps)
        return Levels(Toeplitz(weights, levels[-1]), inputs, steps, levels, backward, weigh)


class Levels(Blocked):
    """Blocks of several sizes, ``levels`` in ascending order, nested in each other.

    What a block gets from earlier rows is a part of what its parent got from rows before the parent, plus a product
    with the rows between the start of the parent and its own start. Larger products are computed by FFT.
    """

    def __init__(
        self,
        matrix: Toeplitz,
        inputs: Sequence[Rows],
        steps: int,
        levels: tuple[int, ...],
        backward: bool,
        weigh: bool,
    ) -> None:
        super().__init__(matrix, inputs, steps, levels[0], backward, weigh=weigh)
        self.levels = levels
        self.pending: list[Tensor | None] = [None] * len(levels)  # what earlier rows contribute to each level's block

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        for level in reversed(range(len(self.levels))):
            if block.start % self.levels[level] == 0:
                self.pending[level] = None  # free the last block before the next one is computed
                self.pending[level] = self._gather(level, block.start)
        far = self.pending[0]
        if far is None:
            return None
        return far.clone() if out is None else out.copy_(far)  # it may be a view of a larger block

    def _gather(self, level: int, i: int) -> Tensor | None:
        """What all rows before ``i`` contribute to the block of this level that begins there."""
        count = min(self.levels[level], self.steps + 1 - i)
        start, far = 0, None
        if level + 1 < len(self.levels):
            parent, offset = self.pending[level + 1], i % self.levels[level + 1]
            start = i - offset
            far = None if parent is None else parent[offset : offset + count]
        if start == i:
            return far
        own = self.product(i, count, start, i)
        return own if far is None else own.add_(far)

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        self.pending = [None] * len(self.levels)  # free them: the pass has ended, and only rows are needed
        return super().replay(first, count)

    @property
    def replay_block(self) -> int:
        """See :class:`Memory`."""
        return self.levels[-1]

    def product(self, first: int, count: int, a: int, b: int) -> Tensor:
        """See :class:`Blocked`."""
        if count <= self.block or b - a <= self.block:
            return super().product(first, count, a, b)
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


def _fast_length(n: int) -> int:
    """The smallest 2^a·3^b·5^c ≥ n with a ≥ 2: a length for which an FFT is fast."""
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
