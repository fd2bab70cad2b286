"""The weights of every scheme on a uniform grid, as differentiable functions of the order.

All schemes are one equation (``v_j = f(t_j, z_j)``)::

    c_n = base_n + Σ_{j<n} w_{n-j} v_j + Σ_{j<k} s_{n,j} v_j,      z_n = local(t_n, c_n)

so a scheme is a :class:`~neuralfde.weights.kernel.Kernel`: the weights ``w``, ``s`` and the weight ``w_0`` of the local
stage. Everything is computed in float64, whatever the dtype of the state, by formulas without cancellation. Orders are
tensors of shape (groups,): the elements of a group share one order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..special import binomial_series, l1_weights
from ..special.powers import running_product

# From this lag on, differences of powers are summed as a series in 1/m, which has no cancellation.
_SERIES_FROM = 2
_SERIES_TERMS = 26


def scale(order: Tensor, step: float | Tensor, shift: float) -> Tensor:
    """``h^β / Γ(β + shift)``, shape (groups,)."""
    return torch.exp(order * log(step) - torch.lgamma(order + shift))


def log(step: float | Tensor) -> Tensor:
    """``log h`` in float64, for one step size or one per group."""
    return torch.log(torch.as_tensor(step, dtype=torch.float64))


def rectangle(order: Tensor, step: float | Tensor, steps: int) -> Tensor:
    """Product rectangle rule: ``h^β/Γ(β+1) · [m^β - (m-1)^β]``, row 0 is zero (Diethelm, Ford and Freed 2004)."""
    return scale(order, step, 1.0) * torch.cat([torch.zeros_like(order)[None], backward_difference(order, steps)])


def trapezoid(order: Tensor, step: float | Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Product trapezoid rule (Diethelm, Ford and Freed 2004): lag weights ``w`` and the correction ``s`` of ``v_0``.

    ``w_0 = c``, ``w_m = c·[(m+1)^{β+1} - 2 m^{β+1} + (m-1)^{β+1}]`` with ``c = h^β/Γ(β+2)``; the rule gives ``v_0``
    the weight ``c·[(n-1)^{β+1} - (n-1-β) n^β]`` in row ``n``, and ``s_n`` is that minus ``w_n``.
    """
    c = scale(order, step, 2.0)
    one = torch.ones_like(order)[None]
    power = order + 1
    w = torch.cat([one, second_difference(power, steps)])
    # (n-1)^a - (n-1-β)n^β - w_n  =  n^a·[a/n - ((1 + 1/n)^a - 1)]
    s = torch.cat([-one, -forward_remainder(power, steps)])
    return c * w, c * s


def grunwald_letnikov(order: Tensor, step: float | Tensor, steps: int) -> Tensor:
    """Coefficients of ``h^β (1-ξ)^{-β}``: ``g_0 = 1``, ``g_m = g_{m-1} (m-1+β)/m``."""
    return torch.exp(order * log(step)) * binomial_series(order, steps + 1)


def l1(order: Tensor, step: float | Tensor, steps: int) -> Tensor:
    """``h^β Γ(2-β)`` times the coefficients of ``1/δ(ξ)``, ``δ = (1-ξ) Σ [(i+1)^{1-β} - i^{1-β}] ξ^i``.

    Solving the L1 recurrence for the new value turns it into a convolution of the slopes.
    """
    return torch.exp(order * log(step) + torch.lgamma(2 - order)) * l1_weights(order, steps + 1)


def backward_difference(power: Tensor, count: int) -> Tensor:
    """``m^a - (m-1)^a`` for m = 1 … count, shape (count, groups); the first is 1 for every a."""
    m = torch.arange(2, count + 1, dtype=torch.float64)[:, None]
    rest = -(m**power) * torch.expm1(power * torch.log1p(-1 / m))
    return torch.cat([torch.ones_like(power)[None], rest])


def second_difference(power: Tensor, count: int) -> Tensor:
    """``(m+1)^a - 2 m^a + (m-1)^a`` for m = 1 … count; at m = 1 the last term is 0."""
    m = torch.arange(1, count + 1, dtype=torch.float64)[:, None]
    few = m[: _SERIES_FROM - 1]
    head = (few + 1) ** power - 2 * few**power + power_or_zero(few - 1, power)
    return torch.cat([head, 2 * _binomial_tail(m[_SERIES_FROM - 1 :], power, range(2, 2 * _SERIES_TERMS + 1, 2))])


def forward_remainder(power: Tensor, count: int) -> Tensor:
    """``(n+1)^a - n^a - a n^{a-1}`` for n = 1 … count."""
    n = torch.arange(1, count + 1, dtype=torch.float64)[:, None]
    few = n[: _SERIES_FROM - 1]
    head = (few + 1) ** power - few**power - power * few ** (power - 1)
    return torch.cat([head, _binomial_tail(n[_SERIES_FROM - 1 :], power, range(2, 2 * _SERIES_TERMS + 1))])


def power_or_zero(base: Tensor, power: Tensor) -> Tensor:
    """``base^a``, and 0 for base = 0 even at a = 0; its derivative in ``a`` is then 0, not log 0."""
    positive = base > 0
    return torch.where(positive, torch.where(positive, base, 1.0) ** power, 0.0)


def powers_of_lags(positions: Tensor, nodes: range, power: Tensor) -> Tensor:
    """``(p - j)^a``, 0 if p ≤ j, for positions p (times, 1 or groups) and grid points j: (times, nodes, groups)."""
    j = torch.arange(nodes.start, nodes.stop, dtype=torch.float64)
    return power_or_zero(positions[:, None] - j[:, None], power)


def _binomial_tail(m: Tensor, power: Tensor, degrees: range) -> Tensor:
    """``m^a Σ_k binom(a, k) m^{-k}`` over the given degrees, by Horner's rule from the smallest term."""
    k = torch.arange(1, degrees[-1] + 1, dtype=torch.float64)[:, None]
    coefficients = running_product((power - k + 1) / k)[degrees.start - 1 :: degrees.step]
    ratio = m ** -float(degrees.step)
    total = torch.zeros_like(m * power)
    for c in reversed(coefficients.unbind()):
        total = torch.addcmul(c, total, ratio)
    return m ** (power - degrees.start) * total
