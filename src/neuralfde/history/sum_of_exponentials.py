"""The memory behind ``exponentials``: a block of exact rows and a few exponentially fading sums of all older rows.

When a block begins at step ``a``, the B rows before it are still exact, and the sums are
``S_i = Σ_{j<a-B} e^{-s_i (a-B-j)} v_j``. The rows contribute to the block by one matrix product, the sums by another:
``Σ_i c_i e^{-s_i q} S_i`` in row ``a + q``. When a block ends, its predecessor is added to the sums. Fed from the last
step to the first, the same object applies the transposed matrix.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from .base import Block, Memory
from .matrices import summed_by_lag, toeplitz_inner


class SumOfExponentials(Memory):
    """One pass; it holds K fading sums and the B rows of the block before.

    Args:
        weights: 2B near weights, then K coefficients: (sums, 2B + K, groups).
        rates: the rates (K,) of the exponentials, per step.
        steps: rows are numbered 0 … steps.
        row: a tensor with the shape (groups, width), dtype and device of the rows.
        block: B, the number of steps in a block.
        backward: from the last row to the first, with the transposed matrix.
        weigh: in a backward pass, also accumulate the gradient of the weights.
    """

    def __init__(
        self, weights: Tensor, rates: Tensor, steps: int, row: Tensor, block: int, backward: bool, weigh: bool
    ) -> None:
        self.steps, self.block, self.backward = steps, block, backward
        sums, count, groups = weights.shape
        self.terms = count - 2 * block
        self.ins, self.outs = (sums, 1) if backward else (1, sums)
        self._weights, self._rates = weights, rates
        self.older = row.new_zeros(groups, self.ins, self.terms, row.shape[1])
        self.previous = row.new_zeros(groups, self.ins, block, row.shape[1])
        if weigh:
            self.weights_grad = weights.new_zeros(sums, groups, count)

    @cached_property
    def tables(self) -> _Tables:
        """The small matrices of the pass, made on demand: a single long block does not need them."""
        return _Tables(self._weights, self._rates, self.block, self.backward)

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        if block.start == 0:
            return None
        groups, _, _, width = self.previous.shape
        rows, tables = block.count * self.outs, self.tables
        near, far = tables.near[:, : block.count].flatten(1, 2), tables.far[:, : block.count].flatten(1, 2)
        if groups == 1:
            found = self.previous.new_empty(rows, width) if out is None else out.view(rows, width)
            torch.mm(near[0], self.previous[0].flatten(0, 1), out=found)
            if self.terms:
                found.addmm_(far[0], self.older[0].flatten(0, 1))
            return found.view(block.count, self.outs, 1, width)
        total = near @ self.previous.flatten(1, 2)
        if self.terms:
            total.baddbmm_(far, self.older.flatten(1, 2))
        total = total.view(groups, block.count, self.outs, width).permute(1, 2, 0, 3)
        return total.contiguous() if out is None else out.copy_(total)

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        return self.tables.inner(block.count)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        if self.weights_grad is not None and slopes is not None:
            self._correlate(rows, slopes)
        if block.count < self.block:  # the last block: no later one needs its rows
            return
        if self.terms:
            self.older.mul_(self.tables.decay)
            fold = self.tables.fold.expand(self.older.shape[0] * self.ins, -1, -1)
            self.older.flatten(0, 1).baddbmm_(fold, self.previous.flatten(0, 1))
        self.previous.copy_(rows.permute(2, 1, 0, 3))

    @property
    def snapshot_rows(self) -> int:
        """See :class:`Memory`: the fading sums and the block before, K + B."""
        return self.terms + self.block

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Memory`."""
        return self.older.clone(), self.previous.clone()

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Memory`."""
        for mine, then in zip((self.older, self.previous), kept or (0, 0), strict=True):
            mine.copy_(then) if isinstance(then, Tensor) else mine.zero_()

    @property
    def bytes(self) -> int:
        """See :class:`Memory`."""
        return sum(b.numel() * b.element_size() for b in (self.older, self.previous))

    def _correlate(self, rows: Tensor, slopes: Tensor) -> None:
        """Add ``⟨v_i, μ_{i'}⟩`` of a block to the gradient of the weight of lag ``i - i'``, or of the coefficients."""
        assert self.weights_grad is not None
        count = slopes.shape[0]
        mine = slopes.transpose(0, 1)  # (groups, own, width)
        near, far = self.weights_grad.split([2 * self.block, self.terms], dim=-1)
        for k in range(self.ins):
            past = torch.cat([self.previous[:, k], rows[:, k].transpose(0, 1)], dim=1)
            near[k, :, 1 : self.block + count] += summed_by_lag(mine @ past.transpose(1, 2))[:, 1:]
            if self.terms:
                far[k].add_(((mine @ self.older[:, k].transpose(1, 2)) * self.tables.fade[:count]).sum(1))


class _Tables:
    """The small matrices of a pass; exponentials are computed in float64.

    Attributes:
        near: the weights of the block before in the rows of a block, (groups, row, output, input · B).
        far: the weights of the fading sums in these rows, (groups, row, output, input · K).
        fold: the weights of the block before in the sums, (K, B).
        fade: what is left of the sums in each row of a block, (B, K), without the coefficients.
        decay: what is left of the sums after a block, (K, 1).
    """

    def __init__(self, weights: Tensor, rates: Tensor, size: int, backward: bool) -> None:
        self.lags, c = weights.permute(0, 2, 1).split([2 * size, weights.shape[1] - 2 * size], dim=-1)
        self.backward = backward
        q = torch.arange(size, dtype=torch.float64)
        index = (torch.arange(size)[:, None] + size - torch.arange(size)).to(weights.device)
        self.fade = torch.exp(-q[:, None] * rates).to(weights)
        self.near, self.far = self._by_rows(self.lags[..., index]), self._by_rows(c[:, :, None, :] * self.fade)
        self.decay = torch.exp(-size * rates).to(weights)[:, None]
        self.fold = torch.exp(-(size - q) * rates[:, None]).to(weights)
        self._inner: dict[int, Tensor] = {}

    def _by_rows(self, table: Tensor) -> Tensor:
        """(sums, groups, row, column) → (groups, row, output, column), or, backward, (groups, row, 1, sum · column)."""
        if self.backward:
            return table.permute(1, 2, 0, 3).flatten(2).unsqueeze(2).contiguous()
        return table.permute(1, 2, 0, 3).contiguous()

    def inner(self, count: int) -> Tensor:
        """The weights inside a block, see :meth:`Memory.inner`."""
        if count not in self._inner:
            lags = self.lags.clone()
            lags[..., 0] = 0  # the slope of the step itself belongs to the local stage
            self._inner[count] = toeplitz_inner(lags, count, self.backward)
        return self._inner[count]
