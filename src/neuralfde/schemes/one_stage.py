"""The local map of every scheme with one history sum: ``z = c``, or solve ``z = c + w_0 f(t, z)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.torch_private import vjp
from .base import Pulled, Scheme, Slope
from .stage_solvers import NewtonKrylov, StageSolver

_NEWTON = NewtonKrylov()


@dataclass(frozen=True)
class OneStage(Scheme):
    """Schemes with one history sum: explicit (``z = c``) or implicit (``z = c + w_0 f(t, z)``)."""

    implicit: bool = False
    solver: StageSolver = _NEWTON
    stages = 1

    def locate(self, f: Slope, c: Tensor, w0: Tensor, where: str) -> Tensor:
        """See :class:`Scheme`."""
        return self.solver.solve(f, c, w0, c, where)

    def restore(self, c: Tensor, v: Tensor, w0: Tensor) -> Tensor:
        """See :class:`Scheme`."""
        return torch.addcmul(c, w0, v)

    def evaluate(self, f: Slope, x: Sequence[Tensor], w0: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        """See :class:`Scheme`."""
        z = x[0]
        return z, f(z) if slope else None

    def relax(self, sums: Tensor, slopes: Tensor, w0: Tensor) -> Tensor:
        """See :class:`Scheme`."""
        return torch.addcmul(sums, w0, slopes) if self.implicit else sums

    def pull(
        self,
        x: Sequence[Tensor],
        z: Tensor,
        v: Tensor | None,
        w0: Tensor,
        grad_z: Tensor | None,
        grad_v: Tensor | None,
        tensors: Sequence[Tensor],
        into: Sequence[Tensor],
    ) -> Pulled:
        """See :class:`Scheme`; implicit: ``(I - w_0 Jᵀ) μ = ḡ + Jᵀ v̄``, and parameters see ``v̄ + w_0 μ``."""
        if not self.implicit or v is None:
            return explicit_pull(x[0], v, grad_z, grad_v, tensors, into[0])
        if not v.requires_grad:  # a func of time alone: its slope still has the weight w_0
            put(into[0], None, grad_z)
            weighed = (into[0] * v).sum_to_size(w0.shape) if w0.requires_grad else None
            return Pulled(weighed, (None,) * len(tensors))

        def transposed(cotangent: Tensor) -> Tensor:
            (found,) = vjp((v,), (cotangent,), (x[0],), keep=True)
            return torch.zeros_like(cotangent) if found is None else found

        rhs = torch.zeros_like(z) if grad_v is None else transposed(grad_v)
        if grad_z is not None:
            rhs = rhs + grad_z
        own = w0.detach()
        mu = self.solver.solve_adjoint(transposed, rhs, own, "the backward pass")
        by = own * mu if grad_v is None else grad_v + own * mu
        found = vjp((v,), (by,), tuple(tensors)) if tensors else ()
        grad_local = (mu * v.detach()).sum_to_size(w0.shape) if w0.requires_grad else None
        into[0].copy_(mu)
        return Pulled(grad_local, found, by)


def put(slot: Tensor, grad: Tensor | None, more: Tensor | None) -> None:
    """``slot = grad + more``, where either may be missing and ``more`` may be ``slot`` itself."""
    if grad is not None and more is not None:
        slot.add_(grad) if slot.data_ptr() == more.data_ptr() else torch.add(grad, more, out=slot)
    elif grad is not None:
        slot.copy_(grad)
    elif more is None:
        slot.zero_()
    else:
        slot.copy_(more)


def explicit_pull(
    x: Tensor,
    v: Tensor | None,
    grad_z: Tensor | None,
    grad_v: Tensor | None,
    tensors: Sequence[Tensor],
    into: Tensor,
) -> Pulled:
    """The product for ``z = x``, ``v = f(x)``: ``ḡ + Jᵀ v̄``, one call of autograd and no graph for ``z``."""
    grad, found = None, (None,) * len(tensors)
    if v is not None and grad_v is not None and v.requires_grad:
        grad, *found = vjp((v,), (grad_v,), (x, *tensors))  # type: ignore[assignment]
    put(into, grad, grad_z)
    return Pulled(None, found, grad_v)
