"""The past of a march whose steps are not known beforehand: exponentials that move only when a step is accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.cells import cell_integrals
from ..weights.fading import Rates, newest


class Past:
    """``Y_i = ∫ e^{-s_i (t - τ)} v(τ) dτ`` for each rule, at the time that has been reached.

    Args:
        cells: the rule of each sum.
        order: (groups,), float64.
        gain: (groups,), a factor of all weights.
        shortest: no step is shorter, as far as one knows; a shorter one adds exponentials.
        longest: the whole horizon.
        tol: the relative error of the kernel.
        initial: z_0, (groups, width).
    """

    def __init__(
        self,
        cells: tuple[str, ...],
        order: Tensor,
        gain: Tensor,
        shortest: float,
        longest: float,
        tol: float,
        initial: Tensor,
    ) -> None:
        self.cells, self.order, self.gain, self.tol, self.longest = cells, order, gain, tol, longest
        self.initial, self.length, self.age = initial, 0.0, 0.0  # the newest cell, and all since the last jump
        self.sums = initial.new_zeros(initial.shape[0], len(cells), 0, initial.shape[1])
        self.slopes: list[Tensor] = []
        self._take(shortest)

    def begin(self, slope: Tensor) -> None:
        """Slopes begin with this one: at the initial time, or behind a jump."""
        self.slopes, self.length, self.age = [slope], 0.0, 0.0

    def trial(self, length: float) -> tuple[list[Tensor], Tensor]:
        """The sums of a step of this length, one (groups, width) for each rule, and its local weight (groups,)."""
        if length < self.shortest:
            self._extend(length)
        like = self.initial
        self.fade = torch.exp(self.rates * -length)[:, None]
        fading = (self.coefficients * self.fade).to(like)
        far = (fading.T[:, None, None] @ self.sums)[:, :, 0].transpose(0, 1)  # (sums, groups, width)
        lengths = torch.tensor([[self.length], [length]], dtype=torch.float64)
        weights = [[(self.gain * w[-1]).to(like)[:, None] for w in newest(c, self.order, lengths)] for c in self.cells]
        found = []
        for old, (_, *lags) in zip(far, weights, strict=True):
            near = [w * v for w, v in zip(lags, reversed(self.slopes), strict=False)]
            found.append(torch.stack([self.initial, old, *near]).sum(0))
        return found, weights[0][0][:, 0]

    def accept(self, length: float, slope: Tensor) -> None:
        """The step that was tried last is taken: its cell is folded in."""
        self.sums.mul_(self.fade.to(slope)).add_(self._cell(length, slope, 0))
        self.slopes, self.length, self.age = [*self.slopes[-2:], slope], length, self.age + length

    def _cell(self, length: float, slope: Tensor, first: int) -> Tensor:
        """The integral over a cell from the last slope to this one, for the exponentials from ``first`` on."""
        p, q = cell_integrals(self.cells, torch.tensor([[length]], dtype=torch.float64), self.rates.cpu()[first:])
        ends = torch.stack([p[:, 0], q[:, 0]], dim=-1).to(slope)  # (sums, K, 2)
        return ends @ torch.stack([self.slopes[-1], slope], dim=1)[:, None]

    def _take(self, shortest: float) -> None:
        """Exponentials for lags down to this one; those that are there already stay."""
        self.shortest, known = shortest, Rates.for_lags(shortest, self.longest, self.tol)
        self.rates = known.values.to(self.initial.device)
        self.coefficients = (self.gain * known.coefficients(self.order)).to(self.initial.device)
        missing = len(self.rates) - self.sums.shape[2]
        self.sums = torch.nn.functional.pad(self.sums, (0, 0, 0, missing))

    def _extend(self, length: float) -> None:
        """Faster exponentials, for shorter lags: of the past they see the last cell and nothing else."""
        first = len(self.rates)
        self._take(length / 16)
        if self.length > 0:
            last = self.slopes.pop()
            self.sums[:, :, first:] = self._cell(self.length, last, first)
            self.slopes.append(last)
