"""Lubich's starting weights (1986, section 4): one small Vandermonde system for each row."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .series import gamma, power


def exponents(b: Tensor) -> list[Tensor]:
    """0, β, 2β and 1, as far as they stay 0.05 below the last one."""
    zero, one = torch.zeros_like(b), torch.ones_like(b)
    return [zero, *[k * b for k in (1, 2) if float(k * b.detach()) <= 0.95], one]


def starting(b: Tensor, matrix: Tensor) -> Tensor:
    """``s_{n,j}``, shaped like ``matrix``, the convolution with step 1; orders (1 or steps + 1, ...), one for each row.

    Row ``n`` integrates ``s^γ`` exactly for as many exponents as it has slopes.
    """
    rows = matrix.shape[0]
    groups = list(itertools.product(*map(range, matrix.shape[2:])))
    found = []
    for group in groups:
        column, orders = matrix[(slice(None), slice(None), *group)], b[(slice(None), *group)]
        known = [_powers(order, rows) for order in orders]
        lines = [_row(orders[n % len(orders)], *known[n % len(known)], column[n], n) for n in range(1, rows)]
        found.append(torch.stack([torch.zeros(rows, dtype=b.dtype), *lines]))
    return torch.stack(found, -1).reshape(matrix.shape)


def _powers(b: Tensor, rows: int) -> tuple[list[Tensor], list[Tensor]]:
    """The exponents γ, and ``j^γ`` for j = 0 … rows - 1 of each."""
    gammas = exponents(b)
    logs = torch.log(torch.arange(1, rows, dtype=b.dtype))
    return gammas, [torch.cat([(g == 0).to(b)[None], torch.exp(g * logs)]) for g in gammas]


def _row(b: Tensor, gammas: list[Tensor], powers: list[Tensor], weights: Tensor, n: int) -> Tensor:
    """``Σ_j s_j j^γ = Γ(γ+1)/Γ(γ+β+1) n^{γ+β} - Σ_j w_{n-j} j^γ``."""
    count = min(len(gammas), n + 1)
    defects = [
        gamma(g + 1) / gamma(g + b + 1) * power(n, g + b) - weights[: n + 1] @ p[: n + 1]
        for g, p in zip(gammas[:count], powers, strict=False)
    ]
    vandermonde = torch.stack([p[:count] for p in powers[:count]])
    s = torch.linalg.solve(vandermonde, torch.stack(defects))
    return torch.cat([s, torch.zeros(weights.shape[0] - count, dtype=b.dtype)])
