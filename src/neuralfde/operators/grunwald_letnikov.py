"""The Grünwald-Letnikov derivative of sampled data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralfde.operators._common import apply, convolve
from neuralfde.special import binomial_series


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
    return apply(_differentiate, values, order, step, side, least=1)


def _differentiate(values: Tensor, order: Tensor, step: float) -> Tensor:
    weights = binomial_series(-order, values.shape[0])
    return torch.exp(-order * math.log(step)) * convolve(weights, values)
