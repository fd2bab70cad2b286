"""What is known of the eigenvalues of a matrix: all of them, bounds, or a region that contains them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..base.policy import DENSE_NUMBERS, LANCZOS_PRODUCTS, REGION_RAYS
from ..schemes.krylov import gmres
from ..schemes.sparse_systems import SparseMatrix


def eigenvalues(matrix: Tensor) -> Tensor | None:
    """The eigenvalues of a matrix; None if it is large."""
    if matrix.shape[-1] > DENSE_NUMBERS:
        return None
    return torch.linalg.eigvalsh(matrix) if torch.equal(matrix, matrix.mT) else torch.linalg.eigvals(matrix)


def enclosed(low: Tensor, high: float) -> Tensor | None:
    """Bounds of real eigenvalues: ``low`` and 0, if ``high`` is at most rounding; None if it is positive."""
    return torch.stack([low, low.new_zeros(())]) if high <= 1e-12 * float(low.abs()) else None


def enclosing(matrix: SparseMatrix) -> Tensor | None:
    """The ends (complex) of rays from 0 to the boundary of a region left of 0 that contains all eigenvalues; or None.

    It is the intersection of Gershgorin's discs by rows, those by columns, and a strip that contains the numerical
    range: real parts are bounded by the discs of the symmetric part, imaginary parts by those of the other part.
    """
    device = matrix.values.device
    angles = torch.linspace(math.pi / 2, math.pi, REGION_RAYS + 1, dtype=torch.float64, device=device)[1:]
    (centre, across), (_, along) = matrix.discs(), matrix.transposed.discs()
    ends = [_of_discs(centre, x, angles) for x in (across, along)]
    reach, width = _halves(matrix)
    if _is_left(centre, reach):
        ends.append(width / torch.sin(angles).clamp(min=1e-300))
    known = [x for x in ends if x is not None]
    largest = float((centre.abs() + torch.maximum(across, along)).max())
    return torch.polar(torch.stack(known).amin(0).clamp(max=largest), angles) if known else None


def nearly_enclosing(matrix: SparseMatrix) -> Tensor:
    """The same for a region that may reach right of 0, estimated from a Lanczos basis of the symmetric part."""
    values, n = matrix.values, matrix.n

    def symmetric(x: Tensor) -> Tensor:
        z = x.view(*values.shape[:-1], n)
        return (matrix.matvec(z) + matrix.transposed.matvec(z)).view(x.shape) / 2

    start = torch.randn(values.shape[:-1].numel(), n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = gmres(symmetric, start.to(values), 0.0, LANCZOS_PRODUCTS)[2]
    found, vectors = torch.linalg.eigh(basis[:, :-1, :-1])
    top = float((found[:, -1] + basis[:, -1, -2].abs() * vectors[:, -1, -1].abs()).max())  # plus its residual
    angles = torch.linspace(0, math.pi, 2 * REGION_RAYS + 1, dtype=torch.float64, device=values.device)
    straight = torch.cos(angles).clamp(min=1e-300)
    right = torch.where(angles < math.pi / 2, max(0.0, top) / straight, math.inf)
    radius = torch.minimum(right, _halves(matrix)[1] / torch.sin(angles).clamp(min=1e-300))
    radius[0] = max(0.0, top)  # on the axis the width of the strip does not matter
    return torch.polar(radius.clamp(max=float(matrix.row_sums(values.abs()).max())), angles)


def _halves(matrix: SparseMatrix) -> tuple[Tensor, float]:
    """The radii of the discs of the symmetric part, and the largest radius of those of the antisymmetric part."""
    rows, columns, values, n = matrix.rows, matrix.columns, matrix.values, matrix.n
    place, at = torch.cat([rows * n + columns, columns * n + rows]).unique(return_inverse=True)
    first, both = place // n, ([values, values], [values, -values])
    symmetric, turning = (_sums(at, torch.cat(x, -1) / 2, len(place)) for x in both)
    reach = _sums(first, torch.where(first == place % n, 0.0, symmetric.abs()), n)
    return reach, float(_sums(first, turning.abs(), n).max())


def _of_discs(centre: Tensor, reach: Tensor, angles: Tensor) -> Tensor | None:
    """How far the discs reach from 0 in these directions, all to the left; None if a disc reaches right of 0."""
    if not _is_left(centre, reach):
        return None
    found = []
    for angle in angles:  # one at a time: there may be many discs
        inside = reach**2 - (centre * torch.sin(angle)) ** 2
        end = centre * torch.cos(angle) + inside.clamp(min=0).sqrt()
        found.append(torch.where(inside >= 0, end, 0.0).max().double())
    return torch.stack(found)


def _is_left(centre: Tensor, reach: Tensor) -> bool:
    return bool((centre + reach <= 1e-12 * centre.abs().max()).all())


def _sums(places: Tensor, values: Tensor, n: int) -> Tensor:
    return values.new_zeros(*values.shape[:-1], n).index_add(-1, places, values)
