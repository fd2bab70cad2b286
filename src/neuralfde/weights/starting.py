"""Starting weights, which make a convolution quadrature exact for the first powers of a solution (Lubich 1986)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..base.torch_private import value_of
from ..base.torch_transforms import solved
from ..special import series_product

#: Two exponents closer than this count as one; their Vandermonde matrix would be close to singular.
APART = 0.05


def starting_weights(weights: Tensor, order: Tensor) -> Tensor:
    """``s_{n,j}`` with ``Σ_j (w_{n-j} + s_{n,j}) j^γ = Γ(γ+1)/Γ(γ+β+1) n^{γ+β}`` for γ in {0, β, 2β, 1}, γ ≤ 1.

    ``weights`` are those of step size 1, (steps + 1, groups). The result is (starts, steps + 1, groups). Row ``n`` can
    use only the slopes 0 … n, so the first rows use the first ``n + 1`` exponents. Exponents within 0.05 of 1 are
    replaced by 1, so the weights are discontinuous where β or 2β passes 0.95.
    """
    result = torch.zeros(4, *weights.shape, dtype=torch.float64)
    values = order.detach()
    for chosen, powers, safe in (
        (2 * values <= 1 - APART, (0.0, 1.0, 2.0), 0.3),
        ((2 * values > 1 - APART) & (values <= 1 - APART), (0.0, 1.0), 0.7),
        (values > 1 - APART, (0.0,), 1.0),
    ):
        if not bool(value_of(chosen).any()):
            continue
        beta = torch.where(chosen, order, safe)
        exponents = torch.stack([p * beta for p in powers] + [torch.ones_like(beta)])
        found = _solve(torch.where(chosen, weights, 0.0), beta, exponents)
        padded = torch.nn.functional.pad(found, (0, 0, 0, 0, 0, 4 - found.shape[0]))
        result = torch.where(chosen, padded, result)
    return result


def _solve(weights: Tensor, beta: Tensor, exponents: Tensor) -> Tensor:
    """One small linear system for each row; (exponents, steps + 1, groups)."""
    count, rows = exponents.shape[0], weights.shape[0]
    n = torch.arange(rows, dtype=torch.float64)[:, None]
    log = torch.log(n.clamp(min=1))
    defects = []
    for gamma in exponents:
        power = torch.where(n > 0, torch.exp(gamma * log), (gamma == 0).to(torch.float64))
        gain = torch.exp(torch.lgamma(gamma + 1) - torch.lgamma(gamma + beta + 1))
        exact = torch.where(n > 0, gain * torch.exp((gamma + beta) * log), 0.0)
        defects.append(exact - series_product(weights, power))
    defect = torch.stack(defects).permute(2, 0, 1)  # (groups, exponents, rows)
    nodes = torch.arange(count, dtype=torch.float64)[:, None]
    vandermonde = torch.where(
        nodes > 0, torch.exp(exponents[:, None] * torch.log(nodes.clamp(min=1))), (exponents == 0)[:, None].double()
    ).permute(2, 0, 1)  # (groups, exponents, nodes)
    parts = [torch.zeros_like(defect[:, :, :1])]
    for row in range(1, min(count - 1, rows)):
        k = row + 1
        early = solved(vandermonde[:, :k, :k], defect[:, :k, row : row + 1])
        parts.append(torch.nn.functional.pad(early, (0, 0, 0, count - k)))
    if rows > max(count - 1, 1):
        parts.append(solved(vandermonde, defect[:, :, max(count - 1, 1) :]))
    return torch.cat(parts, dim=2)[..., :rows].permute(1, 2, 0)
