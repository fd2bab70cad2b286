"""The backward pass of a block from the Jacobians of its samples, where these have few numbers.

``v̄ = c + Wᵀ μ``, ``μ = ā + Jᵀ v̄`` with a small matrix J for each sample and step: as many products as a sample has
numbers give all of them, for all steps at once, and the triangular system is solved row by row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...base.torch_private import vjp
from ...schemes.jacobian import irregular
from .block import BlockBackward


def by_samples(block: BlockBackward, m: int) -> tuple[Tensor, Tensor] | None:
    """What ``block.solve()`` gives, for explicit schemes and samples of ``m`` numbers; None if they see each other."""
    count, sums, width = block.count, block.sums, block.width
    far, weights = (x[0] for x in block.system())
    unit = torch.eye(m, dtype=far.dtype).repeat(1, width // m)
    columns = [_pulled(block, block.v, u.expand(count, width)) for u in unit]
    jacobians = torch.stack(columns, 2).view(count, sums, m, -1, m)  # ∂v_j/∂x_i: (count, sums, j, samples, i)
    u = irregular(far)
    terms = jacobians * u.view(count, 1, -1, m).transpose(2, 3).unsqueeze(-1)
    apart = (_pulled(block, block.v, u).view(count, sums, -1, m) - terms.sum(2)).abs()
    if not bool((apart <= 64 * torch.finfo(far.dtype).eps * terms.abs().sum(2)).all()):
        return None
    rows = _pulled(block, block.z, block.grad_z).view(count * sums, width)  # becomes μ
    bars = far.clone()
    for k in range(count):
        before = k * sums
        if k > 0:
            bars[k].addmv_(rows[:before].t(), weights[k, :before])
        own = jacobians[k] * bars[k].view(-1, m).t().unsqueeze(-1)
        rows[before : before + sums] += own.sum(1).view(sums, width)
    return rows.view(count, sums, 1, width), bars.view(block.v.shape)


def _pulled(block: BlockBackward, of: Tensor, by: Tensor) -> Tensor:
    """Products of the slopes or of the states with these gradients of them, (count, sums, width)."""
    empty = by.new_zeros(block.count, block.width)
    found = vjp((of,), (by.reshape(of.shape),), block.x, keep=True) if of.requires_grad else (None,) * block.sums
    return torch.stack([empty if g is None else g.reshape(empty.shape) for g in found], 1)
