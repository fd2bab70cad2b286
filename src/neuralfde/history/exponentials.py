"""The distant past as a sum of decaying exponentials: memory and work per step that do not depend on the horizon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.caches import Cache
from ..base.checks import real, whole
from ..base.policy import CHECKED_LAGS, CHECKED_NUMBERS, FEWEST_CHECKED, FITTED_NUMBERS, MOST_TERMS
from ..base.torch_private import is_constant, value_of
from ..errors import InputError
from .base import Block, History, Memory
from .fading_mesh import FadingOnMesh, Mesh
from .long_blocks import LongBlocks
from .sum_of_exponentials import SumOfExponentials

_FITTED: Cache[Tensor] = Cache("fits of exponentials", 8)
_SUFFICED: Cache[list[int]] = Cache("terms that sufficed", 256)
_SAMPLED: Cache[Tensor] = Cache("lags of fits", 16)
_BASES: Cache[Basis] = Cache("factors of fits", 64)
_FADING: Cache[Tensor] = Cache("exponentials of checked lags", 16)


@dataclass(frozen=True)
class Exponentials(History):
    """The distant past as a sum of decaying exponentials: work and memory per step do not depend on the horizon.

    The last ``block`` = B lags are exact; beyond, ``w_m ≈ Σ_i c_i e^{-s_i (m - B)}``. The rates ``s_i`` are log-spaced
    between 0.1/N and 30/B. The coefficients minimise the relative error over log-spaced lags; they are linear in the
    weights, so orders can be learned. The fit is checked against the true weights, and terms are added until ``tol``
    holds. The approximated matrix is Toeplitz again, and the adjoint is exact for the approximated system.

    Args:
        tol: the largest relative error of any weight.
        block: rows are summed in blocks of this many steps; also the number of exact lags.
        terms: use exactly this many exponentials (``tol`` must then hold with them); default: as few as reach ``tol``.

    If the steps have different lengths, rates and coefficients have a closed form, see ``weights/fading.py``; the
    solver then sets ``mesh``. A stepper that computes the sums inside its blocks sets ``span``, for longer blocks.
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
        The fit of weights without gradient is cached for later solves.
        """
        if self.mesh is not None:
            return weights
        if not is_constant(weights) or weights.numel() > FITTED_NUMBERS:
            return self._fit(weights)
        key = (self, tuple(weights.shape), tuple(weights.flatten().tolist()))
        return _FITTED.get(key, lambda: self._fit(weights))

    def _fit(self, weights: Tensor) -> Tensor:
        """The fit with the fewest terms that reach the tolerance; the search begins with the number that sufficed last.

        The search runs without gradients; only the final fit has them.
        """
        size, steps = self.block, weights.shape[1] - 1
        if steps < 2 * size:
            return torch.nn.functional.pad(weights, (0, 0, 0, 2 * size - steps - 1))
        power, fewest = _decay(weights, size), self.terms or max(4, _guess(self.tol, steps, size))
        place = (size, steps, weights.device)
        sampled = weights[:, _SAMPLED.get(place, partial(_samples, *place))]
        tried = partial(self._tried, weights.detach(), sampled.detach(), power)
        sufficed = _SUFFICED.get((self, steps, power), lambda: [fewest])
        terms, (basis, reached) = sufficed[0], tried(sufficed[0])
        while reached <= self.tol and terms > fewest:
            fewer, worse = tried(terms - 2)
            if worse > self.tol:
                break
            terms, basis, reached = terms - 2, fewer, worse
        while reached > self.tol and self.terms is None and terms + 2 <= MOST_TERMS:
            terms += 2
            basis, better = tried(terms)
            reached = min(reached, better)
        if reached > self.tol:
            raise InputError(
                f"Exponentials(tol={self.tol:g}): {terms} exponentials reach {reached:.1e} over {steps} steps. Use "
                f"tol={2 * reached:.0e}, more exact lags (block={2 * size}), or history='full' or 'fft' for exact sums."
            )
        sufficed[:] = [terms]
        c = basis.coefficients(sampled)
        return torch.cat([weights[:, : size + 1], basis.near @ c, c], dim=1)

    def _tried(self, weights: Tensor, sampled: Tensor, power: float, terms: int) -> tuple[Basis, float]:
        """A basis of so many exponentials, and the largest relative error of a fit with them."""
        steps = weights.shape[1] - 1
        key = (self, steps, terms, power, weights.dtype, weights.device)
        basis = _BASES.get(key, partial(_basis, self, steps, terms, power, weights))
        return basis, _worst(basis.coefficients(sampled), weights, basis.rates, self.block)

    def rates(self, steps: int, terms: int) -> Tensor:
        """The rates per step, (terms,), in ascending order; float64."""
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
    """Slightly fewer terms than a tolerance usually takes, which is about 0.25 per digit and e-fold of the range."""
    return 2 * int(0.1 * -math.log10(tol) * math.log(300 * steps / block))


def _samples(block: int, steps: int, device: torch.device | None = None) -> Tensor:
    """The lags that are fitted: log-spaced from B to N."""
    points = torch.linspace(math.log(block), math.log(steps), 6 * MOST_TERMS, dtype=torch.float64)
    return torch.unique(points.exp().round().long().clamp(block, steps)).to(device)


def _decay(weights: Tensor, block: int) -> float:
    """The power of the lag with which the weights decay, rounded to one decimal; it makes errors of the fit relative.

    Because it is rounded it has no derivative in the order, so that the coefficients are linear in the weights.
    """
    steps = weights.shape[1] - 1
    ends = weights[:, block :: steps - block].abs().clamp(min=1e-300)  # of lags B and N
    slope = value_of(torch.log(ends[:, 0] / ends[:, 1])).mean() / math.log(steps / block)  # of all orders under vmap
    return round(min(2.0, max(0.0, float(slope))), 1)


class Basis(NamedTuple):
    """Exponentials with these rates, and how to fit weights by them.

    Attributes:
        rates: (terms,), in float64 on the host.
        factors: two matrices that turn weights at the sampled lags into coefficients, applied one after the other.
        near: the exponentials at the lags between B and 2B, (B - 1, terms).
    """

    rates: Tensor
    factors: tuple[Tensor, Tensor]
    near: Tensor

    def coefficients(self, sampled: Tensor) -> Tensor:
        """(sums, terms, groups) from weights at the sampled lags, (sums, lags, groups)."""
        return (sampled.transpose(1, 2) @ self.factors[0] @ self.factors[1]).transpose(1, 2)


def _basis(history: Exponentials, steps: int, terms: int, power: float, like: Tensor) -> Basis:
    """The least-squares fit to errors scaled by ``lag^power``.

    The pseudo-inverse is kept as two factors: multiplied out, it would lose half of its digits.
    """
    lags, rates = _samples(history.block, steps).double(), history.rates(steps, terms)
    scale = ((lags / history.block) ** power)[:, None]
    u, s, v = torch.linalg.svd(_fading(history.block - lags, rates) * scale, full_matrices=False)
    kept = s > max(1e-14, 1e-2 * history.tol) * s[0]  # small coefficients, so that sums in float32 do not cancel
    near = _fading(-torch.arange(1, history.block), rates)
    return Basis(rates, ((u[:, kept] * scale).to(like), (v[kept] / s[kept, None]).to(like)), near.to(like))


def _worst(c: Tensor, weights: Tensor, rates: Tensor, block: int) -> float:
    """The largest error of a checked weight beyond lag B, relative to it, or to 1e-6 of ``w_B`` if that is larger."""
    steps, size = weights.shape[1] - 1, max(FEWEST_CHECKED, CHECKED_NUMBERS // weights.shape[2])
    floor, worst = 1e-6 * weights[:, block : block + 1].abs(), 0.0
    for part in _checked(block, steps, size):
        if isinstance(part, slice) and steps <= 4096:
            key = (block, steps, len(rates), part.start, part.stop, c.dtype, c.device)
            fading = _FADING.get(key, partial(_fading_at, part, block, rates, c))
        else:
            fading = _fading_at(part, block, rates, c)
        true = weights[:, part]
        off = (fading @ c - true).abs() / torch.maximum(true.abs(), floor)
        worst = max(worst, float(value_of(off).max()))
    return worst


def _checked(block: int, steps: int, size: int) -> Iterator[slice | Tensor]:
    """The lags at which a fit is compared with the weights, in parts of ``size``."""
    if steps <= CHECKED_LAGS:
        yield from (slice(first, min(first + size, steps + 1)) for first in range(block + 1, steps + 1, size))
        return
    points = torch.linspace(math.log(block + 1), math.log(steps), CHECKED_LAGS, dtype=torch.float64)
    yield from torch.unique(points.exp().round().long().clamp(block + 1, steps)).split(size)


def _fading_at(part: slice | Tensor, block: int, rates: Tensor, like: Tensor) -> Tensor:
    """The value of each exponential at these lags, (lags, terms); it is 1 at lag B."""
    return _fading(block - (torch.arange(part.start, part.stop) if isinstance(part, slice) else part), rates).to(like)


def _fading(lags: Tensor, rates: Tensor) -> Tensor:
    """``e^{lag · rate}``, (lags, rates), in float64."""
    return torch.exp(lags[:, None].double() * rates)
