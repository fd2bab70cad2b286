"""Integrals of decaying exponentials over the cells of a mesh."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cell_integrals(cells: tuple[str, ...], length: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """``p`` and ``q`` of cells of these lengths (m, 1) for the rule of each sum, (sums, m, K)."""
    x = length * rates
    whole = length * _mean(x)
    left = length * _mean_of_left(x) if "linear" in cells else whole
    none, linear = torch.zeros_like(whole), (left, whole - left)
    rules = {"linear": linear, "ahead": linear, "left": (whole, none), "right": (none, whole)}
    p, q = zip(*[rules[cell] for cell in cells], strict=True)
    return torch.stack(p), torch.stack(q)


def _mean(x: Tensor) -> Tensor:
    """``∫₀¹ e^{-xu} du``."""
    safe = torch.where(x > 0, x, 1.0)
    return torch.where(x > 0, -torch.expm1(-safe) / safe, 1.0)


def _mean_of_left(x: Tensor) -> Tensor:
    """``∫₀¹ u e^{-xu} du``: the share of a cell's left end, where u = 1; a series where that cancels."""
    small = x < 0.05
    near, safe = torch.zeros_like(x), torch.where(small, 1.0, x)
    for k in range(7, -1, -1):
        near = 1 / (math.factorial(k) * (k + 2)) - x * near
    return torch.where(small, near, (-torch.expm1(-safe) / safe - torch.exp(-safe)) / safe)
