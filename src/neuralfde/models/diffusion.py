"""The right-hand side of graph diffusion as one operation, for one model or for several side by side.

With ``A`` the attention over edges, ``s`` a rate and ``b`` the strength of a source,

    f = s (A z - z) + b z_0
    f̄ given:   z̄ = s (Aᵀ f̄ - f̄)     s̄ = <Aᵀ f̄ - f̄, z>     Ā_e = s <f̄_i, z_j>     z̄_0 = b f̄     b̄ = <f̄, z_0>

Nothing of the state's size is kept for the backward pass but ``z`` itself, and each pass makes one such tensor. The
backward pass does not need ``f``, which is left out where only the derivative is wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from neuralfde.models import fused
from neuralfde.models.csr import Graph, sddmm, spmm
from neuralfde.rhs.field import unvalued, value_wanted


def diffuse(
    graph: Graph, weight: Tensor, z: Tensor, rate: Tensor, source: Tensor | None = None, strength: Tensor | None = None
) -> Tensor:
    """``rate (A z - z) + strength source``, see above.

    Args:
        graph: the edges; of ``S`` copies of one graph, copy by copy, where there are ``S`` models.
        weight: one weight per edge.
        z: the state.
        rate: of each model.
        source, strength: the source term, or neither.

    Shapes:
        weight ``(E,)``, z and source ``(N, F)``, rate and strength ``(S,)``, result ``(N, F)``.
    """
    return _Diffuse.apply(graph, weight, z, rate, source, strength)


class _Diffuse(torch.autograd.Function):
    # No setup_context: with one, torch reads the signature of forward at every call, for as long as a launch takes.
    @staticmethod
    def forward(
        ctx: Any, graph: Graph, weight: Tensor, z: Tensor, rate: Tensor, source: Tensor | None, strength: Tensor | None
    ) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(weight, z, rate, source, strength)
        if not value_wanted():
            return unvalued(z)
        if fused.usable(z, weight, rate, source, strength):
            return fused.diffuse(graph, weight, z, rate, source, strength)
        members, out = len(rate), spmm(graph, weight, z)
        each = out.view(members, -1)
        each.sub_(z.reshape(members, -1)).mul_(rate[:, None])
        if source is not None and strength is not None:
            each.addcmul_(strength[:, None], source.reshape(members, -1))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, z, rate, source, strength = ctx.saved_tensors
        _, for_weight, for_z, for_rate, for_source, for_strength = ctx.needs_input_grad
        grad, members = grad.contiguous(), len(rate)
        grad_z = grad_rate = grad_weight = grad_source = grad_strength = None
        if for_source:
            grad_source = (grad.view(members, -1) * strength[:, None]).view_as(grad)
        if for_strength:
            grad_strength = _dots(grad, source, members)
        if (for_z or for_rate) and fused.usable(z, weight, rate, grad):
            grad_z, grad_rate, grad_weight = fused.diffuse_back(ctx.graph, weight, z, rate, grad, for_weight)
            return None, grad_weight, grad_z, grad_rate, grad_source, grad_strength
        if for_z or for_rate:
            grad_z = spmm(ctx.graph, weight, grad, transposed=True).sub_(grad)
            grad_rate = _dots(grad_z, z, members) if for_rate else None
            grad_z.view(members, -1).mul_(rate[:, None])
        if for_weight:
            grad_weight = sddmm(ctx.graph, grad, z).to(weight.dtype)
            grad_weight.view(members, -1).mul_(rate[:, None])
        return None, grad_weight, grad_z, grad_rate, grad_source, grad_strength


def _dots(a: Tensor, b: Tensor, members: int) -> Tensor:
    """Inner product of each model's part; of one model without a product of the state's size."""
    if members == 1:
        return torch.dot(a.reshape(-1), b.reshape(-1))[None]
    return (a * b).view(members, -1).sum(1)
