"""The Riemann-Liouville derivative of sampled data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralfde.operators._common import apply, derivative_at, indices, samples_needed
from neuralfde.operators.caputo import caputo_rule
from neuralfde.special import reciprocal_gamma


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
    return apply(_differentiate, values, order, step, side, least=samples_needed(order, extra=2))


def _differentiate(values: Tensor, order: Tensor, step: float) -> Tensor:
    result = caputo_rule(values, order, step)
    ceilings = torch.ceil(order.detach())
    times = indices(1, values.shape[0], order) * step
    rest = result[1:]
    for k in range(int(ceilings.max())):
        # The orders of some channels may be too small to have this term.
        size = torch.where(ceilings > k, reciprocal_gamma(k + 1.0 - order), 0.0)
        rest = rest + size * torch.pow(times, k - order) * derivative_at(values, k, step, 0)
    start = torch.where(order == ceilings, result[0], torch.exp(-order * math.log(step)) * values[0])
    return torch.cat([start[None], rest])
