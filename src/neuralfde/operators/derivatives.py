"""Fractional derivatives of sampled data: Caputo's, Riemann and Liouville's, Grünwald and Letnikov's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralfde.operators._common import apply, derivative_at, sampled_derivative, samples_needed
from neuralfde.special import binomial_remainder, binomial_series, reciprocal_gamma
from neuralfde.special.powers import indices
from neuralfde.special.series import convolve


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
    return apply(_caputo, values, order, step, side, least=samples_needed(order))


def _caputo(values: Tensor, order: Tensor, step: float) -> Tensor:
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


def riemann_liouville_derivative(values: Tensor, order: float | Tensor, step: float, side: str = "left") -> Tensor:
    """The Riemann-Liouville derivative of order α > 0 at every sample, with m = ⌈α⌉.

        left:   D^α f(t) = d^m/dt^m 1/Γ(m-α) ∫_0^t (t-s)^{m-α-1} f(s) ds
        right:  D^α f(t) = (-1)^m d^m/dt^m 1/Γ(m-α) ∫_t^T (s-t)^{m-α-1} f(s) ds

    ``values`` holds f(0), f(h), …, f(T) along its first axis (at least m + 2 samples); other axes are a batch.
    ``order`` is a number or a tensor that broadcasts to one sample; gradients flow to both.

    It is the Caputo derivative plus exact powers, D^α f = D_C^α f + Σ_{k<m} f^{(k)}(0) t^{k-α}/Γ(k+1-α), the f^{(k)}(0)
    from one-sided differences of error O(h³): away from t = 0 the error is that of ``caputo_derivative``.

    At the first sample (left; the last one for right) the true value is infinite unless f vanishes there. What is
    returned is the Grünwald-Letnikov value h^{-α} f(0): finite, with a usable gradient, growing as h → 0. At integer α
    it is the one-sided difference for ±f^{(m)}.
    """
    return apply(_riemann_liouville, values, order, step, side, least=samples_needed(order))


def _riemann_liouville(values: Tensor, order: Tensor, step: float) -> Tensor:
    result = _caputo(values, order, step)
    ceilings = torch.ceil(order.detach())
    times = indices(1, values.shape[0], order) * step
    rest = result[1:]
    for k in range(int(ceilings.max())):
        # The orders of some channels may be too small to have this term.
        size = torch.where(ceilings > k, reciprocal_gamma(k + 1.0 - order), 0.0)
        rest = rest + size * torch.pow(times, k - order) * derivative_at(values, k, step, 0)
    start = torch.where(order == ceilings, result[0], torch.exp(-order * math.log(step)) * values[0])
    return torch.cat([start[None], rest])


def grunwald_letnikov_derivative(values: Tensor, order: float | Tensor, step: float, side: str = "left") -> Tensor:
    """The Grünwald-Letnikov derivative of order α > 0 at every sample: the limit h → 0 of

        left:   D^α f(t) = h^{-α} Σ_{k=0}^{t/h} (-1)^k C(α, k) f(t - kh)
        right:  D^α f(t) = h^{-α} Σ_{k=0}^{(T-t)/h} (-1)^k C(α, k) f(t + kh)

    taken at the step of the samples. ``values`` holds f(0), f(h), …, f(T) along its first axis; other axes are a batch.
    ``order`` is a number or a tensor that broadcasts to one sample; gradients flow to both.

    It converges to the Riemann-Liouville derivative with error O(h) at fixed t > 0. α = 1 is the backward difference
    (left), with f(-h) taken as 0. At the first sample (left; the last one for right) only one term remains,
    h^{-α} f(0): infinite in the limit unless f(0) = 0.
    """
    return apply(_grunwald_letnikov, values, order, step, side, least=1)


def _grunwald_letnikov(values: Tensor, order: Tensor, step: float) -> Tensor:
    weights = binomial_series(-order, values.shape[0])
    return torch.exp(-order * math.log(step)) * convolve(weights, values)
