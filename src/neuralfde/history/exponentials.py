"""The distant past as a sum of decaying exponentials: memory and work per step that do not depend on the horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..base.caches import Cache
from ..base.checks import real, whole
from ..base.policy import CHECKED_LAGS, FITTED_NUMBERS, MOST_TERMS
from ..base.torch_private import is_constant, value_of
from ..errors import InputError
from .base import Block, History, Memory
from .fading_mesh import FadingOnMesh, Mesh
from .long_blocks import LongBlocks
from .sum_of_exponentials import SumOfExponentials

_FITTED: Cache[Tensor] = Cache("fits of exponentials", 8)
_SUFFICED: Cache[list[int]] = Cache("terms that sufficed", 256)
_SOLVERS: Cache[tuple[Tensor, Tensor]] = Cache("factors of fits", 64)
_FADING: Cache[Tensor] = Cache("exponentials of checked lags", 16)


@dataclass(frozen=True)
class Exponentials(History):
    """``w_m ≈ Σ_i c_i e^{-s_i (m - B)}`` for lags ``m > B``; the last ``block`` = B lags are exact.

    The rates ``s_i`` are spaced evenly in their logarithm between 0.1/N and 30/B; the coefficients minimise the
    relative error over log-spaced lags, which is linear in the weights, so that orders can be learned. The fit is
    checked against the true weights and terms are added until ``tol`` holds. The approximated matrix is again
    Toeplitz: its adjoint is exact for the approximated system.

    Args:
        tol: the largest relative error of any weight.
        block: rows are summed in blocks of this many steps; also the number of exact lags.
        terms: use exactly this many exponentials (``tol`` must then hold with them); default: as few as reach ``tol``.

    Where steps have many lengths the rates and coefficients have a closed form, see ``weights/fading.py``; the solver
    fills in ``mesh`` then. A stepper that sums exponentials inside its blocks by itself asks for longer ones, ``span``.
    """

    tol: float = 1e-8
    block: int = 16
    terms: int | None = None
    mesh: Mesh | None = field(default=None, compare=False, repr=False)
    span: int | None = field(default=None, compare=False, repr=False)
    snapshots = True

    def __post_init__(self) -> None:
        real("Exponentials.tol", self.tol, 0, 1, hint="It is the largest relative error of a weight.")
        whole("Exponentials.block", self.block, least=2)
        if self.span is not None:
            whole("Exponentials.span", self.span)
        if self.terms is not None and self.mesh is None:
            exact = "float64 tells no more rates apart; history='full' or 'fft' has exact sums."
            whole("Exponentials.terms", self.terms, 2, MOST_TERMS, hint=exact)

    def tabulate(self, weights: Tensor) -> Tensor:
        """Lag weights (sums, steps + 1, groups) → (sums, 2B near weights and K coefficients, groups); differentiable.

        Near weights beyond lag B are those of the exponentials, so that the matrix is Toeplitz wherever blocks begin.
        The fit of weights that need no gradient is found again in the next solve.
        """
        if self.mesh is not None:
            return weights
        if not is_constant(weights) or weights.numel() > FITTED_NUMBERS:
            return self._fit(weights)
        key = (self, tuple(weights.shape), tuple(weights.flatten().tolist()))
        return _FITTED.get(key, lambda: self._fit(weights))

    def _fit(self, weights: Tensor) -> Tensor:
        """As few terms as reach the tolerance, whatever was fitted before; one looks first where the last fit ended."""
        size, steps = self.block, weights.shape[1] - 1
        if steps < 2 * size:
            return torch.nn.functional.pad(weights, (0, 0, 0, 2 * size - steps - 1))
        power, fewest = _decay(value_of(weights), size), self.terms or max(4, _guess(self.tol, steps, size))
        sufficed = _SUFFICED.get((self, steps, power), lambda: [fewest])
        terms, (c, reached) = sufficed[0], self._coefficients(weights, power, sufficed[0])
        while reached <= self.tol and terms > fewest:
            fewer, worse = self._coefficients(weights, power, terms - 2)
            if worse > self.tol:
                break
            terms, c, reached = terms - 2, fewer, worse
        while reached > self.tol and self.terms is None and terms + 2 <= MOST_TERMS:
            terms += 2
            c, better = self._coefficients(weights, power, terms)
            reached = min(reached, better)
        if reached > self.tol:
            raise InputError(
                f"Exponentials(tol={self.tol:g}): {terms} exponentials reach {reached:.1e} over {steps} steps. Use "
                f"tol={2 * reached:.0e}, more exact lags (block={2 * size}), or history='full' or 'fft' for exact sums."
            )
        sufficed[:] = [terms]
        lags = torch.arange(size + 1, 2 * size, dtype=torch.float64)[:, None]
        shadow = torch.einsum("mk,nkg->nmg", torch.exp((size - lags) * self.rates(steps, terms)).to(c), c)
        return torch.cat([weights[:, : size + 1], shadow, c], dim=1)

    def _coefficients(self, weights: Tensor, power: float, terms: int) -> tuple[Tensor, float]:
        """The coefficients (sums, terms, groups) of so many exponentials, and their largest relative error."""
        size, steps = self.block, weights.shape[1] - 1
        c = weights[:, _samples(size, steps)].transpose(1, 2)
        for factor in _SOLVERS.get((self, steps, terms, power), partial(_solver, self, steps, terms, power)):
            c = c @ factor.to(c)
        c = c.transpose(1, 2)
        return c, _worst(c.detach(), weights.detach(), self.rates(steps, terms), size)

    def rates(self, steps: int, terms: int) -> Tensor:
        """The rates per step, fastest last; float64."""
        low, high = math.log(0.1 / steps), math.log(30 / self.block)
        return torch.linspace(low, high, terms, dtype=torch.float64).exp()

    def lags(self, weights: Tensor, steps: int) -> Tensor:
        """See :class:`History`."""
        if self.mesh is not None:
            whole, row = Block(0, steps + 1), weights.new_zeros(weights.shape[2], 1)
            inner = FadingOnMesh(self.mesh, weights, row, whole.count, False, False).inner(whole)
            return inner[..., 0].permute(2, 1, 3, 0)
        near, c = weights[:, : min(2 * self.block, steps + 1)], weights[:, 2 * self.block :]
        if c.shape[1] == 0:
            return near
        far = torch.arange(2 * self.block, steps + 1, dtype=torch.float64)[:, None]
        decays = torch.exp((self.block - far) * self.rates(steps, c.shape[1])).to(weights)
        return torch.cat([near, torch.einsum("mk,nkg->nmg", decays, c)], dim=1)

    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Memory:
        """See :class:`History`."""
        return self._open(weights, steps, row, False, False)

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Memory:
        """See :class:`History`."""
        return self._open(weights, steps, row, True, weigh)

    def _open(self, weights: Tensor, steps: int, row: Tensor, backward: bool, weigh: bool) -> Memory:
        if self.mesh is not None:
            return FadingOnMesh(self.mesh, weights, row, self.block, backward, weigh)
        terms = weights.shape[1] - 2 * self.block
        rates = self.rates(steps, terms) if terms else torch.empty(0, dtype=torch.float64)
        if self.span is None or self.span <= self.block or not terms:
            return SumOfExponentials(weights, rates, steps, row, self.block, backward, weigh)
        short = SumOfExponentials(weights, rates, steps, row, self.block, backward, False)
        return LongBlocks(short, weights, rates, self.span, weigh)


def _guess(tol: float, steps: int, block: int) -> int:
    """A few terms below what a tolerance usually takes: about 0.25 per digit and e-fold of the range."""
    return 2 * int(0.1 * -math.log10(tol) * math.log(300 * steps / block))


def _samples(block: int, steps: int) -> Tensor:
    """Lags the fit looks at: log-spaced from B to N."""
    points = torch.linspace(math.log(block), math.log(steps), 6 * MOST_TERMS, dtype=torch.float64)
    return torch.unique(points.exp().round().long().clamp(block, steps))


def _decay(weights: Tensor, block: int) -> float:
    """The power of the lag with which the weights decay, to one decimal: what makes errors relative in the fit.

    Rounded, it does not change with the order, so that the coefficients are linear in the weights.
    """
    ends = weights[:, [block, weights.shape[1] - 1]].abs().clamp(min=1e-300)
    slope = torch.log(ends[:, 0] / ends[:, 1]) / math.log((weights.shape[1] - 1) / block)
    return round(min(2.0, max(0.0, float(slope.mean()))), 1)


def _solver(history: Exponentials, steps: int, terms: int, power: float) -> tuple[Tensor, Tensor]:
    """From sampled weights to coefficients: least squares on errors scaled by ``lag^power``.

    Two factors of the pseudo-inverse, applied one after the other: multiplied out, it would lose half the digits.
    """
    lags = _samples(history.block, steps).double()
    scale = ((lags / history.block) ** power)[:, None]
    matrix = torch.exp((history.block - lags[:, None]) * history.rates(steps, terms)) * scale
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    kept = s > max(1e-14, 1e-2 * history.tol) * s[0]  # keeps coefficients small: float32 sums cancel nothing
    return u[:, kept] * scale, v[kept] / s[kept, None]


def _worst(c: Tensor, weights: Tensor, rates: Tensor, block: int) -> float:
    """The largest error of any checked weight of lag > B, relative to it (but not to less than 1e-6 of ``w_B``)."""
    steps = weights.shape[1] - 1
    lags = torch.arange(block + 1, steps + 1)
    if steps > CHECKED_LAGS:
        points = torch.linspace(math.log(block + 1), math.log(steps), CHECKED_LAGS, dtype=torch.float64)
        lags = torch.unique(points.exp().round().long().clamp(block + 1, steps))
    floor = 1e-6 * weights[:, block : block + 1].abs()
    worst = 0.0
    for part in lags.split(1024):
        make = partial(_fading, block - part, rates)
        fading = _FADING.get((block, steps, len(rates), int(part[0])), make) if steps <= 4096 else make()
        fit, true = torch.einsum("mk,nkg->nmg", fading.to(c), c), weights[:, part]
        worst = max(worst, float(((fit - true).abs() / torch.maximum(true.abs(), floor)).max()))
    return worst


def _fading(lags: Tensor, rates: Tensor) -> Tensor:
    """``e^{lag · rate}``, (lags, rates), in float64."""
    return torch.exp(lags[:, None].double() * rates)
