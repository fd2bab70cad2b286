"""Linear equations without steps by Arnoldi's method, if products with ``A`` are cheap.

``z(t) = z_0 + Re Σ_k g_k (q_k - A)⁻¹ r`` with ``r = A z_0 + b`` is a sum over points ``q_k = s_k^β`` of a contour. All
these systems have the same right-hand side, and so they share one Arnoldi basis: ``(q_k - A)⁻¹ r ≈ V (q_k - H)⁻¹ e_1
|r|``, with a known residual. Gradients need a second basis, for ``Aᵀ`` and the gradient of the states (Kandolf,
Koskela, Relton and Schweitzer 2021).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..base.policy import ARNOLDI_LOOK, ARNOLDI_VECTORS
from ..errors import ConvergenceError
from ..schemes.krylov import arnoldi_step
from ..schemes.sparse_systems import SparseMatrix
from .sparse import Sparse


class TooManyVectors(ConvergenceError):
    """The basis would need more vectors than are allowed."""


def by_arnoldi(part: Sparse, q: Tensor, gains: Tensor, r: Tensor, tolerance: float) -> Tensor:
    """``Re Σ_k gains[i, k] (q_k - A)⁻¹ r`` for each ``i``, to a tolerance relative to the largest."""
    return _Sum.apply(part, tolerance, q, gains, r, *part.tensors)  # type: ignore[no-untyped-call, no-any-return]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Sparse, tolerance: float, q: Tensor, gains: Tensor, r: Tensor, values: Tensor
    ) -> Tensor:
        basis, x = _solved(replace(part.matrix, values=values), r, q, gains, tolerance)
        ctx.part, ctx.tolerance = part, tolerance
        ctx.save_for_backward(q, gains, r, values, basis, x)
        return _combined(basis, x, gains).view(len(gains), *r.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, gains, r, values, basis, x = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative may follow
            inputs = q, r, values = [x.view_as(x) for x in (q, r, values)]  # views, since r depends on values
            y = by_systems(ctx.part.with_tensors([values]), q, gains, r)
            followed = [x for x in inputs if x.requires_grad]
            found = iter(torch.autograd.grad(y, followed, grad, create_graph=True))
            grads = [next(found) if x.requires_grad else None for x in inputs]
            return None, None, grads[0], None, *grads[1:]
        transposed = replace(ctx.part.matrix, values=values).transposed
        grad_q, grad_r, grad_values = torch.zeros_like(q), torch.zeros_like(r), torch.zeros_like(values)
        for one, gain in zip(grad, gains, strict=True):
            other, y = _solved(transposed, one, q, gain[None], ctx.tolerance)
            grad_r += _combined(other, y, gain[None]).view(r.shape)
            links = torch.einsum("sam,sbm->sab", other, basis)
            grad_q -= (gain * torch.einsum("ska,sab,skb->k", y, links.to(y.dtype), x)).conj()
            pairs = torch.einsum("k,ska,skb->sab", gain, y, x).real
            by = torch.einsum("sab,sam->sbm", pairs, other)  # the gradient of A's product with each vector
            for rows, products in zip(basis.unbind(1), by.unbind(1), strict=True):
                entries = products[:, transposed.columns] * rows[:, transposed.rows]
                grad_values += entries.view(*r.shape[:-1], -1).sum_to_size(values.shape)
        return None, None, grad_q, None, grad_r, grad_values


def by_systems(part: Sparse, q: Tensor, gains: Tensor, r: Tensor) -> Tensor:
    """The same sum from factorised systems."""
    systems, wide = part.systems(), r.to(q.dtype)
    found = torch.stack([systems.solve(1 / x, wide) / x for x in q.unbind(0)])
    return torch.tensordot(gains, found, 1).real


def _combined(basis: Tensor, x: Tensor, gains: Tensor) -> Tensor:
    return torch.einsum("tk,skb,sbm->tsm", gains, x, basis.to(x.dtype)).real


def _solved(matrix: SparseMatrix, r: Tensor, q: Tensor, gains: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """An orthonormal basis (samples, vectors, n), and ``(q_k - A)⁻¹ r`` in it, (samples, nodes, vectors)."""
    rows = r.reshape(-1, matrix.n)
    norm = rows.norm(dim=1, keepdim=True)
    size, hard = ARNOLDI_VECTORS, int(q.abs().argmin())
    hessenberg = torch.zeros(len(rows), size + 1, size, dtype=rows.dtype, device=rows.device)
    held = torch.stack([rows / torch.where(norm > 0, norm, 1.0)], 1)
    for k in range(min(size, matrix.n)):
        basis = held[:, : k + 1]
        new = arnoldi_step(basis, matrix.matvec(basis[:, k].view(r.shape)).reshape(rows.shape), hessenberg)
        length, last = hessenberg[:, k + 1, k], k + 1 == matrix.n
        if last or (k + 1) % ARNOLDI_LOOK == 0:
            for some in ([hard], list(range(len(q)))):  # all of them only once the hardest is solved
                x = _small(hessenberg[:, : k + 1, : k + 1], q[some], norm)
                off = (gains[:, some].abs() * (length[:, None] * x[..., -1].abs() / q[some].abs())[:, None]).sum(-1)
                size_of = torch.einsum("tk,skb->stb", gains[:, some], x).real.norm(dim=-1)
                if not last and float((off.amax(1) - tolerance * size_of.amax(1)).max()) > 0:
                    break
            else:
                return basis, x
        held = held if k + 1 < held.shape[1] else torch.cat([held, torch.zeros_like(held)], 1)
        held[:, k + 1] = new
    raise TooManyVectors(
        f"the solution without steps takes more than {size} vectors: A t^β is too large. Give steps= or rtol=."
    )


def _small(h: Tensor, q: Tensor, norm: Tensor) -> Tensor:
    """``(q_k - H)⁻¹ e_1 |r|``, (samples, nodes, vectors)."""
    one = torch.eye(h.shape[-1], dtype=q.dtype, device=h.device)
    right = one[0] * norm[..., None]
    return torch.linalg.solve(q[:, None, None] * one - h[:, None], right.expand(len(h), len(q), -1))
