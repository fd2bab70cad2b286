"""Product rectangle rules: fractional Euler methods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..weights import uniform
from ..weights.kernel import Kernel
from .one_stage import OneStage


@dataclass(frozen=True)
class Predictor(OneStage):
    """The slope is constant on each cell (Diethelm, Ford and Freed 2004, the paper's eq. ``pre``).

    ``z_n = z_0 + h^β/Γ(β+1) Σ_{j<n} [(n-j)^β - (n-1-j)^β] v_j``; with ``implicit=True`` each cell takes the slope of
    its right end. Order 1; at β = 1 the explicit and the implicit Euler method.
    """

    max_order = 2.0

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        if self.implicit:
            w = uniform.rectangle(order, step, steps + 1)[1:]
            return Kernel(w[None], w[0], first=1, dense=_cells(order, step, steps, shift=1))
        return Kernel(
            uniform.rectangle(order, step, steps)[None], torch.zeros_like(order), dense=_cells(order, step, steps, 0)
        )

    @property
    def cells(self) -> tuple[str, ...]:  # type: ignore[override]
        """See :class:`Scheme`."""
        return ("right",) if self.implicit else ("left",)

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 1.0


def _cells(order: Tensor, step: float | Tensor, steps: int, shift: int):  # type: ignore[no-untyped-def]
    """Weights of the slopes at positions between nodes: each cell up to one, the last one in part."""

    def rows(positions: Tensor) -> Tensor:
        power = uniform.powers_of_lags(positions, range(-shift, steps + 2 - shift), order)
        weights = uniform.scale(order, step, 1.0) * (power[:, :-1] - power[:, 1:])
        return torch.nn.functional.pad(weights[:, shift:], (0, 0, shift, 0))  # no cell takes v_0 as its right end

    return rows
