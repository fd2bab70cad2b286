"""The Mittag-Leffler function of a small matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralfde.base.checks import reals, tensor
from neuralfde.errors import InputError
from neuralfde.special.mittag_leffler import mittag_leffler

# With n nodes on a circle the error is 2^-n if every eigenvalue is a factor of two inside or outside of it.
_NODES = 60


def mittag_leffler_matrix(matrix: Tensor, alpha: float | Tensor, beta: float | Tensor = 1.0) -> Tensor:
    """E_{α,β}(A) = Σ_k A^k / Γ(αk + β) of square matrices (last two axes; leading axes are a batch).

    It is the Cauchy integral 1/(2πi) ∮ E_{α,β}(ζ) (ζI - A)^{-1} dζ over one circle per cluster of eigenvalues. A Jordan
    block is one cluster, so defective matrices need no special treatment; the circles are constants to autograd,
    so the result is differentiable in A (also at repeated eigenvalues), α and β. α and β are numbers or 0-d tensors.

    Error: a few roundings times the norm of the resolvents on the circles. Measured relative error (in norm):
    under 4e-15 for random 6x6 matrices and Jordan blocks of size 4 with eigenvalues in [-20, 5], but 1.1e-13 for the
    block with α = 0.5 and eigenvalue 5; a strongly non-normal matrix loses more. Meant for small
    systems: 60 inverses per cluster.
    """
    tensor("matrix", matrix, also_complex=True)
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise InputError(f"matrix of shape {tuple(matrix.shape)}; the last two axes must be square.")
    alpha, beta = reals("alpha", alpha), reals("beta", beta)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if value.numel() != 1:
            raise InputError(f"{name} has shape {tuple(value.shape)}; a matrix function takes one number.")
    wide = matrix.to(torch.complex128).reshape(-1, *matrix.shape[-2:])
    parts = [_one_matrix(single, alpha, beta) for single in wide.unbind(0)]
    result = torch.stack(parts).reshape(matrix.shape) if parts else wide.reshape(matrix.shape)
    return result.to(matrix.dtype) if matrix.is_complex() else result.real.to(matrix.dtype)


def _one_matrix(matrix: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    with torch.no_grad():
        circles = _circles(torch.linalg.eigvals(matrix.detach()).tolist(), float(alpha))
    centres = torch.tensor([c for c, _ in circles], dtype=torch.complex128, device=matrix.device)
    radii = torch.tensor([r for _, r in circles], dtype=torch.float64, device=matrix.device)
    # Half-shifted angles: nodes come in conjugate pairs and none is real.
    angles = (torch.arange(_NODES, dtype=torch.float64, device=matrix.device) + 0.5) * (2.0 * math.pi / _NODES)
    offsets = radii[:, None] * torch.exp(1j * angles)
    points = (centres[:, None] + offsets).reshape(-1)
    weights = mittag_leffler(points, alpha, beta) * offsets.reshape(-1) / _NODES
    identity = torch.eye(matrix.shape[-1], dtype=torch.complex128, device=matrix.device)
    resolvents = torch.linalg.inv(points[:, None, None] * identity - matrix)
    return (weights[:, None, None] * resolvents).sum(0)


def _scale(value: complex, alpha: float) -> float:
    """The distance over which E varies by a moderate factor: it varies like exp(ζ^{1/α}), or slowly if algebraic."""
    size = max(abs(value), 1.0)
    if alpha < 1 and value.real < -0.5:
        return 0.5
    return 0.5 * min(1.0, alpha) * size ** (1.0 - 1.0 / alpha)


def _circles(eigenvalues: list[complex], alpha: float) -> list[tuple[complex, float]]:
    """Circles (centre, radius) around clusters; every eigenvalue is a factor of two inside or outside each circle."""
    clusters = [[v] for v in eigenvalues]
    while True:
        shapes = [_shape(c, alpha) for c in clusters]
        pair = _too_close(clusters, shapes)
        if pair is None:
            break
        first, second = pair
        clusters[first] += clusters.pop(second)
    circles = []
    for i, (centre, inner, scale) in enumerate(shapes):
        outer = min((abs(v - centre) for j, c in enumerate(clusters) if j != i for v in c), default=math.inf)
        circles.append((centre, max(2.0 * inner, min(scale, outer / 2.0))))
    return circles


def _shape(cluster: list[complex], alpha: float) -> tuple[complex, float, float]:
    centre = sum(cluster) / len(cluster)
    return centre, max(abs(v - centre) for v in cluster), _scale(centre, alpha)


def _too_close(clusters: list[list[complex]], shapes: list[tuple[complex, float, float]]) -> tuple[int, int] | None:
    for i, (centre, inner, scale) in enumerate(shapes):
        reach = 4.0 * max(inner, 0.01 * scale)
        for j, other in enumerate(clusters):
            if j != i and min(abs(v - centre) for v in other) < reach:
                return min(i, j), max(i, j)
    return None
