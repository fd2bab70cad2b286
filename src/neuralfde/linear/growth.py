"""Whether a matrix that is known by its products and its systems alone has eigenvalues below zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..base.policy import GROWTH_PRODUCTS
from ..schemes.krylov import gmres

Map = Callable[[Tensor], Tensor]


def least_eigenvalue(apply: Map, solve: Map, like: Tensor) -> float:
    """The least real part of the eigenvalues of M, nearly, from bases of Arnoldi for M and for its inverse.

    The ends of a spectrum are found first: what lies far below zero by products with M, what lies near it by systems. A
    negative value counts if it is larger than rounding, and was there some vectors before.
    """
    start = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(like)
    negative, top = [], math.inf
    for by in (apply, solve):
        product = lambda row, by=by: by(row.view(like.shape)).reshape(1, -1)  # noqa: E731
        basis = gmres(product, start.reshape(1, -1), 0.0, GROWTH_PRODUCTS)[2][0]
        links = basis.diagonal(offset=-1)  # behind one that is rounding, the basis is complete
        complete = (links.abs() <= math.sqrt(torch.finfo(like.dtype).eps) * basis.abs().max()).nonzero()
        basis = basis[: int(complete[0]) + 1, : int(complete[0]) + 1] if len(complete) else basis
        now, before = (torch.linalg.eigvals(basis[:k, :k]).real for k in (len(basis), max(1, len(basis) - 4)))
        low, top = float(now.min()), float(now.max())
        if low < -math.sqrt(torch.finfo(like.dtype).eps) * float(now.abs().max()) and float(before.min()) < low / 2:
            negative.append(low if by is apply else 1 / low)
    return min(negative) if negative else 1 / max(top, torch.finfo(like.dtype).tiny)
