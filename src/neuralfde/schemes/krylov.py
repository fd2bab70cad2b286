"""Stages without a known structure: GMRES with products, a basis for each sample; or fixed-point iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import whole
from ..base.policy import GROWTH_PRODUCTS
from .jacobian import Jacobian
from .linear import Factor, Linear, check_linear


def gmres(apply: Callable[[Tensor], Tensor], rhs: Tensor, tol: float, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Solve ``apply(x) = rhs`` for samples (samples, elements) that do not interact (Saad and Schultz 1986).

    Returns x, the relative residual of each sample, and the Hessenberg matrices, whose eigenvalues approximate those of
    ``apply``.
    """
    scale = rhs.abs().amax(1, keepdim=True)  # squares of small numbers would underflow
    b = rhs / torch.where(scale > 0, scale, 1.0)
    norm = b.norm(dim=1)
    samples, numbers = rhs.shape
    size = min(size, numbers)
    basis = b.new_zeros(samples, size + 1, numbers)
    basis[:, 0] = b / torch.where(norm > 0, norm, 1.0)[:, None]
    hessenberg = torch.zeros(samples, size + 1, size, dtype=torch.float64)
    target = torch.zeros(samples, size + 1, 1, dtype=torch.float64)
    target[:, 0, 0] = norm.double().cpu()
    found, residual = torch.zeros(samples, 0, 1, dtype=torch.float64), torch.ones(samples, dtype=torch.float64)
    for k in range(size):
        basis[:, k + 1] = arnoldi_step(basis[:, : k + 1], apply(basis[:, k]), hessenberg)
        if k % 4 == 0 or k + 1 == size:  # this check costs as much as a small func
            found, residual = _least_squares(hessenberg[:, : k + 2, : k + 1], target[:, : k + 2])
            if not math.isfinite(float(residual.max())) or float(residual.max()) <= tol:
                break
    used = found.shape[1]
    x = torch.einsum("sk,skm->sm", found[..., 0].to(b), basis[:, :used]) * scale
    return x, residual, hessenberg[:, :used, :used]


def arnoldi_step(basis: Tensor, w: Tensor, hessenberg: Tensor) -> Tensor:
    """The next basis vector from the product ``w`` with the last one; what relates them goes to ``hessenberg``."""
    k = basis.shape[1]
    for _ in range(2):  # done twice, the basis is orthogonal to rounding
        h = torch.einsum("skm,sm->sk", basis, w)
        hessenberg[:, :k, k - 1] += h.to(hessenberg)
        w = w - torch.einsum("sk,skm->sm", h, basis)
    length = w.norm(dim=1)
    hessenberg[:, k, k - 1] = length.to(hessenberg)
    return w / torch.where(length > 0, length, 1.0)[:, None]


def _least_squares(matrix: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficients with the smallest residual, and that residual; columns of zeros get the coefficient 0."""
    normal = matrix.mT @ matrix
    normal.diagonal(dim1=1, dim2=2).add_(normal.abs().amax((1, 2))[:, None] * 1e-28 + 1e-300)
    found = torch.linalg.solve_ex(normal, matrix.mT @ e)[0]
    return found, (matrix @ found - e).norm(dim=(1, 2)) / torch.where(e[:, 0, 0] > 0, e[:, 0, 0], 1.0)


def least_eigenvalue(apply: Callable[[Tensor], Tensor], solve: Callable[[Tensor], Tensor], like: Tensor) -> float:
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


@dataclass(frozen=True)
class Krylov(Linear):
    """GMRES with Jacobian-vector products, for states of any size; no matrix is formed.

    Args:
        size: the number of basis vectors before a restart; each is as large as the state.
        restarts: the largest number of restarts.
        preconditioner: an approximate solver of these systems: ``Dense()``, ``Banded()``, ``Sparse()``,
            ``Spectral(..., nearly=True)``, ``Given(...)`` or your own.
    """

    size: int = 30
    restarts: int = 10
    preconditioner: Linear | None = None

    def __post_init__(self) -> None:
        whole("Krylov.size", self.size)
        whole("Krylov.restarts", self.restarts)
        if self.preconditioner is not None:
            check_linear("Krylov.preconditioner", self.preconditioner)

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        """See :class:`Linear`."""
        near = None if self.preconditioner is None else self.preconditioner.factor(jacobian, w0)
        return _Iterated(self, jacobian, w0.detach(), near)


class _Iterated(Factor):
    """Solves by GMRES; ``reached`` is the relative residual of the last system."""

    #: the relative residual of an update; more is not needed, since Newton's iteration and the adjoint repeat them
    exact = 1e-4
    reusable = False

    def __init__(self, krylov: Krylov, jacobian: Jacobian, w0: Tensor, near: Factor | None) -> None:
        self.krylov, self.jacobian, self.w0, self.near = krylov, jacobian, w0, near
        self.samples, self.shape, self.reached = jacobian.samples(), jacobian.shape, 0.0
        self.ritz = torch.zeros(1, 0, 0, dtype=torch.float64)
        self.why = f"krylov, {self.shape.numel() // self.samples} coupled elements without a narrow band"

    def least_eigenvalue(self) -> float:
        """See :class:`Factor`; an estimate from the basis."""
        found = torch.linalg.eigvals(self.ritz) if bool(torch.isfinite(self.ritz).all()) else self.ritz
        return float(found.real.min()) if found.numel() and self.near is None else math.inf

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        def apply(d: Tensor) -> Tensor:
            return d - (self.jacobian.vjp(self.w0 * d) if transposed else self.w0 * self.jacobian.jvp(d))

        def nearly(d: Tensor) -> Tensor:
            return d if self.near is None else self.near.solve(d, transposed)

        def product(rows: Tensor) -> Tensor:
            return apply(nearly(rows.view(self.shape))).reshape(rows.shape)

        rest, x, left = r.reshape(self.samples, -1), torch.zeros_like(r), math.inf
        size = rest.abs().amax(1)
        for _ in range(self.krylov.restarts):
            update, _, self.ritz = gmres(product, rest, self.exact, self.krylov.size)
            x = x + nearly(update.view(r.shape))
            rest = (r - apply(x)).reshape(self.samples, -1)
            before, left = left, float((rest.abs().amax(1) / torch.where(size > 0, size, 1.0)).max())
            if left <= self.exact or not left < 0.8 * before:  # or the products are not accurate enough for less
                break
        self.reached = left
        return x


_KRYLOV = Krylov()


class Plain(Factor):
    """Fixed-point iteration ``z ← c + w_0 f(z)``: the identity replaces ``I - w_0 J``; ``by`` is used if this fails."""

    def __init__(self, jacobian: Jacobian, by: Linear = _KRYLOV) -> None:
        self.samples, self.by = jacobian.samples(), by
        self.why = f"fixed-point, {jacobian.shape.numel() // self.samples} coupled elements without a narrow band"

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """See :class:`Factor`."""
        return r
