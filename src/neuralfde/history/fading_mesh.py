"""The memory behind ``exponentials`` on a mesh, where every step has its own size.

The kernel is ``Σ_i c_i e^{-s_i t}``. A quadrature rule takes the slope to be constant or linear on the cell that ends
at ``t_m``, so that its integral against ``e^{-s_i (t_m - τ)}`` is ``p_{m,i} v_{m-1} + q_{m,i} v_m``. In row n, all
cells but the newest contribute ``Σ_i c_i Σ_j L_i[n, j] v_j`` with ::

    L_i[n, j] = e^{-s_i (t_n - t_j)} q_{j,i}  (j ≤ n-1)  +  e^{-s_i (t_n - t_{j+1})} p_{j+1,i}  (j ≤ n-2)

Unless n and j are neighbours, ``L_i[n, j]`` is the product of a factor of the row and a factor of the column, both
relative to some time between them. So a pass keeps K sums for each rule. It also keeps the last row before the block
as it is, or the last two, if the newest cell has weights for the slopes two steps before. A backward pass does the
same with the two factors exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.caches import to_device
from ..base.cells import cell_integrals
from .base import Block, Memory


class Mesh(NamedTuple):
    """Increasing times (steps + 1,), rates (K,), both float64, and the rule of each sum: left, right, linear, ahead.

    ``newest(rule, order, lengths of cells)`` returns the weights of the newest cell for the slopes at its end, one step
    before and two, see ``weights/fading.py``. It is None if these weights are given as a table.
    """

    times: Tensor
    rates: Tensor
    cells: tuple[str, ...]
    newest: Callable[[str, Tensor, Tensor], tuple[Tensor, ...]] | None

    @property
    def lags(self) -> int:
        """How many steps back the weights of the newest cell reach."""
        return 1 + ("ahead" in self.cells)


class _Table(NamedTuple):
    """The matrices of a block and of the ``kept`` rows next to it: m steps in all, in ascending order.

    ``weights`` (sums, groups, m, m) is the matrix between these steps, ``shares`` (sums, m, m, K) contains its L. The
    contribution of the sums to the rows of the block has the factors ``old``. When the block is recorded, the sums
    are multiplied by ``fade`` (K, 1), and rows are added to them with the factors ``new``.
    """

    block: Block
    kept: int
    weights: Tensor
    shares: Tensor
    old: Tensor
    new: Tensor
    fade: Tensor


class FadingOnMesh(Memory):
    """One pass; it holds K sums for each rule, and one or two rows.

    Args:
        mesh: the times and rates.
        weights: (sums, numbers + K, groups): the numbers are the weights of each row's newest cell for the slopes one
            (and two) steps before, steps + 1 of each; or the order in two parts and a factor, from which these weights
            are computed. Then come the K coefficients.
        row: a tensor with the shape (groups, width), dtype and device of the rows.
        block: the number of steps in a block.
        backward: from the last row to the first, with the transposed matrix.
        weigh: in a backward pass, also accumulate the gradient of the weights.
    """

    def __init__(self, mesh: Mesh, weights: Tensor, row: Tensor, block: int, backward: bool, weigh: bool) -> None:
        self.block, self.backward, self.lags = block, backward, mesh.lags
        double = row.new_empty(0, dtype=torch.float64)
        self.times, self.rates, self.cells = to_device(mesh.times, double), to_device(mesh.rates, double), mesh.cells
        self.steps, self.newest = self.times.shape[0] - 1, mesh.newest
        self.count = weights.shape[1] - len(self.rates)
        self.numbers, self.c = weights.permute(0, 2, 1).split([self.count, len(self.rates)], dim=-1)
        sums, groups = weights.shape[0], weights.shape[2]
        self.older = row.new_zeros(groups, sums, len(self.rates), row.shape[1])
        self.edge = row.new_zeros(groups, sums if backward else 1, self.lags, row.shape[1])  # the lowest step first
        self._known: _Table | None = None
        if weigh:
            self.weights_grad = weights.new_zeros(sums, groups, weights.shape[1])

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        if block.start == 0:
            return None
        table, count = self._table(block), block.count
        kept = self.edge[:, :, : table.kept]
        if self.backward:
            found = torch.einsum("sgji,gsiw->jgw", self.c[:, :, None] * table.old[:, None], self.older)
            found += torch.einsum("sgnj,gsnw->jgw", table.weights[:, :, count:, :count], kept)
            found = found.flip(0)[:, None]
        else:
            found = torch.einsum("sgni,gsiw->nsgw", self.c[:, :, None] * table.old, self.older)
            found += torch.einsum("sgnj,gjw->nsgw", table.weights[:, :, -count:, :-count], kept[:, 0])
        return found if out is None else out.copy_(found)

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        weights, count = self._table(block).weights, block.count
        if self.backward:
            own = weights[:, :, :count, :count].flip(-2, -1)
            return own.permute(1, 3, 2, 0).unsqueeze(2).contiguous()
        return weights[:, :, -count:, -count:].permute(1, 2, 0, 3).unsqueeze(-1).contiguous()

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        table, near = self._table(block), rows.permute(2, 1, 0, 3)  # (groups, inputs, count, width)
        kept, stay = self.edge[:, :, : table.kept], min(self.lags, block.stop)
        if self.backward:
            taken = torch.cat([near.flip(2), kept], dim=2)
            if self.weights_grad is not None and slopes is not None:
                self._correlate(table, taken, slopes.flip(0).transpose(0, 1))
            new = torch.einsum("ni,gsnw->gsiw", table.new, taken[:, :, stay:])
            edge = taken[:, :, :stay]
        else:
            taken = torch.cat([kept, near], dim=2)
            new = torch.einsum("sni,gnw->gsiw", table.new, taken[:, 0, : taken.shape[2] - stay])
            edge = taken[:, :, -stay:]
        self.older.mul_(table.fade).add_(new)
        self.edge[:, :, :stay] = edge

    @property
    def snapshot_rows(self) -> int:
        """See :class:`Memory`: the sums of each rule and the rows before the block."""
        return len(self.cells) * len(self.rates) + self.lags

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Memory`."""
        return self.older.clone(), self.edge.clone()

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Memory`."""
        for mine, then in zip((self.older, self.edge), kept or (0, 0), strict=True):
            mine.copy_(then) if isinstance(then, Tensor) else mine.zero_()

    @property
    def bytes(self) -> int:
        """See :class:`Memory`."""
        return sum(b.numel() * b.element_size() for b in (self.older, self.edge))

    def _near(self, low: int, high: int) -> Tensor:
        """(sums, groups, lag, row): weights of the newest cells of rows low … high for slopes 1 or 2 steps before."""
        if self.newest is None:
            return self.numbers.unflatten(-1, (self.lags, -1))[..., low : high + 1].to(self.times)
        first = max(low - 1, 0)  # the rule "ahead" also uses the length of the cell before
        n = torch.arange(first, high + 1, device=self.times.device)
        lengths = (self.times[n] - self.times[(n - 1).clamp(min=0)])[:, None]
        most, rest, gain = self.numbers.to(self.times).unbind(-1)  # (sums, groups) each
        rules = [self.newest(*x, lengths)[1 : 1 + self.lags] for x in zip(self.cells, most + rest, strict=True)]
        near = torch.stack([torch.stack(rule) for rule in rules])[:, :, low - first :]  # (sums, lag, row, groups)
        return near.permute(0, 3, 1, 2) * gain[..., None, None]

    def _table(self, block: Block) -> _Table:
        """The matrices of a block, made once."""
        if self._known is None or self._known.block != block:
            self._known = self._tabulated(block, min(self.lags, block.start), min(self.lags, block.stop))
        return self._known

    def _tabulated(self, block: Block, kept: int, stay: int) -> _Table:
        """The matrices, computed in float64; ``kept`` rows are next to the block now, ``stay`` rows after it."""
        low, high = block.start - kept, block.stop - 1
        if self.backward:
            low, high = self.steps + 1 - block.stop, self.steps - block.start + kept
        n = torch.arange(low, high + 1, device=self.times.device)
        t, before = self.times[n], self.times[(n - 1).clamp(min=0)]
        p, q = cell_integrals(self.cells, (t - before)[:, None], self.rates)
        decay = torch.exp(-(t[:, None] - t).clamp(min=0)[..., None] * self.rates)  # (row, column, K)
        left = torch.nn.functional.pad(decay[:, 1:] * p[:, None, 1:], (0, 0, 0, 1))
        lag = (n[:, None] - n)[..., None]
        shares = torch.where(lag >= 1, decay * q[:, None], 0.0) + torch.where(lag >= 2, left, 0.0)
        weights = torch.einsum("sgi,snji->sgnj", self.c.to(shares), shares)
        near = self._near(low, high)
        for e in range(1, min(self.lags, high - low) + 1):
            weights += torch.diag_embed(near[:, :, e - 1, e:], -e)
        if self.backward:  # sums are relative to the highest of the kept steps
            old = (decay[-1] * q + left[:, -1])[:, : block.count]
            new, fade = decay[stay:, stay - 1], decay[-1, stay - 1]
        else:  # to the lowest
            since = len(n) - stay
            old, fade = decay[kept:, 0], decay[since, 0]
            new = (decay[since] * q + left[:, since])[:, :since]
        return _Table(block, kept, *[x.to(self.c) for x in (weights, shares, old, new, fade[:, None])])

    def _correlate(self, table: _Table, taken: Tensor, slopes: Tensor) -> None:
        """Add ``⟨v_j, μ_n⟩`` to the gradient of the weights of row n, column j; ``taken`` (groups, sums, m, width)."""
        assert self.weights_grad is not None
        low, count = self.steps + 1 - table.block.stop, taken.shape[2]
        numbers, far = self.weights_grad.split([self.count, len(self.rates)], dim=-1)
        pairs = torch.einsum("gsnw,gjw->sgnj", taken, slopes)
        if self.newest is None:  # otherwise the order is constant, and these weights need no gradient
            near = numbers.unflatten(-1, (self.lags, -1))
            for e in range(1, min(self.lags, count - 1) + 1):
                found = pairs.diagonal(-e, 2, 3)
                near[:, :, e - 1, low + e : low + e + found.shape[-1]] += found
        far += torch.einsum("snji,sgnj->sgi", table.shares[:, :, : slopes.shape[1]], pairs)
        if table.block.start > 0:
            far += torch.einsum("sji,gjw,gsiw->sgi", table.old, slopes, self.older)
