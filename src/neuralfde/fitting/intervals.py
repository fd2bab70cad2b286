"""How sure a fit is: covariance from the Jacobian, intervals, and the bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .optimisers import LevenbergMarquardt, Optimiser
from .problem import Problem


@dataclass(frozen=True)
class Uncertainty:
    """Covariance (P, P) and 95 % intervals (P, 2), in natural numbers; infinite where the data say nothing.

    ``step`` (P,) is the step of Gauss and Newton from the estimates, 0 at a minimum and outwards at a bound; ``shift``
    (P,) how far they would move with half the solver's step; ``blind`` (P,) marks what the data do not determine.
    """

    covariance: Tensor
    intervals: Tensor
    noise: float
    step: Tensor
    blind: Tensor
    shift: Tensor | None = None


def gauss_newton(problem: Problem, flat: Tensor, finer: Problem | None = None) -> Uncertainty:
    """``σ² (JᵀJ)⁻¹`` with σ = 1 for calibrated noise, otherwise ``σ² = Σ r² / (M - P)``; Student's t for the width.

    With ``finer``, the same problem on a finer grid, the shift is ``-(JᵀJ)⁻¹ Jᵀ (r_finer - r)``: one step towards its
    minimum.
    """
    residual, matrix = problem.jacobian(flat)
    count, size = matrix.shape
    freedom = count - size
    rss = float(residual.square().sum())
    variance = 1.0 if problem.data.calibrated else rss / freedom if freedom > 0 else float("inf")
    # columns are scaled to length one, so that the rank is judged without regard to units
    length = matrix.norm(dim=0).clamp(min=1e-300)
    _, singular, right = torch.linalg.svd(matrix / length, full_matrices=False)
    lost = singular <= 1e-9 * singular[0]
    inverse = torch.where(lost, 0.0, singular.pow(-2))
    covariance = (right.T * inverse) @ right
    blind = (right[lost].abs() > 1e-3).any(0) if bool(lost.any()) else torch.zeros(size, dtype=torch.bool)
    covariance = covariance / length[:, None] / length[None, :]
    shift = None if finer is None else -covariance @ (matrix.T @ (_residual(finer, flat) - residual))
    step = -covariance @ (matrix.T @ residual)
    covariance = variance * covariance
    deviation = covariance.diagonal().clamp(min=0).sqrt()
    blind = blind | (matrix.norm(dim=0) == 0) | (freedom <= 0 and not problem.data.calibrated)
    deviation = torch.where(blind, torch.inf, deviation)
    half = (1.959964 if problem.data.calibrated else student(max(freedom, 1))) * deviation
    low, high = problem.unknowns.limits()
    bounds = torch.stack([torch.maximum(flat - half, low), torch.minimum(flat + half, high)], -1)
    return Uncertainty(covariance, bounds, variance**0.5, step, blind, shift)


def _residual(problem: Problem, flat: Tensor) -> Tensor:
    with torch.no_grad():
        return problem.residuals(flat)[problem.data.seen]


def bootstrap(
    problem: Problem,
    flat: Tensor,
    resamples: int,
    seed: int,
    optimiser: Optimiser | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Uncertainty:
    """Refit to predictions plus resampled residuals; intervals are the 2.5 and 97.5 % points of the estimates."""
    data = problem.data
    with torch.no_grad():
        predicted = problem.predict(flat)
    seen = data.seen
    scaled = (data.scale * (data.values - predicted))[seen]
    scaled = scaled * (len(scaled) / max(1, len(scaled) - len(flat))) ** 0.5  # residuals are shorter than the noise
    generator = torch.Generator().manual_seed(seed)
    start = problem.unknowns.to_free(flat)
    chosen = LevenbergMarquardt(iterations=15, tolerance=1e-6) if optimiser is None else optimiser
    found = []
    for k in range(resamples):
        pick = scaled[torch.randint(len(scaled), (len(scaled),), generator=generator)]
        values = predicted.clone()
        values[seen] += pick / data.scale[seen]
        again = replace(problem, data=replace(data, values=torch.where(seen, values, 0.0)))
        path = chosen.minimise(again, start, lambda *_: False, None)
        found.append(problem.unknowns.to_value(path.free))
        if progress is not None:
            progress(k + 1, resamples)
    draws = torch.stack(found)
    quantiles = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype), dim=0).T
    return replace(
        gauss_newton(problem, flat, problem.finer()),
        covariance=draws.T.cov().reshape(len(flat), len(flat)),
        intervals=quantiles,
        noise=float(scaled.square().mean().sqrt()),
    )


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by Hill's expansion (exact values for one and two degrees of freedom)."""
    if freedom <= 2:
        return (12.7062, 4.30265)[freedom - 1]
    z = 1.959963984540054
    v = float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
