"""The solution of linear graph diffusion as a sum of powers of attention: no row of the past, no sum over it.

Where ``A`` does not change, the rectangle rule of the method ``predictor`` gives a polynomial in it:

    D^β z = s (A z - z) + b z_0,   z_n = z_0 + Σ_{j<n} w_{n-j} (s (A z_j - z_j) + b z_0) = Σ_k c_{n,k} A^k z_0

    w_i = h^β (i^β - (i-1)^β) / Γ(β+1),   (I + s W) c_{·,0} = 1 + b W 1,   (I + s W) c_{·,k} = s W c_{·,k-1}

with ``W`` the matrix of the weights. Backwards, with ``v_k = A^k z_0`` and ``c_k`` those of the last step,

    r_N = c_N g,   r_k = Aᵀ r_{k+1} + c_k g,   z̄_0 = r_0,   Ā_e = Σ_k <r_{k+1, i}, v_{k, j}>,   c̄_k = <g, v_k>

About every √N-th power is kept and the others are computed again, so that memory grows with √N and not with N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from neuralfde.base.policy import POWERS_SUM
from neuralfde.errors import InputError
from neuralfde.models import fused
from neuralfde.models.csr import Graph, sddmm, spmm


def coefficients(rate: Tensor, strength: Tensor | None, t: float, step: float, order: Tensor, check: bool) -> Tensor:
    """``c_0 … c_N``, differentiable in the rate ``s``, the strength ``b`` of the source and the order β."""
    lags = torch.arange(round(t / step) + 1, dtype=torch.float64, device=rate.device)
    order, rate = order.to(lags), rate.double()
    powers = lags**order * (step**order / torch.exp(torch.lgamma(order + 1)))
    weights = torch.cat([torch.zeros_like(lags[:1]), powers.diff()])
    matrix = weights[(lags[:, None] - lags).clamp(min=0).long()]  # strictly lower
    start = torch.ones_like(matrix[:, :1])
    start = start if strength is None else start + strength.double() * matrix.sum(1, keepdim=True)
    system = rate * matrix + torch.diag(torch.ones_like(lags))
    right = torch.cat([start, rate * matrix], 1)
    column, matrix = torch.linalg.solve_triangular(system, right, upper=False).split([1, len(lags)], 1)
    columns = [column]
    while len(columns) < len(lags):
        columns.append(matrix @ columns[-1])
    found = torch.cat(columns, 1)[-1]
    if check and not float(found.detach().abs().sum()) <= POWERS_SUM:
        raise InputError(
            f"step={step:g} is too long for an explicit scheme: nodes that differ from all their "
            "neighbours would oscillate more and more, and powers of attention would cancel. Use a shorter step, or "
            "leave out powers=True."
        )
    return found


def sum_of_powers(graph: Graph, weight: Tensor, z: Tensor, c: Tensor) -> Tensor:
    """``Σ_k c_k A^k z`` with the attention ``weight`` ``(E,)``, ``z`` ``(N, F)`` and ``c`` ``(K + 1,)``."""
    return _Powers.apply(graph, weight, z, c.to(z.dtype))  # type: ignore[no-any-return]


class _Powers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, weight: Tensor, z: Tensor, c: Tensor) -> Tensor:
        every = max(1, math.isqrt(len(c) - 1) - 1)
        out, power, kept = z * c[0], z, []
        for k in range(1, len(c)):
            power = times(graph, weight, power)
            out.addcmul_(power, c[k])
            if k % every == 0:
                kept.append(power)
        ctx.graph, ctx.every = graph, every
        ctx.save_for_backward(weight, c, z, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, c, *kept = ctx.saved_tensors
        grad, dots, grad_weight = grad.contiguous(), [], torch.zeros_like(weight)
        back = torch.zeros_like(grad)  # r_{k+1}
        for k, power in _descending(ctx.graph, weight, kept, len(c), ctx.every):
            dots.append(torch.dot(grad.view(-1), power.view(-1)))
            if k < len(c) - 1:
                back = times_back(ctx.graph, weight, power, back, grad_weight)
            back.addcmul_(grad, c[k])
        return None, grad_weight, back, torch.stack(dots[::-1])


def _descending(
    graph: Graph, weight: Tensor, kept: list[Tensor], count: int, every: int
) -> Iterator[tuple[int, Tensor]]:
    """``A^k z`` for k = count-1 … 0, from those kept; each is let go of once it was used."""
    for first in reversed(range(0, count, every)):
        part = [kept.pop()]
        while len(part) < min(every, count - first):
            part.append(times(graph, weight, part[-1]))
        while part:
            yield first + len(part) - 1, part.pop()


def times(graph: Graph, weight: Tensor, z: Tensor) -> Tensor:
    """``A z``."""
    if fused.usable(z, weight):
        one = z.new_ones(1)
        return fused.diffuse(graph, weight, z, one, z, one)  # A z - z + z
    return spmm(graph, weight, z)


def times_back(graph: Graph, weight: Tensor, z: Tensor, grad: Tensor, total: Tensor) -> Tensor:
    """``Aᵀ g`` for the gradient ``g`` of ``A z``; that of the attention is added to ``total``."""
    if not fused.usable(z, weight, grad):
        total += sddmm(graph, grad, z)
        return spmm(graph, weight, grad, transposed=True)
    back, _, own = fused.diffuse_back(graph, weight, z, z.new_ones(1), grad, True)
    assert own is not None
    total += own
    return back.add_(grad)
