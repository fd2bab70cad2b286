"""Fractional linear multistep methods of order 2, with starting weights for solutions that are not smooth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.policy import STARTING_LEAST
from ..errors import InputError
from ..special import binomial_series, series_product
from ..weights import uniform
from ..weights.kernel import Kernel
from ..weights.starting import starting_weights
from .one_stage import OneStage


@dataclass(frozen=True)
class Multistep(OneStage):
    """Fractional linear multistep methods with starting weights (Lubich 1986; Garrappa 2015).

    ``z_n = z_0 + Σ_{j≤n} w_{n-j} v_j + Σ_{j≤3} s_{n,j} v_j``. The weights ``w`` are the coefficients of
    ``h^β δ(ξ)^{-β}``, where δ is that of a classical method: ``rule='bdf2'``, δ = 3/2 - 2ξ + ξ²/2, damps fast modes;
    ``rule='trapezoid'``, δ = 2(1-ξ)/(1+ξ), does not. The starting weights ``s`` make the rule exact for slopes 1, t^β,
    t^{2β} and t, so that the solution need not be smooth: order 2 for β ≥ 1/3 and 1 + 3β below. They couple no step to
    a later one; the first three steps use as many powers as they can. Gradients with respect to β are those of the
    weights in use, which jump where β or 2β passes 0.95.
    """

    implicit: bool = True
    rule: str = "bdf2"
    min_order = STARTING_LEAST

    def __post_init__(self) -> None:
        if self.rule not in ("bdf2", "trapezoid"):
            raise InputError(f"Multistep(rule={self.rule!r}): the rules are 'bdf2' and 'trapezoid'.")
        if not self.implicit:
            raise InputError(
                "Multistep(implicit=False): these methods are implicit; use method='abm' if that is costly."
            )

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        w = coefficients(order, steps + 1, self.rule)
        start = starting_weights(w, order)
        gain = torch.exp(order * uniform.log(step))
        own = start.diagonal().T
        local = w[0] + torch.nn.functional.pad(own, (0, 0, 0, len(w) - len(own)))
        before = (torch.arange(start.shape[0])[:, None] < torch.arange(len(w)))[..., None]
        return Kernel(gain * w[None], gain * local, gain * torch.where(before, start, 0.0)[None])

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 2.0 if smooth else min(2.0, 1 + 3 * order)


def coefficients(order: Tensor, count: int, rule: str) -> Tensor:
    """The coefficients of ``δ(ξ)^{-β}``: a product of ``(1-ξ)^{-β}`` and a factor that is smooth at 1."""
    m = torch.arange(count, dtype=torch.float64)[:, None]
    if rule == "bdf2":  # (2/3)^β (1-ξ)^{-β} (1-ξ/3)^{-β}
        other = (1.5**-order) * binomial_series(order, count) * 3.0**-m
    else:  # 2^{-β} (1-ξ)^{-β} (1+ξ)^β
        other = 2.0**-order * binomial_series(-order, count) * torch.where(m % 2 == 0, 1.0, -1.0)
    return series_product(binomial_series(order, count), other)
