"""The memory behind ``exponentials`` on a mesh, where every step has its own length.

The kernel is ``Σ_i c_i e^{-s_i t}``. A rule takes the slope to be constant or linear on the cell that ends at
``t_m``, so that its integral against ``e^{-s_i (t_m - τ)}`` is ``p_{m,i} v_{m-1} + q_{m,i} v_m``. All cells of row n
but the newest then weigh, with c, ::

    L_i[n, j] = e^{-s_i (t_n - t_j)} q_{j,i}  (j ≤ n-1)  +  e^{-s_i (t_n - t_{j+1})} p_{j+1,i}  (j ≤ n-2)

For two steps that are not neighbours this is a product, one factor of the row and one of the column, relative to any
time between them. So a pass keeps K sums for each rule, and the row of the step before the block as it is, or two such
rows where the newest cell has weights for the slopes two steps before. A backward pass has the same with the factors
exchanged.
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

    ``newest`` says what the newest cell of a row gives the slopes at its end and before, from a rule, an order and the
    lengths of cells, see ``weights/fading.py``; None where a table among the weights says so.
    """

    times: Tensor
    rates: Tensor
    cells: tuple[str, ...]
    newest: Callable[[str, Tensor, Tensor], tuple[Tensor, ...]] | None

    @property
    def lags(self) -> int:
        """How many steps back the newest cell of a row has weights of its own."""
        return 1 + ("ahead" in self.cells)


class _Table(NamedTuple):
    """A block together with the rows next to it that are kept: m steps in all, the lowest first, k of them kept.

    ``weights`` (sums, groups, m, m) is the matrix, ``shares`` (sums, m, m, K) are the L in it. ``old`` are the factors
    that read the sums for the rows of the block, ``new`` those by which rows enter the sums when the block is recorded,
    ``fade`` (K, 1) is what happens to the sums then.
    """

    block: Block
    kept: int
    weights: Tensor
    shares: Tensor
    old: Tensor
    new: Tensor
    fade: Tensor


class FadingOnMesh(Memory):
    """One pass; it holds K sums for each rule, and one row.

    Args:
        mesh: the times and rates.
        weights: those of each row's newest cell for the slopes one (and two) steps before, (steps + 1) each, or the
            order in two parts and a factor, from which they follow; then K coefficients: (sums, all these, groups).
        row: what a row looks like, (groups, width).
        block: steps in a block.
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
        """Rows in a snapshot: the sums of each rule and the steps before."""
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
        """What the newest cells of rows low … high give slopes one or two steps before: (sums, groups, lag, row)."""
        if self.newest is None:
            return self.numbers.unflatten(-1, (self.lags, -1))[..., low : high + 1].to(self.times)
        first = max(low - 1, 0)  # a rule may look at the length of the cell before
        n = torch.arange(first, high + 1, device=self.times.device)
        lengths = (self.times[n] - self.times[(n - 1).clamp(min=0)])[:, None]
        most, rest, gain = self.numbers.to(self.times).unbind(-1)  # (sums, groups) each
        rules = [self.newest(*x, lengths)[1 : 1 + self.lags] for x in zip(self.cells, most + rest, strict=True)]
        near = torch.stack([torch.stack(rule) for rule in rules])[:, :, low - first :]  # (sums, lag, row, groups)
        return near.permute(0, 3, 1, 2) * gain[..., None, None]

    def _table(self, block: Block) -> _Table:
        """What a block needs, made once."""
        if self._known is None or self._known.block != block:
            self._known = self._tabulated(block, min(self.lags, block.start), min(self.lags, block.stop))
        return self._known

    def _tabulated(self, block: Block, kept: int, stay: int) -> _Table:
        """The table, in float64 up to here; ``kept`` rows lie next to the block, ``stay`` rows once it is recorded."""
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
        if self.backward:  # sums are relative to the highest step that is kept
            old = (decay[-1] * q + left[:, -1])[:, : block.count]
            new, fade = decay[stay:, stay - 1], decay[-1, stay - 1]
        else:  # to the lowest one
            since = len(n) - stay
            old, fade = decay[kept:, 0], decay[since, 0]
            new = (decay[since] * q + left[:, since])[:, :since]
        return _Table(block, kept, *[x.to(self.c) for x in (weights, shares, old, new, fade[:, None])])

    def _correlate(self, table: _Table, taken: Tensor, slopes: Tensor) -> None:
        """Add ``⟨v_j, μ_n⟩`` to the gradient of the weights that join them; ``taken`` (groups, sums, m, width)."""
        assert self.weights_grad is not None
        low, count = self.steps + 1 - table.block.stop, taken.shape[2]
        numbers, far = self.weights_grad.split([self.count, len(self.rates)], dim=-1)
        pairs = torch.einsum("gsnw,gjw->sgnj", taken, slopes)
        if self.newest is None:  # or the order is constant
            near = numbers.unflatten(-1, (self.lags, -1))
            for e in range(1, min(self.lags, count - 1) + 1):
                found = pairs.diagonal(-e, 2, 3)
                near[:, :, e - 1, low + e : low + e + found.shape[-1]] += found
        far += torch.einsum("snji,sgnj->sgi", table.shares[:, :, : slopes.shape[1]], pairs)
        if table.block.start > 0:
            far += torch.einsum("sji,gjw,gsiw->sgi", table.old, slopes, self.older)
