"""Whether a matrix that is given only by products and solves has negative eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..base.policy import GROWTH_PRODUCTS
from ..schemes.krylov import gmres

Map = Callable[[Tensor], Tensor]


def least_eigenvalue(apply: Map, solve: Map, like: Tensor) -> float:
    """An estimate of the least real part of the eigenvalues of M, from Arnoldi bases of M and of its inverse.

    Both converge first at the ends of a spectrum: products with M find eigenvalues far below zero, solves those near
    zero. A negative value counts if it exceeds rounding and was already there a few vectors before.
    """
    start = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(like)
    negative, top = [], math.inf
    for by in (apply, solve):
        product = lambda row, by=by: by(row.view(like.shape)).reshape(1, -1)  # noqa: E731
        basis = gmres(product, start.reshape(1, -1), 0.0, GROWTH_PRODUCTS)[2][0]
        links = basis.diagonal(offset=-1)  # if one of them is at the level of rounding, the basis is complete
        complete = (links.abs() <= math.sqrt(torch.finfo(like.dtype).eps) * basis.abs().max()).nonzero()
        basis = basis[: int(complete[0]) + 1, : int(complete[0]) + 1] if len(complete) else basis
        now, before = (torch.linalg.eigvals(basis[:k, :k]).real for k in (len(basis), max(1, len(basis) - 4)))
        low, top = float(now.min()), float(now.max())
        if low < -math.sqrt(torch.finfo(like.dtype).eps) * float(now.abs().max()) and float(before.min()) < low / 2:
            negative.append(low if by is apply else 1 / low)
    return min(negative) if negative else 1 / max(top, torch.finfo(like.dtype).tiny)
