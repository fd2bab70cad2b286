"""The Riemann-Liouville fractional integral of sampled data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralfde.operators._common import apply
from neuralfde.special import binomial_remainder
from neuralfde.special.powers import indices
from neuralfde.special.series import convolve


def fractional_integral(values: Tensor, order: float | Tensor, step: float, side: str = "left") -> Tensor:
    """The fractional integral of order α > 0 at every sample.

        left:   I^α f(t) = 1/Γ(α) ∫_0^t (t-s)^{α-1} f(s) ds
        right:  I^α f(t) = 1/Γ(α) ∫_t^T (s-t)^{α-1} f(s) ds

    ``values`` holds f(0), f(h), …, f(T) along its first axis; other axes are a batch. ``order`` is a number or a tensor
    that broadcasts to one sample; gradients flow to both.

    The rule is the product trapezoid: f is replaced by its piecewise linear interpolant and the kernel is integrated
    exactly (Diethelm, Ford and Freed, Numer. Algorithms 36, 2004). Error O(h²) for f in C²; α = 1 is the trapezoidal
    rule. At the first sample (left) or the last (right) the integral is over an empty interval: 0 is returned.
    """
    return apply(_integrate, values, order, step, side, least=2)


def _integrate(values: Tensor, order: Tensor, step: float) -> Tensor:
    """h^α/Γ(α+2) [ a_n f_0 + Σ_{j=1}^n w_{n-j} f_j ], a_n and w_m free of cancellation."""
    count = values.shape[0]
    scale = torch.exp(order * math.log(step) - torch.lgamma(order + 2.0))
    power = order + 1.0
    m = indices(1, count, order)
    below = binomial_remainder(power, -1.0 / m, 2)  # (1 - 1/m)^{α+1} - 1 + (α+1)/m
    above = binomial_remainder(power, 1.0 / m, 2)
    size = torch.pow(m, power)
    kernel = torch.cat(
        [torch.ones((1, *order.shape), dtype=torch.float64, device=values.device), size * (below + above)]
    )
    inner = convolve(kernel[:-1], values[1:]) + size * below * values[:1]
    return torch.cat([torch.zeros_like(values[:1]), scale * inner])
