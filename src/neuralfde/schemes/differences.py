"""Schemes that discretise the derivative, written as convolutions of the slopes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..weights import meshes, uniform
from ..weights.kernel import Kernel
from .one_stage import OneStage


@dataclass(frozen=True)
class GrunwaldLetnikov(OneStage):
    """Grünwald-Letnikov: ``h^{-β} Σ_j (-1)^j binom(β, j) (z_{n-j} - z_0) = f`` at ``t_n``, explicit at ``t_{n-1}``.

    Written as a convolution, its weights are the coefficients of ``h^β (1-ξ)^{-β}`` (Lubich 1986). Subtracting the
    initial value makes it a scheme for Caputo's derivative. Order 1; at β = 1 an Euler method.
    """

    implicit: bool = True
    max_order = 2.0

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        return convolution(uniform.grunwald_letnikov(order, step, steps), self.implicit)

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 1.0


@dataclass(frozen=True)
class L1(OneStage):
    """L1: the state is linear on each cell, and its Caputo derivative equals ``f`` (Oldham and Spanier 1974).

    Order 2 - β if the solution is smooth, 1 for a generic one; the explicit variant evaluates ``f`` one step earlier
    and has order 1. At β = 1 an Euler method.
    """

    implicit: bool = True

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        return convolution(uniform.l1(order, step, steps), self.implicit)

    def kernel_on(self, order: Tensor, times: Tensor) -> Kernel:
        """See :class:`Scheme`."""
        if order.shape[0] > 1:
            raise InputError(
                "L1 on a graded grid inverts one matrix for all rows, which an order that changes with time has not. "
                "Use method='trapezoid', 'abm' or 'predictor' with VariableOrder there, or drop grading=."
            )
        w = meshes.l1(order, times)
        if not self.implicit:
            w = torch.cat([w[:, 1:], torch.zeros_like(w[:, :1])], dim=1)
        return meshes.kernel_of(w, first=int(self.implicit))

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 2.0 - order if smooth and self.implicit else 1.0


def convolution(w: Tensor, implicit: bool) -> Kernel:
    """The kernel of a convolution with weights ``w``: implicit without ``v_0``, explicit with slopes one step later."""
    if implicit:
        return Kernel(w[None], w[0], first=1)
    return Kernel(torch.cat([torch.zeros_like(w[:1]), w[:-1]])[None], torch.zeros_like(w[0]))
