"""The Caputo derivative of sampled data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralfde.operators._common import (
    apply,
    convolve,
    derivative_at,
    indices,
    sampled_derivative,
    samples_needed,
)
from neuralfde.special import binomial_remainder


def caputo_derivative(values: Tensor, order: float | Tensor, step: float, side: str = "left") -> Tensor:
    """The Caputo derivative of order α > 0 at every sample, with m = ⌈α⌉.

        left:   D^α f(t) = 1/Γ(m-α) ∫_0^t (t-s)^{m-α-1} f^{(m)}(s) ds
        right:  D^α f(t) = (-1)^m/Γ(m-α) ∫_t^T (s-t)^{m-α-1} f^{(m)}(s) ds

    and ±f^{(m)} at α = m. ``values`` holds f(0), f(h), …, f(T) along its first axis (at least m + 2 samples); other
    axes are a batch. ``order`` is a number or a tensor that broadcasts to one sample; gradients flow to both.

    For α ≤ 1 the interpolant (linear on the first cell, then quadratic through the last three samples) is
    differentiated exactly: the L1-2 formula of Gao, Sun and Zhang (J. Comput. Phys. 259, 2014), error O(h^{3-α}) for
    smooth f; it looks only backwards. For α > 1 the same rule of order γ = α - m + 1 acts on f^{(m-1)}, sampled with
    finite differences of error O(h³) that look at most ⌈m/2⌉ samples ahead: error O(h^{3-γ}). At α = 1 the rule is
    the backward difference of order 2 (of order 1 at the second sample).

    At the first sample (left; the last one for right) the integral is over an empty interval and 0 is returned, except
    at integer α, where it is the one-sided difference for ±f^{(m)}.
    """
    return apply(caputo_rule, values, order, step, side, least=samples_needed(order, extra=2))


def caputo_rule(values: Tensor, order: Tensor, step: float) -> Tensor:
    """The left derivative; orders with different ⌈α⌉ are computed separately and combined."""
    ceilings = torch.ceil(order.detach())
    total: Tensor | None = None
    for m in sorted({int(c) for c in ceilings.flatten().tolist()}):
        here = ceilings == m
        part = _single_ceiling(values, torch.where(here, order, m - 0.5), m, step)
        total = part if total is None else torch.where(here, part, total)
    assert total is not None
    return total


def _single_ceiling(values: Tensor, order: Tensor, m: int, step: float) -> Tensor:
    base = sampled_derivative(values, m - 1, step)
    order = order - (m - 1)
    first = torch.where(order == 1.0, derivative_at(values, m, step, 0), torch.zeros_like(values[0]))
    return torch.cat([first[None], _l1_2(base, order, step)])


def _l1_2(values: Tensor, order: Tensor, step: float) -> Tensor:
    """h^{-γ}/Γ(2-γ) [ Σ_j a_{n-j} ∇f_j + Σ_{j≥2} b_{n-j} ∇²f_j ] for n ≥ 1 and 0 < γ ≤ 1."""
    count = values.shape[0] - 1
    linear, quadratic = _l1_2_weights(order, count)
    slopes = values[1:] - values[:-1]
    bends = torch.cat([torch.zeros_like(slopes[:1]), slopes[1:] - slopes[:-1]])
    scale = torch.exp(-order * math.log(step) - torch.lgamma(2.0 - order))
    return scale * (convolve(linear, slopes) + convolve(quadratic, bends))


def _l1_2_weights(order: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """a_i = (i+1)^{1-γ} - i^{1-γ} and b_i = [(i+1)^{2-γ} - i^{2-γ}]/(2-γ) - [(i+1)^{1-γ} + i^{1-γ}]/2."""
    i = indices(1, count, order)
    x = 1.0 / i
    power = 2.0 - order
    # As series in x = 1/i the two parts of b_i have the same first terms; both are summed without them.
    remainder = binomial_remainder(power, x, 3) / power - 0.5 * x * binomial_remainder(power - 1.0, x, 2)
    linear = torch.pow(i, power - 1.0) * torch.expm1((power - 1.0) * torch.log1p(x))
    quadratic = torch.pow(i, power) * remainder
    one = torch.ones((1, *order.shape), dtype=torch.float64, device=order.device)
    return torch.cat([one, linear]), torch.cat([one * (1.0 / power - 0.5), quadratic])
