"""The local map of every implicit scheme: solve ``z = c + w_0 f(t, z)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Cotangents, Scheme, Slope, explicit_pull
from .krylov import NewtonKrylov, StageSolver

_NEWTON = NewtonKrylov()


@dataclass(frozen=True)
class OneStage(Scheme):
    """Schemes with one history sum: explicit (``z = c``) or implicit (``z = c + w_0 f(t, z)``)."""

    implicit: bool = False
    solver: StageSolver = _NEWTON
    stages = 1

    def locate(self, field: Slope, n: int, c: Tensor, local: Tensor) -> Tensor:
        """See :class:`Scheme`."""
        if not self.implicit or n == 0:
            return c
        w0 = local[:, None]
        return self.solver.solve(lambda z: field(n, z[0])[None], c, w0, c, f"step {n}")

    def restore(self, c: Tensor, v: Tensor, local: Tensor) -> Tensor:
        """See :class:`Scheme`."""
        return c + local[:, None] * v if self.implicit else c

    def evaluate(
        self, field: Slope, n: int, x: Tensor, local: Tensor, slope: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """See :class:`Scheme`."""
        z = x[0]
        return z, field(n, z) if slope else None

    def relax(self, sums: Tensor, slopes: Tensor, local: Tensor) -> Tensor:
        """See :class:`Scheme`."""
        return torch.addcmul(sums, local, slopes) if self.implicit else sums

    def pull(
        self,
        n: int,
        x: Tensor,
        z: Tensor,
        v: Tensor | None,
        local: Tensor,
        grad_z: Tensor | None,
        grad_v: Tensor | None,
        tensors: Sequence[Tensor],
    ) -> Cotangents:
        """See :class:`Scheme`; implicit: ``(I - w_0 Jᵀ) μ = ḡ + Jᵀ v̄``, and parameters see ``v̄ + w_0 μ``."""
        if not self.implicit or n == 0 or v is None or not v.requires_grad:
            return explicit_pull(x, v, grad_z, grad_v, tensors)

        def vjp(cotangent: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(v, x, cotangent[0], retain_graph=True, allow_unused=True)
            return torch.zeros_like(x) if found is None else found

        rhs = torch.zeros_like(x) if grad_v is None else vjp(grad_v[None])
        if grad_z is not None:
            rhs = rhs + grad_z
        w0 = local.detach()[:, None]
        mu = self.solver.solve_adjoint(vjp, rhs, w0, f"step {n}")
        cotangent = w0 * mu[0] if grad_v is None else grad_v + w0 * mu[0]
        found = torch.autograd.grad(v, tensors, cotangent, allow_unused=True) if tensors else ()
        grad_local = (mu[0] * v.detach()).sum(-1) if local.requires_grad else None
        return Cotangents(mu, grad_local, tuple(found))
