"""Integrals of decaying exponentials over the cells of a mesh."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cell_integrals(cells: tuple[str, ...], length: Tensor | float, rates: Tensor) -> tuple[Tensor, Tensor]:
    """``p`` and ``q`` in ``∫ e^{-s (right - τ)} v(τ) dτ = p v(left) + q v(right)`` over a cell, by each sum's rule: for
    K rates s and lengths (m, 1) both are (sums, m, K), and for a single length (sums, K)."""
    mean, of_left = _means(length * rates)
    whole, left = length * mean, length * of_left
    none, linear = torch.zeros_like(whole), (left, whole - left)
    rules = {"linear": linear, "ahead": linear, "left": (whole, none), "right": (none, whole)}
    p, q = zip(*[rules[cell] for cell in cells], strict=True)
    return torch.stack(p), torch.stack(q)


def _means(x: Tensor) -> tuple[Tensor, Tensor]:
    """``m = ∫₀¹ e^{-xu} du`` and ``l = ∫₀¹ u e^{-xu} du``; u = 1 is the left end of a cell, so l is its share.

    Integration by parts gives ``m = e^{-x} + x l``; for small x, where this cancels, l is a power series.
    """
    c, square = _SERIES, x * x
    near, *pairs = [torch.rsub(x, c[k], alpha=c[k + 1]) for k in range(len(c) - 2, -1, -2)]  # two at a time is faster
    for pair in pairs:
        near = torch.addcmul(pair, near, square)
    down = -x.clamp(min=1e-300)  # no division by zero; m is 1 to rounding there
    mean = torch.expm1(down) / down
    return mean, torch.where(x < 0.05, near, (torch.exp(down) - mean) / down)


#: The coefficients of l in powers of -x.
_SERIES = [1 / (math.factorial(k) * (k + 2)) for k in range(8)]
