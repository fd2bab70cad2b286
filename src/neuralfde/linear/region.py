"""Where the eigenvalues of a sparse matrix can be, from its numbers alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..base.policy import LANCZOS_PRODUCTS, REGION_RAYS
from ..schemes.krylov import gmres
from ..schemes.sparse_systems import SparseMatrix


def enclosing(rows: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor | None:
    """The ends of rays from 0 to the edge of a region left of 0 that holds all eigenvalues, complex; None if none does.

    It is what the discs of Gershgorin by rows, those by columns, and the strip of the numerical range leave: real parts
    below those of the symmetric part's discs, imaginary ones within those of the other.
    """
    angles = torch.linspace(math.pi / 2, math.pi, REGION_RAYS + 1, dtype=torch.float64, device=values.device)[1:]
    own = rows == columns
    centre = _sums(rows, torch.where(own, values, 0.0), n)
    beside = torch.where(own, 0.0, values.abs())
    across, along = (_sums(x, beside, n) for x in (rows, columns))
    ends = [_of_discs(centre, x, angles) for x in (across, along)]
    reach, width = _halves(rows, columns, values, n)
    if _is_left(centre, reach):
        ends.append(width / torch.sin(angles).clamp(min=1e-300))
    known = [x for x in ends if x is not None]
    largest = float((centre.abs() + torch.maximum(across, along)).max())
    return torch.polar(torch.stack(known).amin(0).clamp(max=largest), angles) if known else None


def nearly_enclosing(rows: Tensor, columns: Tensor, values: Tensor, n: int) -> Tensor:
    """The same of a region that may reach to the right, from a basis of Lanczos' for the symmetric part: nearly."""
    forth, back = SparseMatrix(rows, columns, values, n), SparseMatrix(columns, rows, values, n)

    def symmetric(x: Tensor) -> Tensor:
        z = x.view(*values.shape[:-1], n)
        return (forth.matvec(z) + back.matvec(z)).view(x.shape) / 2

    start = torch.randn(values.shape[:-1].numel(), n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = gmres(symmetric, start.to(values), 0.0, LANCZOS_PRODUCTS)[2]
    found, vectors = torch.linalg.eigh(basis[:, :-1, :-1])
    top = float((found[:, -1] + basis[:, -1, -2].abs() * vectors[:, -1, -1].abs()).max())  # and its residual
    angles = torch.linspace(0, math.pi, 2 * REGION_RAYS + 1, dtype=torch.float64, device=values.device)
    straight = torch.cos(angles).clamp(min=1e-300)
    right = torch.where(angles < math.pi / 2, max(0.0, top) / straight, math.inf)
    radius = torch.minimum(right, _halves(rows, columns, values, n)[1] / torch.sin(angles).clamp(min=1e-300))
    radius[0] = max(0.0, top)  # on the axis, however narrow the strip is
    return torch.polar(radius.clamp(max=float(_sums(rows, values.abs(), n).max())), angles)


def _halves(rows: Tensor, columns: Tensor, values: Tensor, n: int) -> tuple[Tensor, float]:
    """The discs of the symmetric part, and how far those of the other reach."""
    place, at = torch.cat([rows * n + columns, columns * n + rows]).unique(return_inverse=True)
    first, both = place // n, ([values, values], [values, -values])
    symmetric, turning = (_sums(at, torch.cat(x, -1) / 2, len(place)) for x in both)
    reach = _sums(first, torch.where(first == place % n, 0.0, symmetric.abs()), n)
    return reach, float(_sums(first, turning.abs(), n).max())


def _of_discs(centre: Tensor, reach: Tensor, angles: Tensor) -> Tensor | None:
    """How far the discs reach in these directions, all of which point left."""
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
