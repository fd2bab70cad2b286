"""Integrals of decaying exponentials over the cells of a mesh."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cell_integrals(cells: tuple[str, ...], length: Tensor | float, rates: Tensor) -> tuple[Tensor, Tensor]:
    """``p`` and ``q`` of cells of these lengths (m, 1) for the rule of each sum, (sums, m, K); of one, (sums, K)."""
    mean, of_left = _means(length * rates)
    whole, left = length * mean, length * of_left
    none, linear = torch.zeros_like(whole), (left, whole - left)
    rules = {"linear": linear, "ahead": linear, "left": (whole, none), "right": (none, whole)}
    p, q = zip(*[rules[cell] for cell in cells], strict=True)
    return torch.stack(p), torch.stack(q)


def _means(x: Tensor) -> tuple[Tensor, Tensor]:
    """``m = ∫₀¹ e^{-xu} du`` and ``l = ∫₀¹ u e^{-xu} du``, the share of a cell's left end, where u = 1.

    By parts, ``m = e^{-x} + x l``; where that cancels, l is a series.
    """
    c, square = _SERIES, x * x
    near, *pairs = [torch.rsub(x, c[k], alpha=c[k + 1]) for k in range(len(c) - 2, -1, -2)]  # by two: fewer operations
    for pair in pairs:
        near = torch.addcmul(pair, near, square)
    down = -x.clamp(min=1e-300)  # m is 1 to rounding from here on
    mean = torch.expm1(down) / down
    return mean, torch.where(x < 0.05, near, (torch.exp(down) - mean) / down)


#: Those of l in powers of -x.
_SERIES = [1 / (math.factorial(k) * (k + 2)) for k in range(8)]
