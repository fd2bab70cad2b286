"""The error of every step, estimated from the slopes of a solve by a second rule, without evaluating ``func`` again.

A scheme sums slopes ``v_j`` with the weights of its step size h. Every other slope, with the weights of 2h, gives an
embedded rule of the same order p. The difference of the two, divided by ``2^p - 1``, estimates the error of the sum.
What a state has besides the sum (a corrector that has not converged, a truncated history) is added in full.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..special.series import convolve
from .kernel import Kernel


def step_errors(kernel: Callable[[int], Kernel], rows: Tensor, slopes: Tensor, initial: Tensor, gain: float) -> Tensor:
    """The estimated error of every row, (steps + 1, groups, width); odd rows get the mean of their neighbours.

    Args:
        kernel: a function from a stride to the weights on the grid of every ``stride``-th point.
        rows: the states (steps + 1, groups, width).
        slopes: the values of ``func`` there.
        initial: the initial values (initials, groups, width).
        gain: ``2^p - 1``.
    """
    fine = _sums(kernel(1), slopes, initial)
    coarse = _sums(kernel(2), slopes[::2], initial)
    even = (rows.double() - fine)[::2].abs() + (fine[::2] - coarse).abs() / gain
    found = rows.new_zeros(rows.shape)
    found[::2] = even.to(found)
    found[1::2] = ((even[1:] + even[:-1]) / 2).to(found)
    return found


def _sums(kernel: Kernel, slopes: Tensor, initial: Tensor) -> Tensor:
    """``base_n + Σ_{j≤n} w_{n,j} v_j`` for every n, in float64; by FFT if the weights depend on the lag alone."""
    v, first = slopes.double(), initial.double()
    entering = v.clone()
    entering[: kernel.first] = 0
    weights, local = kernel.weights[0].detach().to(v), kernel.local.detach().to(v)
    if weights.ndim == 2:
        total = convolve(torch.cat([torch.zeros_like(weights[:1]), weights[1:]])[..., None], entering)
    else:
        total = torch.einsum("njg,jgm->ngm", weights.permute(2, 0, 1).tril(-1).permute(1, 2, 0), entering)
    total += (local[..., None] if local.ndim > 1 else local[None, :, None]) * v
    for extra, slope in zip(() if kernel.start is None else kernel.start[0].detach().to(v), v, strict=False):
        total += extra[..., None] * slope  # a short solve may have fewer slopes than starting weights
    if kernel.base is None:
        total += first[0]
    else:
        total += torch.einsum("ing,igm->ngm", kernel.base.detach().to(v), first)
    total[0] = first[0]
    return total
