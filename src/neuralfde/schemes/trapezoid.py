"""Product trapezoid rules: implicit, and Adams–Bashforth–Moulton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import whole
from ..base.policy import AHEAD_SHARE
from ..errors import InputError
from ..weights import uniform
from ..weights.kernel import Kernel
from .base import Scheme, Slope
from .one_stage import OneStage


@dataclass(frozen=True)
class Trapezoid(OneStage):
    """The implicit product trapezoid rule: the slope is linear on each cell.

    It is the corrector of Diethelm, Ford and Freed (2004), solved exactly: ``w_0 = h^β/Γ(β+2)``,
    ``w_m = w_0 [(m+1)^{β+1} - 2m^{β+1} + (m-1)^{β+1}]``. Order 2 if the slope is smooth, 1 + β for a generic solution;
    at β = 1 the trapezoidal rule.
    """

    implicit: bool = True
    cells = ("linear",)
    uses_next_slope = True
    dense_is_limited = True  # errors of slopes grow towards the step before last, at order 1 without end
    max_order = 2.0

    def __post_init__(self) -> None:
        if not self.implicit:
            raise InputError("Trapezoid(implicit=False): use method='abm', the explicit trapezoid method.")

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        w, s = uniform.trapezoid(order, step, steps)
        return Kernel(w[None], w[0], s[None, None], dense=_hats(order, step, steps))

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 2.0 if smooth else min(2.0, 1 + order)


@dataclass(frozen=True)
class ABM(Scheme):
    """Fractional Adams–Bashforth–Moulton (Diethelm, Ford and Freed 2004).

    The rectangle rule predicts ``p_n``; the trapezoid rule corrects it with ``f(t_n, p_n)``, ``corrections`` times.
    Order min(2, 1 + β); each further correction adds β, up to order 2. At β = 1 the weights are those of Euler's method
    and the trapezoidal rule, summed from the start: Heun's method, except for where the slopes are evaluated.

    With ``ahead=True`` the trapezoid rule also predicts, with the new slope extrapolated linearly from the last two.
    The prediction then moves a third of the way to its correction. This is far more accurate on long steps, and stable
    up to ``w_0 J = -2`` rather than -0.6 to -0.8.
    """

    corrections: int = 1
    ahead: bool = False
    implicit = False
    sums = 2
    uses_next_slope = True
    dense_meets_nodes = False  # the corrected state uses the slope at the predicted one
    max_order = 2.0

    def __post_init__(self) -> None:
        whole("ABM.corrections", self.corrections, hint="Without a correction it is method='predictor'.")

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        w, s = uniform.trapezoid(order, step, steps)
        predict, extra = uniform.rectangle(order, step, steps), s[None]
        if self.ahead:  # w_0 (2 v_{n-1} - v_{n-2}), and w_0 v_0 in the first row
            own, none = w[:1], 0 * w
            predict = w + torch.cat([none[:1], 2 * own, -own, none])[: steps + 1]
            extra = torch.stack([s, s - torch.cat([none[:1], own, none])[: steps + 1]])
        return Kernel(torch.stack([w, predict]), w[0], extra[:, None], dense=_hats(order, step, steps))

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return min(2.0, 1 + order * self.corrections) if smooth else min(2.0, 1 + order)

    def evaluate(self, f: Slope, x: Sequence[Tensor], w0: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        """See :class:`Scheme`."""
        c, z = x
        if self.ahead:
            z = torch.lerp(z, torch.addcmul(c, w0, f(z)), AHEAD_SHARE)
        for _ in range(self.corrections):
            z = torch.addcmul(c, w0, f(z))
        return z, f(z) if slope else None

    @property
    def cells(self) -> tuple[str, ...]:  # type: ignore[override]
        """See :class:`Scheme`."""
        return ("linear", "ahead" if self.ahead else "left")

    @property
    def stages(self) -> int:  # type: ignore[override]
        """See :class:`Scheme`."""
        return self.corrections + 1 + self.ahead

    def relax(self, sums: Tensor, slopes: Tensor, w0: Tensor) -> Tensor:
        """See :class:`Scheme`."""
        corrected = torch.addcmul(sums[0], w0, slopes[:-1])
        if self.ahead:
            corrected = torch.cat([torch.lerp(sums[1], corrected[0], AHEAD_SHARE)[None], corrected[1:]])
        return torch.cat([sums[1:], corrected])


def _hats(order: Tensor, step: float | Tensor, steps: int):  # type: ignore[no-untyped-def]
    """Weights of the slopes at positions between grid points: the integral of the piecewise linear slope up to each."""

    def rows(positions: Tensor) -> Tensor:
        a = order + 1
        power = uniform.powers_of_lags(positions, range(steps + 2), a)
        before, here, after = power[:, :-2], power[:, 1:-1], power[:, 2:]
        first = power[:, 1] - power[:, 0] + a * uniform.powers_of_lags(positions, range(1), order)[:, 0]
        return uniform.scale(order, step, 2.0) * torch.cat([first[:, None], before - 2 * here + after], dim=1)

    return rows
