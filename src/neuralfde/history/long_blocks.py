"""A sum of exponentials in blocks longer than its exact lags, for a stepper that computes the sums inside its blocks.

Such a stepper gets :class:`Modes` in place of a matrix of weights: the weights of the exact lags, and the exponentials,
which it carries from step to step. Rows before a block contribute to its first B rows as in :class:`SumOfExponentials`,
and to all later ones through the fading sums alone, by one product: ``Σ_i c_i e^{-s_i (q - B)} T_i`` in row ``a + q``,
with ``T_i = Σ_{j<a} e^{-s_i (a - j)} v_j``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..base.caches import Cache
from .base import Block, Memory
from .sum_of_exponentials import SumOfExponentials


class Weighed(NamedTuple):
    """What a stepper needs to accumulate the gradient of the weights, from all pairs of a step with an earlier one.

    Attributes:
        lags: the gradient of the weights of lags 1 … B, (sums, groups, B).
        coefficients: the gradient of the coefficients, (sums, groups, K).
        previous: the last B rows before the block, (groups, inputs, B, width).
        older: the fading sums of all rows before them, (groups, inputs, K, width).
    """

    lags: Tensor
    coefficients: Tensor
    previous: Tensor
    older: Tensor


class Modes(NamedTuple):
    """The weights inside a block, as exact lags and exponentials.

    Up to lag B the weight of lag m is ``lags[..., m]``, beyond it ``Σ_i c_i (1 - d_i)^{m-B}``.

    Attributes:
        lags: (groups, sums, B + 1); the weight of lag 0 belongs to the local stage and is not used here.
        coefficients: ``c``, (groups, sums, K).
        losses: ``d``, (K,). For a slowly fading sum ``1 - d`` would be rounded: in float32 an error of 1e-5 after
            thousands of steps.
        weighed: where the stepper adds the gradients, in a backward pass that needs them.
    """

    lags: Tensor
    coefficients: Tensor
    losses: Tensor
    weighed: Weighed | None = None


_FADED: Cache[tuple[Tensor, Tensor]] = Cache("exponentials of long blocks", 8)


def _faded(rates: Tensor, block: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The losses per step, (K,), and what is left after 0 … block steps, (block + 1, K)."""
    q = torch.arange(block + 1, dtype=torch.float64)
    return -torch.expm1(-rates).to(like), torch.exp(-q[:, None] * rates).to(like)


class LongBlocks(Memory):
    """One pass in blocks of ``block`` steps, more than B; sums and rows are held by ``short``.

    Args:
        short: the same memory in blocks of B steps.
        weights: its weights, (sums, 2B + K, groups).
        rates: the rates (K,) of the exponentials, per step.
        block: the number of steps in a block.
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
        groups, _, _, width = self.short.older.shape
        found = self.fade.new_empty(block.count, self.short.outs, groups, width) if out is None else out
        self.short.recall(Block(block.start, early), found[:early])
        if later:
            sums = self.modes.coefficients.unsqueeze(-1) * self._folded()  # (groups, outputs or inputs, K, width)
            sums = (sums.sum(1, keepdim=True) if self.backward else sums).permute(2, 1, 0, 3).flatten(1)
            torch.mm(self.fade[:later], sums, out=found[early:].view(later, -1))
        return found

    def _folded(self) -> Tensor:
        """The sums ``T_i`` of all rows before the block, (groups, inputs, K, width)."""
        older, tables = self.short.older, self.short.tables
        return older * tables.decay + tables.fold @ self.short.previous

    def inner(self, block: Block) -> Modes:
        """See :class:`Memory`."""
        return self.modes

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        if block.stop <= self.short.steps:  # no later block needs the rows of the last one
            self._take(rows)

    def _take(self, rows: Tensor) -> None:
        """Keep the last B rows as they are, and add all before them to the fading sums."""
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
