"""The past of a march whose steps are not known in advance: exponential sums, updated when a step is accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.cells import cell_integrals
from ..weights.fading import Rates, by_rule
from ..weights.meshes import share_ahead


class Past:
    """The sums ``Y_i = ∫ e^{-s_i (t - τ)} v(τ) dτ`` for each quadrature rule, at the current time t.

    Args:
        cells: the rule of each sum.
        order: (groups,), float64.
        gain: (groups,), a factor of all weights.
        shortest: the smallest step size that is expected; a smaller one adds exponentials.
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
        kept = ["linear" if c == "ahead" else c for c in cells]  # these differ only on the newest cell
        self.rules = tuple(dict.fromkeys(kept))
        self.places = [self.rules.index(rule) for rule in kept]
        self.initial, self.length, self.age = initial, 0.0, 0.0  # lengths of the last cell, and since the last jump
        self.sums = initial.new_zeros(initial.shape[0], len(self.rules), 0, initial.shape[1])
        self.slopes: list[Tensor] = []
        self.column = order[:, None].to(initial.device)
        self.whole = (gain * torch.exp(-torch.lgamma(order + 1)))[:, None].to(initial.device)
        self.over = self.whole / (1 + self.column)
        self._take(shortest)

    def begin(self, slope: Tensor) -> None:
        """Set the first slope: at the initial time, or after a jump."""
        self.slopes, self.length, self.age = [slope], 0.0, 0.0

    def trial(self, length: float) -> tuple[list[Tensor], Tensor]:
        """The sums of a step of this length, one (groups, width) for each rule, and its local weight (groups,)."""
        if length < self.shortest:
            self._extend(length)
        like = self.initial
        self.fade = torch.exp(self.rates * -length)
        far = (self.coefficients * self.fade).to(like) @ self.sums  # (groups, rules, 1, width)
        end, share = self.over * length**self.column, share_ahead(length, self.length)
        weights = [by_rule(c, self.column, end, share) for c in self.cells]
        found = []
        for k, cell, (_, *lags) in zip(self.places, self.cells, weights, strict=True):
            total = self.initial + far[:, k, 0]
            for w, v in zip(lags[: 1 + (cell == "ahead")], reversed(self.slopes), strict=False):
                total = torch.addcmul(total, w.to(like), v)
            found.append(total)
        return found, weights[0][0][:, 0].to(like)

    def reach(self, time: float) -> Tensor:
        """By which factor (groups, 1) a constant error of the slopes over this time enters the state: t^β/Γ(β+1)."""
        return self.whole * time**self.column

    def accept(self, length: float, slope: Tensor) -> None:
        """Accept the step that was tried last: add its cell to the sums."""
        p, q = self._cell(length, slope, 0)
        self.sums.mul_(self.fade.to(slope)[:, None])
        self.sums.addcmul_(p, self.slopes[-1][:, None, None]).addcmul_(q, slope[:, None, None])
        self.slopes, self.length, self.age = [*self.slopes[-2:], slope], length, self.age + length

    def _cell(self, length: float, like: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """The weights of the slopes at both ends of a cell in its integral, for the exponentials from ``first`` on."""
        p, q = cell_integrals(self.rules, length, self.rates[first:])
        return p[..., None].to(like), q[..., None].to(like)  # (rules, K, 1)

    def _take(self, shortest: float) -> None:
        """Choose exponentials for lags down to this one; sums that exist are kept."""
        self.shortest, known = shortest, Rates.for_lags(shortest, self.longest, self.tol)
        self.rates = known.values.to(self.initial.device)
        self.coefficients = (self.gain * known.coefficients(self.order)).T[:, None, None].to(self.initial.device)
        missing = len(self.rates) - self.sums.shape[2]
        self.sums = torch.nn.functional.pad(self.sums, (0, 0, 0, missing))

    def _extend(self, length: float) -> None:
        """Add faster exponentials for shorter lags; only the last cell contributes to them, older ones have faded."""
        first = len(self.rates)
        self._take(length / 16)
        if self.length > 0:
            p, q = self._cell(self.length, self.initial, first)
            before, last = (v[:, None, None] for v in self.slopes[-2:])
            self.sums[:, :, first:] = p * before + q * last
