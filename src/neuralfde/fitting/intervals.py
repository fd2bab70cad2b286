"""How sure a fit is: covariance from the Jacobian, intervals, and the bootstrap."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .optimisers import LevenbergMarquardt, bounded_move
from .problem import UNSOLVABLE, Problem, influence

#: The least variance of residuals, relative to the mean square of the data: a solve rounds to some 1e-12 of it.
ROUNDING = 1e-24
#: The 97.5 % point of the normal distribution.
NORMAL = 1.959963984540054


@dataclass(frozen=True)
class Uncertainty:
    """Covariance (P, P) and 95 % intervals (P, 2), in natural numbers; infinite where the data say nothing.

    ``step`` (P,) is the step of Gauss and Newton from the estimates, 0 at a minimum and outwards at a bound; ``shift``
    (P,) how far they would move with half the solver's step, infinite where that solve fails; ``blind`` (P,) marks what
    the data do not determine; ``promise`` is by how many noise variances a step inside the bounds would lower the sum
    of squares, 0 at a minimum.
    """

    covariance: Tensor
    intervals: Tensor
    noise: float
    step: Tensor
    blind: Tensor
    shift: Tensor | None = None
    promise: float = 0.0


def gauss_newton(problem: Problem, flat: Tensor, finer: Problem | None = None) -> Uncertainty:
    """``σ² (JᵀJ)⁻¹`` with σ = 1 for calibrated noise, otherwise ``σ² = Σ r² / (M - P)``; Student's t for the width.

    Of a robust loss it is the covariance of an M-estimator: Huber, Robust Statistics (1981), section 7.6.

    With ``finer``, the same problem on a finer grid, the shift is ``-(JᵀJ)⁻¹ Jᵀ (r_finer - r)``: one step towards its
    minimum.
    """
    residual, matrix = problem.jacobian(flat)
    count, size = matrix.shape
    freedom = count - size
    rss = float(residual.square().sum())
    square = float((problem.data.scale * problem.data.values).square().sum()) / max(1, count)
    estimate = max(rss / freedom, ROUNDING * square) if freedom > 0 else float("inf")
    variance = 1.0 if problem.data.calibrated else estimate
    covariance, lost, length = _inverse(matrix)
    shift = None if finer is None else _shift(finer, flat, covariance @ matrix.T, residual)
    step = -covariance @ (matrix.T @ residual)
    covariance = variance * covariance if problem.robust is None else _robust(problem.robust, residual, matrix, square)
    deviation = covariance.diagonal().clamp(min=0).sqrt()
    blind = lost | (matrix.norm(dim=0) == 0) | (freedom <= 0 and not problem.data.calibrated)
    deviation = torch.where(blind, torch.inf, deviation)
    half = wide(problem, freedom) * deviation
    low, high = problem.unknowns.limits()
    bounds = torch.stack([torch.maximum(flat - half, low), torch.minimum(flat + half, high)], -1)
    inside = bounded_move(residual, matrix, 1e-12, length, problem.unknowns.room(flat))
    promise = (rss - float((residual + matrix @ inside).square().sum())) / max(variance, 1e-12 * square, 1e-300)
    return Uncertainty(covariance, bounds, variance**0.5, step, blind, shift, promise)


def _inverse(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(JᵀJ)⁻¹``, which unknowns (P,) the directions move that J does not have, and the lengths of its columns."""
    # columns are scaled to length one, so that the rank is judged without regard to units
    length = matrix.norm(dim=0).clamp(min=1e-300)
    square = torch.cat([matrix / length, matrix.new_zeros(max(0, matrix.shape[1] - len(matrix)), matrix.shape[1])])
    _, singular, right = torch.linalg.svd(square, full_matrices=False)
    lost = singular <= 1e-9 * singular[0]
    inverse = torch.where(lost, 0.0, singular.pow(-2))
    covariance = (right.T * inverse) @ right
    blind = (right[lost].abs() > 1e-3).any(0) if bool(lost.any()) else torch.zeros(matrix.shape[1], dtype=torch.bool)
    return covariance / length[:, None] / length[None, :], blind, length


def _robust(robust: float, residual: Tensor, matrix: Tensor, square: float) -> Tensor:
    """``K² [Σ ψ² / (M - P)] / [mean ψ']² (XᵀX)⁻¹`` with the Jacobian X of the residuals before they are shortened."""
    variance = robust_variance(residual, robust, matrix.shape[1]).clamp(min=ROUNDING * square)
    slope, _, bend = influence(residual, robust)
    count, size = matrix.shape
    correction = 1 + size / count * bend.var(correction=0) / bend.mean().square()
    covariance = _inverse(matrix / slope[:, None])[0]
    return correction.square() * variance / bend.mean() * covariance


def robust_variance(residual: Tensor, robust: float, unknowns: int) -> Tensor:
    """What takes the place of the variance of noise in tests on the loss of shortened residuals: E ψ² / E ψ'."""
    _, force, bend = influence(residual, robust)
    return force.square().sum() / max(1, len(residual) - unknowns) / bend.mean()


def wide(problem: Problem, freedom: int) -> float:
    """Half the width of a 95 % interval in standard deviations: the normal one where these are known, or Student's."""
    return NORMAL if problem.data.calibrated else student(max(freedom, 1))


def _shift(finer: Problem, flat: Tensor, inverse: Tensor, residual: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            moved = finer.residuals(flat)[finer.data.seen] - residual
    except UNSOLVABLE:
        return torch.full_like(flat, torch.inf)
    return -inverse @ moved


def bootstrap(problem: Problem, flat: Tensor, resamples: int, seed: int) -> Uncertainty:
    """Refit to predictions plus resampled residuals; intervals are the 2.5 and 97.5 % points of the estimates.

    See ``stretched`` on few values.
    """
    data = problem.data
    with torch.no_grad():
        predicted = problem.predict(flat)
    seen = data.seen
    scaled = (data.scale * (data.values - predicted))[seen]
    scaled = scaled * (len(scaled) / max(1, len(scaled) - len(flat))) ** 0.5  # residuals are shorter than the noise
    generator = torch.Generator().manual_seed(seed)
    start = problem.unknowns.to_free(flat)
    optimiser, found = LevenbergMarquardt(iterations=15, tolerance=1e-6), []
    for _ in range(resamples):
        pick = scaled[torch.randint(len(scaled), (len(scaled),), generator=generator)]
        values = predicted.clone()
        values[seen] += pick / data.scale[seen]
        again = replace(problem, data=replace(data, values=torch.where(seen, values, 0.0)))
        path = optimiser.minimise(again, start, lambda *_: False, None)
        found.append(problem.unknowns.to_value(path.free))
    draws = torch.stack(found)
    intervals = stretched(problem, draws, flat, data.count)
    return replace(
        gauss_newton(problem, flat, problem.finer()),
        covariance=draws.T.cov().reshape(len(flat), len(flat)),
        intervals=intervals,
        noise=float(scaled.square().mean().sqrt()),
    )


def stretched(problem: Problem, draws: Tensor, flat: Tensor, count: int) -> Tensor:
    """The 2.5 and 97.5 % points (unknowns, 2) of estimates from resampled data, as far as few values allow.

    Percentiles know the noise no better than its estimate does: away from the estimate they are stretched by the ratio
    of Student's t to the normal distribution, as in Hesterberg, The American Statistician 69 (2015), section 5.3.
    """
    quantiles = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype), dim=0).T
    low, high = problem.unknowns.limits()
    found = flat[:, None] + (quantiles - flat[:, None]) * (wide(problem, count - len(flat)) / NORMAL)
    return torch.stack([torch.maximum(found[:, 0], low), torch.minimum(found[:, 1], high)], -1)


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by Hill's expansion (values from tables up to five degrees of freedom)."""
    if freedom <= 5:
        return (12.706205, 4.302653, 3.182446, 2.776445, 2.570582)[freedom - 1]
    z = NORMAL
    v = float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
