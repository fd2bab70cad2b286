"""The engine behind ``exponentials``: a block of exact rows and a few exponentially fading sums of all older rows.

At the start ``a`` of a block, with B rows before it still exact, the sums are ``S_i = Σ_{j<a-B} e^{-s_i (a-B-j)} v_j``.
The block before contributes to the new one as one matrix product, the sums as another:
``Σ_i c_i e^{-s_i q} S_i`` in row ``a + q``. When the block ends, its predecessor is folded into the sums.
Fed from the last step to the first, the same object applies the transposed matrix.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class Fading:
    """One sweep; buffers are (groups, rows, width), so that one batched product serves all groups.

    Forward: one input row, ``sums`` outputs. Backward: ``sums`` input rows, one output. A block buffer holds first
    what older rows contribute to the block, and each slot is overwritten by its own row once that has been used:
    K + 2B rows in all (for one sum).
    """

    def __init__(
        self, weights: Tensor, rates: Tensor, steps: int, row: Tensor, block: int, backward: bool, weigh: bool
    ) -> None:
        self.steps, self.size, self.backward = steps, block, backward
        sums, count, groups = weights.shape
        self.terms = count - 2 * block
        self.ins, self.outs = (sums, 1) if backward else (1, sums)
        self.tables = _Tables(weights, rates, block, backward)
        self.older = row.new_zeros(self.ins, groups, self.terms, row.shape[1])
        kept = max(self.ins, self.outs)
        self.previous = row.new_zeros(kept, groups, block, row.shape[1])
        self.current = torch.zeros_like(self.previous)
        self.weights_grad: Tensor | None = None
        if weigh:
            self.weights_grad = weights.new_zeros(sums, groups, count)
            self._slopes = row.new_zeros(groups, block, row.shape[1])

    def recall(self, n: int) -> Tensor | None:
        """What the rows recorded so far contribute to row ``n``: a new tensor (outputs, groups, width), or None."""
        i = self.steps - n if self.backward else n
        q = i % self.size
        if q == 0 and i > 0:
            self._begin(i)
        if i == 0:
            return None
        far = self.current[: self.outs, :, q]
        if q == 0:
            return far.clone()
        if far.shape[1] == 1:
            out = far[:, 0]
            for k, thin in enumerate(self.tables.thin[q]):
                out = torch.addmm(out, thin[0], self.current[k, 0, :q])
            return out[:, None]
        out = far.transpose(0, 1)  # (groups, outputs, width)
        for k, thin in enumerate(self.tables.thin[q]):
            out = torch.baddbmm(out, thin, self.current[k, :, :q])
        return out.transpose(0, 1)

    def record(self, n: int, row: Tensor, slope: Tensor | None = None) -> None:
        """Take in row ``n``: (inputs, groups, width); ``slope`` is ``v_n`` where weights need a gradient."""
        i = self.steps - n if self.backward else n
        q = i % self.size
        self.current[: self.ins, :, q].copy_(row)
        if self.weights_grad is not None and slope is not None:
            self._slopes[:, q].copy_(slope)
        last = q == self.size - 1
        if (last or i == self.steps) and self.weights_grad is not None:
            self._correlate(q + 1)
        if last:
            self._fold()

    latest_first = False

    @property
    def single(self) -> bool:
        """See :class:`BlockEngine`."""
        return self.ins == self.outs == self.current.shape[1] == 1

    @property
    def block(self) -> int:
        """See :class:`BlockEngine`."""
        return self.size

    @cached_property
    def thin(self) -> list[Tensor]:
        """See :class:`BlockEngine`."""
        return [parts[0][0] for parts in self.tables.thin]

    def recall_block(self, i: int, out: Tensor | None = None) -> Tensor | None:
        """See :class:`BlockEngine`."""
        if i == 0:
            return None
        if out is not None:
            torch.mm(self.tables.near[0][0][0], self.previous[0, 0], out=out)
            return out.addmm_(self.tables.far[0][0][0], self.older[0, 0]) if self.terms else out
        self._begin(i)
        count = min(self.size, self.steps + 1 - i)
        return self.current[: self.outs, :, :count].transpose(1, 2).clone(memory_format=torch.contiguous_format)

    def room(self, i: int) -> Tensor:
        """See :class:`BlockEngine`."""
        return self.current[0, 0, : min(self.size, self.steps + 1 - i)]

    def record_block(self, i: int, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`BlockEngine`."""
        count = rows.shape[0]
        if rows.data_ptr() != self.current.data_ptr():
            self.current[0, :, :count].copy_(rows.transpose(0, 1))
        if self.weights_grad is not None and slopes is not None:
            self._slopes[:, :count].copy_(slopes.transpose(0, 1))
            self._correlate(count)
        if count == self.size:
            self._fold()

    @property
    def snapshot_rows(self) -> int:
        """Rows in a snapshot: the fading sums and the block before, K + B."""
        return self.terms + self.size

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Snapshots`."""
        assert not self.backward
        assert n % self.size == 0
        return self.older.clone(), self.previous[:1].clone()

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Snapshots`."""
        if kept is None:
            self.older.zero_()
            self.previous.zero_()
            self.current.zero_()  # what older rows contribute to the first block
            return
        self.older.copy_(kept[0])
        self.previous[:1].copy_(kept[1])

    @property
    def bytes(self) -> int:
        """What it holds, in bytes."""
        return sum(b.numel() * b.element_size() for b in (self.older, self.previous, self.current))

    def _begin(self, i: int) -> None:
        """Fill the current block with what all earlier rows contribute to it."""
        for o in range(self.outs):
            target = self.current[o]
            for k in range(self.ins):
                torch.baddbmm(target, self.tables.near[o][k], self.previous[k], beta=float(k > 0), out=target)
                if self.terms:
                    torch.baddbmm(target, self.tables.far[o][k], self.older[k], out=target)

    def _fold(self) -> None:
        """The block ends: its predecessor joins the fading sums, and it becomes the predecessor."""
        if self.terms:
            for k in range(self.ins):
                self.older[k].mul_(self.tables.decay)
                torch.baddbmm(self.older[k], self.tables.fold, self.previous[k], out=self.older[k])
        self.previous, self.current = self.current, self.previous

    def _correlate(self, count: int) -> None:
        """Add ``⟨v_i, μ_{i'}⟩`` of one block: to the weight of lag ``i - i'``, or to the coefficients beyond."""
        assert self.weights_grad is not None
        slopes = self._slopes[:, :count]  # (groups, own, width)
        own = torch.arange(count, device=slopes.device)
        times = torch.arange(-self.size, count, device=slopes.device)
        lag = (own[:, None] - times).clamp_(min=0).reshape(-1)
        near, far = self.weights_grad.split([2 * self.size, self.terms], dim=-1)
        for k in range(self.ins):
            past = torch.cat([self.previous[k], self.current[k, :, :count]], dim=1)
            near[k].index_add_(-1, lag, (slopes @ past.transpose(1, 2)).flatten(1))
            if self.terms:
                far[k].add_(((slopes @ self.older[k].transpose(1, 2)) * self.tables.fade[:count]).sum(1))
        near[..., 0] = 0  # where the pairs that no weight joins were gathered


class _Tables:
    """The small matrices of a sweep, made in float64 where they are exponentials.

    ``thin[q][k]``: weights of the rows of this block in its row ``q``; ``near[o][k]``: of the block before in all its
    rows; ``far[o][k]``: of the fading sums; ``fold``: of the block before in the sums; all (groups, rows, columns).
    """

    def __init__(self, weights: Tensor, rates: Tensor, size: int, backward: bool) -> None:
        lags, c = weights.permute(0, 2, 1).split([2 * size, weights.shape[1] - 2 * size], dim=-1)
        q = torch.arange(size, dtype=torch.float64)
        index = (torch.arange(size)[:, None] + size - torch.arange(size)).to(weights.device)
        near, self.fade = lags[..., index], torch.exp(-q[:, None] * rates).to(weights)
        far = c[:, :, None, :] * self.fade
        groups = weights.shape[2]
        self.decay = torch.exp(-size * rates).to(weights)[:, None]
        self.fold = torch.exp(-(size - q) * rates[:, None]).to(weights).expand(groups, -1, -1)
        split = [lags[..., 1 : m + 1].flip(-1) for m in range(size)]  # (sums, groups, m), oldest first
        if backward:
            self.near, self.far = [list(near)], [list(far)]
            self.thin = [[w[:, None] for w in s] for s in split]
        else:
            self.near, self.far = [[w] for w in near], [[w] for w in far]
            self.thin = [[s.permute(1, 0, 2).contiguous()] for s in split]
