"""From the last state to logits: relu, dropout and a linear map as one operation.

    h = dropout(relu(z)),   y = W h + c
    ȳ given:   h̄ = Wᵀ ȳ    z̄ = h̄ where h > 0, divided by the chance to be kept; 0 elsewhere

What is negative or dropped is zero in ``h``, so that ``h`` alone tells the derivative: no mask is kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def readout(z: Tensor, weight: Tensor, c: Tensor, dropout: float = 0.0) -> Tensor:
    """``W dropout(relu(z)) + c``, see above.

    Shapes:
        z ``(N, F)``, weight ``(classes, F)``, ``c`` ``(classes,)`` or, from other columns, as the result,
        ``(N, classes)``.
    """
    if torch.is_autocast_enabled(z.device.type) or dropout >= 1.0:
        h = F.dropout(F.relu(z), dropout)
        return F.linear(h, weight, c) if c.dim() == 1 else c + F.linear(h, weight)
    return _Readout.apply(z, weight, c, dropout)


class _Readout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, c: Tensor, dropout: float) -> Tensor:
        h = F.relu(z)
        if dropout:
            h.mul_(torch.empty_like(h, dtype=torch.bool).bernoulli_(1 - dropout)).div_(1 - dropout)
        ctx.dropout, ctx.alike = dropout, c.dim() > 1
        ctx.save_for_backward(h, weight)
        return torch.addmm(c, h, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        grad_z = (grad @ weight).mul_(h > 0)
        if ctx.dropout:
            grad_z.div_(1 - ctx.dropout)
        return grad_z, grad.t() @ h, grad if ctx.alike else grad.sum(0), None
