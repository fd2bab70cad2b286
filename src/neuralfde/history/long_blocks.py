"""A sum of exponentials in blocks longer than its exact lags, for a stepper that sums inside its blocks by itself.

Such a stepper takes :class:`Modes` in place of a matrix of weights: the exact lags, and exponentials that it carries
from step to step. What is before a block reaches its first B rows as in :class:`SumOfExponentials`, and all later ones
through the fading sums alone, in one product: ``Σ_i c_i e^{-s_i (q - B)} T_i`` in row ``a + q``, with ``T_i = Σ_{j<a}
e^{-s_i (a - j)} v_j``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..base.caches import Cache
from .base import Block, Memory
from .sum_of_exponentials import SumOfExponentials


class Weighed(NamedTuple):
    """Gradients of the lags (sums, groups, B), from 1 on, and of the coefficients (sums, groups, K): from all pairs of
    a step of a block with an earlier one. Before the block, ``previous`` are the last B rows (groups, inputs, B, width)
    and ``older`` the fading sums of all others (groups, inputs, K, width)."""

    lags: Tensor
    coefficients: Tensor
    previous: Tensor
    older: Tensor


class Modes(NamedTuple):
    """The weight of lag ``m`` inside a block: ``lags`` (groups, sums, B + 1) up to B, of which that of lag 0 belongs to
    the local stage and is not meant; beyond it
    ``Σ_i c_i (1 - d_i)^{m-B}`` with coefficients ``c`` (groups, sums, K) and losses ``d`` (K,): of a sum that fades
    slowly, ``1 - d`` would be rounded so that thousands of steps later 1e-5 of it is wrong in float32.
    In a backward pass that weighs, the stepper adds their gradients to ``weighed``."""

    lags: Tensor
    coefficients: Tensor
    losses: Tensor
    weighed: Weighed | None = None


_FADED: Cache[tuple[Tensor, Tensor]] = Cache("exponentials of long blocks", 8)


def _faded(rates: Tensor, block: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The losses of a step, and what is left after 0 … block steps, (block + 1, K)."""
    q = torch.arange(block + 1, dtype=torch.float64)
    return -torch.expm1(-rates).to(like), torch.exp(-q[:, None] * rates).to(like)


class LongBlocks(Memory):
    """One pass in blocks of ``block`` steps, B or more; the state is that of the short blocks.

    Args:
        short: the same memory in blocks of B steps.
        weights: its weights, (sums, 2B + K, groups).
        rates: the rates (K,) of the exponentials, per step.
        block: steps in a block.
        weigh: in a backward pass, also accumulate the gradient of the weights.
    """

    def __init__(self, short: SumOfExponentials, weights: Tensor, rates: Tensor, block: int, weigh: bool) -> None:
        self.short, self.block, self.backward, self.near = short, block, short.backward, short.block
        lags, c = weights.permute(2, 0, 1).split([2 * self.near, short.terms], dim=-1)
        key = (tuple(rates.tolist()), block, weights.dtype, weights.device)
        losses, self.fade = _FADED.get(key, lambda: _faded(rates, block, weights))  # by lag beyond B
        self.modes = Modes(lags[..., : self.near + 1], c, losses)
        if weigh:
            self.weights_grad = weights.new_zeros(weights.shape[0], weights.shape[2], weights.shape[1])
            parts = self.weights_grad[..., 1 : self.near + 1], self.weights_grad[..., 2 * self.near :]
            self.modes = self.modes._replace(weighed=Weighed(*parts, short.previous, short.older))

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        if block.start == 0:
            return None
        early, later = min(block.count, self.near), max(0, block.count - self.near)
        first = self.short.recall(Block(block.start, early))
        assert first is not None
        found = first.new_empty(block.count, *first.shape[1:]) if out is None else out
        found[:early] = first
        if later:
            sums = self.modes.coefficients.unsqueeze(-1) * self._folded()  # (groups, outputs or inputs, K, width)
            sums = (sums.sum(1, keepdim=True) if self.backward else sums).permute(2, 1, 0, 3).flatten(1)
            found[early:] = (self.fade[:later] @ sums).view_as(found[early:])
        return found

    def _folded(self) -> Tensor:
        """``T_i``, (groups, inputs, K, width)."""
        older, tables = self.short.older, self.short.tables
        return older * tables.decay + tables.fold @ self.short.previous

    def inner(self, block: Block) -> Modes:
        """See :class:`Memory`."""
        return self.modes

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        if block.stop <= self.short.steps:  # nothing comes after the last one
            self._take(rows)

    def _take(self, rows: Tensor) -> None:
        """The last B rows are kept as they are, all before them fade."""
        early = len(rows) - self.near
        self.short.record(Block(0, self.near), rows[early:])
        self.short.older *= self.fade[early][:, None]
        taken = self.fade[1 : early + 1].flip(0).t() @ rows[:early].flatten(1)
        self.short.older += taken.view(-1, *rows.shape[1:]).permute(2, 1, 0, 3)

    @property
    def bytes(self) -> int:
        """See :class:`Memory`."""
        return self.short.bytes

    @property
    def snapshot_rows(self) -> int:
        """See :class:`Memory`."""
        return self.short.snapshot_rows

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Memory`."""
        return self.short.snapshot(n)

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Memory`."""
        self.short.restore(kept)
