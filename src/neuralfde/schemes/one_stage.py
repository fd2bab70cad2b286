"""Schemes with one history sum: their common local map, and the simplest ones, product rectangle rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.torch_private import vjp
from ..weights import uniform
from ..weights.kernel import Kernel
from .base import Pulled, Scheme, Slope
from .jacobian import Jacobian
from .newton import Newton
from .stage_solvers import Stages, StageSolver

_NEWTON = Newton()


@dataclass(frozen=True)
class OneStage(Scheme):
    """Schemes with one history sum: explicit (``z = c``) or implicit (``z = c + w_0 f(t, z)``)."""

    implicit: bool = False
    solver: StageSolver = _NEWTON
    stages = 1

    def open_stages(self) -> Stages | None:
        """See :class:`Scheme`."""
        return self.solver.open() if self.implicit else None

    def locate(
        self, f: Slope, c: Tensor, w0: Tensor, before: Tensor, stages: Stages | None, where: str
    ) -> tuple[Tensor, Tensor]:
        """See :class:`Scheme`."""
        assert stages is not None
        return stages.solve(f, c, w0, before, where)

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
        stages: Stages | None = None,
    ) -> Pulled:
        """See :class:`Scheme`; implicit: ``(I - w_0 Jᵀ) μ = ḡ + Jᵀ v̄``; the gradient of the slope is ``v̄ + w_0 μ``."""
        if not self.implicit or v is None:
            return explicit_pull(x[0], v, grad_z, grad_v, tensors, into[0])
        if not v.requires_grad:  # func depends on time alone; its slope still has the weight w_0
            put(into[0], None, grad_z)
            local = (into[0] * v).sum_to_size(w0.shape) if w0.requires_grad else None
            return Pulled(local, (None,) * len(tensors))

        own = w0.detach()

        def weighed(mu: Tensor) -> Tensor:  # the gradient of the slope
            return own * mu if grad_v is None else torch.addcmul(grad_v, own, mu)

        def once(mu: Tensor) -> Tensor:
            (found,) = vjp((v,), (weighed(mu),), (x[0],), keep=True)
            found = torch.zeros_like(mu) if found is None else found
            return found if grad_z is None else found + grad_z

        assert stages is not None
        mu = stages.solve_adjoint(Jacobian(None, x[0], v), once, own, "the backward pass")
        found = vjp((v,), (weighed(mu),), tuple(tensors)) if tensors else ()
        grad_local = (mu * v.detach()).sum_to_size(w0.shape) if w0.requires_grad else None
        into[0].copy_(mu)
        return Pulled(grad_local, found)


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
    """The vector-Jacobian product ``ḡ + Jᵀ v̄`` of ``z = x``, ``v = f(x)``, with one call of autograd."""
    grad, found = None, (None,) * len(tensors)
    if v is not None and grad_v is not None and v.requires_grad:
        grad, *found = vjp((v,), (grad_v,), (x, *tensors))  # type: ignore[assignment]
    put(into, grad, grad_z)
    return Pulled(None, found)


@dataclass(frozen=True)
class Predictor(OneStage):
    """The product rectangle rule: the slope is constant on each cell (Diethelm, Ford and Freed 2004).

    ``z_n = z_0 + h^β/Γ(β+1) Σ_{j<n} [(n-j)^β - (n-1-j)^β] v_j``; with ``implicit=True`` each cell has the slope at its
    right end. Order 1; at β = 1 the explicit or the implicit Euler method.
    """

    max_order = 2.0

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        if self.implicit:
            w = uniform.rectangle(order, step, steps + 1)[1:]
            return Kernel(w[None], w[0], first=1, dense=_cells(order, step, steps, shift=1))
        return Kernel(
            uniform.rectangle(order, step, steps)[None], torch.zeros_like(order), dense=_cells(order, step, steps, 0)
        )

    @property
    def cells(self) -> tuple[str, ...]:  # type: ignore[override]
        """See :class:`Scheme`."""
        return ("right",) if self.implicit else ("left",)

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 1.0


def _cells(order: Tensor, step: float | Tensor, steps: int, shift: int):  # type: ignore[no-untyped-def]
    """Weights of the slopes at positions between grid points: all cells up to the position, the last one in part."""

    def rows(positions: Tensor) -> Tensor:
        power = uniform.powers_of_lags(positions, range(-shift, steps + 2 - shift), order)
        weights = uniform.scale(order, step, 1.0) * (power[:, :-1] - power[:, 1:])
        return torch.nn.functional.pad(weights[:, shift:], (0, 0, shift, 0))  # v_0 is at the right end of no cell

    return rows
