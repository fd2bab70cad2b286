"""Power series by their plain recurrences; the first axis counts the coefficients."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gamma(x: Tensor) -> Tensor:
    return torch.exp(torch.lgamma(x))


def power(m: int, a: Tensor) -> Tensor:
    """``m^a`` for a whole number, and 0 for m = 0."""
    return torch.exp(a * math.log(m)) if m else torch.zeros_like(a)


def grunwald(b: Tensor, count: int) -> Tensor:
    """``(1-ξ)^{-b}``: ``g_m = g_{m-1} (m-1+b)/m``."""
    found = [torch.ones_like(b)]
    for m in range(1, count):
        found.append(found[-1] * (m - 1 + b) / m)
    return torch.stack(found)


def bdf2(b: Tensor, count: int) -> Tensor:
    """``(3/2 - 2ξ + ξ²/2)^{-b}`` by J.C.P. Miller's recurrence (Henrici 1974, theorem 1.6c)."""
    found = [1.5**-b]
    for m in range(1, count):
        term = 4 / 3 * (m - 1 + b) * found[-1]
        if m > 1:
            term = term - (m - 2 + 2 * b) / 3 * found[-2]
        found.append(term / m)
    return torch.stack(found)


def fractional_trapezoid(b: Tensor, count: int) -> Tensor:
    """``F = [2(1-ξ)/(1+ξ)]^{-b}`` from ``(1-ξ²) F' = 2b F``."""
    found = [2.0**-b]
    for m in range(1, count):
        term = 2 * b * found[-1]
        if m > 1:
            term = term + (m - 2) * found[-2]
        found.append(term / m)
    return torch.stack(found)


def l1(b: Tensor, count: int) -> Tensor:
    """``(1-ξ) Σ a_i ξ^i`` with ``a_i = (i+1)^{1-b} - i^{1-b}``: what the L1 formula multiplies the states by."""
    a = torch.stack([power(i + 1, 1 - b) - power(i, 1 - b) for i in range(count)])
    return torch.cat([a[:1], a[1:] - a[:-1]])


def reciprocal(series: Tensor) -> Tensor:
    """``r`` with ``Σ_k s_k r_{m-k} = 0`` for m > 0 and ``s_0 r_0 = 1``."""
    found = [1 / series[0]]
    for m in range(1, series.shape[0]):
        known = torch.stack(found[::-1])
        found.append(-(series[1 : m + 1] * known).sum(0) / series[0])
    return torch.stack(found)
