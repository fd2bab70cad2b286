"""The memory behind ``exponentials`` on a mesh, where every step has its own length.

The kernel is ``Σ_i c_i e^{-s_i t}``. A rule takes the slope to be constant or linear on the cell that ends at
``t_m``, so that its integral against ``e^{-s_i (t_m - τ)}`` is ``p_{m,i} v_{m-1} + q_{m,i} v_m``. All cells of row n
but the newest then weigh, with c, ::

    L_i[n, j] = e^{-s_i (t_n - t_j)} q_{j,i}  (j ≤ n-1)  +  e^{-s_i (t_n - t_{j+1})} p_{j+1,i}  (j ≤ n-2)

For two steps that are not neighbours this is a product, one factor of the row and one of the column, relative to any
time between them. So a pass keeps K sums for each rule, relative to the step before the block, and the row of that step
itself. A backward pass has the same sums with the factors exchanged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .base import Block, Memory


class Mesh(NamedTuple):
    """Increasing times (steps + 1,), rates (K,), both float64, and the rule of each sum: left, right or linear."""

    times: Tensor
    rates: Tensor
    cells: tuple[str, ...]


class _Table(NamedTuple):
    """A block together with the step next to it that the pass met before: m steps in all, the lowest first.

    ``weights`` (sums, groups, m, m) is the matrix, ``shares`` (sums, m, m, K) are the L in it; ``rows`` (m - 1, K) are
    the decays since the lowest step, ``columns`` (sums, m - 1, K) the factors of columns seen from the highest one.
    """

    block: Block
    weights: Tensor
    shares: Tensor
    rows: Tensor
    columns: Tensor
    fade: Tensor


class FadingOnMesh(Memory):
    """One pass; it holds K sums for each rule, and one row.

    Args:
        mesh: the times and rates.
        weights: of the left end of each row's newest cell, then K coefficients: (sums, steps + 1 + K, groups).
        row: what a row looks like, (groups, width).
        block: steps in a block.
        backward: from the last row to the first, with the transposed matrix.
        weigh: in a backward pass, also accumulate the gradient of the weights.
    """

    def __init__(self, mesh: Mesh, weights: Tensor, row: Tensor, block: int, backward: bool, weigh: bool) -> None:
        self.block, self.backward = block, backward
        self.times, self.rates, self.cells = mesh.times.to(row.device), mesh.rates.to(row.device), mesh.cells
        self.steps = self.times.shape[0] - 1
        self.near, self.c = weights.permute(0, 2, 1).split([self.steps + 1, len(self.rates)], dim=-1)
        sums, groups = weights.shape[0], weights.shape[2]
        self.older = row.new_zeros(groups, sums, len(self.rates), row.shape[1])
        self.edge = row.new_zeros(groups, sums if backward else 1, row.shape[1])
        self._known: _Table | None = None
        if weigh:
            self.weights_grad = weights.new_zeros(sums, groups, weights.shape[1])

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        if block.start == 0:
            return None
        table = self._table(block)
        if self.backward:
            columns = self.c[:, :, None] * table.columns[:, None]
            found = torch.einsum("sgji,gsiw->jgw", columns, self.older)
            found += torch.einsum("sgj,gsw->jgw", table.weights[:, :, -1, :-1], self.edge)
            found = found.flip(0)[:, None]
        else:
            found = torch.einsum("sgni,gsiw->nsgw", self.c[:, :, None] * table.rows, self.older)
            found += torch.einsum("sgn,gw->nsgw", table.weights[:, :, 1:, 0], self.edge[:, 0])
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
        known = [self.edge.unsqueeze(2)] if block.start > 0 else []
        if self.backward:
            taken = torch.cat([near.flip(2), *known], dim=2)
            if self.weights_grad is not None and slopes is not None:
                self._correlate(block, taken, slopes.flip(0).transpose(0, 1))
            new = torch.einsum("ni,gsnw->gsiw", table.rows, taken[:, :, 1:])
        else:
            taken = torch.cat([*known, near], dim=2)
            new = torch.einsum("sni,gnw->gsiw", table.columns, taken[:, 0, :-1])
        self.older.mul_(table.fade).add_(new)
        self.edge.copy_(near[:, :, -1])

    @property
    def snapshot_rows(self) -> int:
        """Rows in a snapshot: the sums of each rule and the step before."""
        return len(self.cells) * len(self.rates) + 1

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

    def _table(self, block: Block) -> _Table:
        """What a block needs, made once."""
        if self._known is None or self._known.block != block:
            low, high = block.start - 1, block.stop - 1
            if self.backward:
                low, high = self.steps + 1 - block.stop, self.steps - block.start + 1
            self._known = self._tabulated(block, max(low, 0), min(high, self.steps))
        return self._known

    def _tabulated(self, block: Block, low: int, high: int) -> _Table:
        """The table of the steps low … high, in float64 up to here."""
        n = torch.arange(low, high + 1, device=self.times.device)
        t, before = self.times[n], self.times[(n - 1).clamp(min=0)]
        p, q = cell_integrals(self.cells, (t - before)[:, None], self.rates)
        decay = torch.exp(-(t[:, None] - t).clamp(min=0)[..., None] * self.rates)  # (row, column, K)
        left = torch.nn.functional.pad(decay[:, 1:] * p[:, None, 1:], (0, 0, 0, 1))
        lag = (n[:, None] - n)[..., None]
        shares = torch.where(lag >= 1, decay * q[:, None], 0.0) + torch.where(lag >= 2, left, 0.0)
        weights = torch.einsum("sgi,snji->sgnj", self.c.to(shares), shares)
        weights += torch.diag_embed(self.near[..., low + 1 : high + 1].to(shares), -1)
        columns = decay[-1, :-1] * q[:, :-1] + decay[-1, 1:] * p[:, 1:]
        parts = (weights, shares, decay[1:, 0], columns, decay[-1, 0, :, None])
        return _Table(block, *[x.to(self.c) for x in parts])

    def _correlate(self, block: Block, taken: Tensor, slopes: Tensor) -> None:
        """Add ``⟨v_j, μ_n⟩`` to the gradient of the weights that join them; ``taken`` (groups, sums, m, width)."""
        assert self.weights_grad is not None
        table, low, count = self._table(block), self.steps + 1 - block.stop, taken.shape[2]
        near, far = self.weights_grad.split([self.steps + 1, len(self.rates)], dim=-1)
        pairs = torch.einsum("gsnw,gjw->sgnj", taken, slopes)
        near[..., low + 1 : low + count] += pairs.diagonal(-1, 2, 3)[..., : count - 1]
        far += torch.einsum("snji,sgnj->sgi", table.shares[:, :, : block.count], pairs)
        if block.start > 0:
            far += torch.einsum("sji,gjw,gsiw->sgi", table.columns, slopes, self.older)


def cell_integrals(cells: tuple[str, ...], length: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """``p`` and ``q`` of cells of these lengths (m, 1) for the rule of each sum, (sums, m, K)."""
    x = length * rates
    whole = length * _mean(x)
    left = length * _mean_of_left(x) if "linear" in cells else whole
    none = torch.zeros_like(whole)
    rules = {"linear": (left, whole - left), "left": (whole, none), "right": (none, whole)}
    p, q = zip(*[rules[cell] for cell in cells], strict=True)
    return torch.stack(p), torch.stack(q)


def _mean(x: Tensor) -> Tensor:
    """``∫₀¹ e^{-xu} du``."""
    safe = torch.where(x > 0, x, 1.0)
    return torch.where(x > 0, -torch.expm1(-safe) / safe, 1.0)


def _mean_of_left(x: Tensor) -> Tensor:
    """``∫₀¹ u e^{-xu} du``: the share of a cell's left end, where u = 1; a series where that cancels."""
    small = x < 0.05
    near, safe = torch.zeros_like(x), torch.where(small, 1.0, x)
    for k in range(7, -1, -1):
        near = 1 / (math.factorial(k) * (k + 2)) - x * near
    return torch.where(small, near, (-torch.expm1(-safe) / safe - torch.exp(-safe)) / safe)
