"""The weights of every scheme as its authors have them. A new scheme is one more entry of ``FORMULAS``.

Orders are (1 or steps + 1, ...): one for all rows, or one for each. The axes after that broadcast to the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import cells, series
from .starting import starting


class Sum(NamedTuple):
    """One history sum on a uniform grid: what depends on the lag (row, column, ...), and what is added to it."""

    lagged: Tensor
    extra: Tensor | None = None


@dataclass(frozen=True)
class Formula:
    """A scheme and where it is defined.

    Attributes:
        stage: "explicit" (``z = c``), "implicit" (``z = c + w_0 f(z)``), "corrected" (``z = c + w_0 f(c')``) or
            "extrapolated" (``z = c + w_0 v``, ``v = f(c')``).
        uniform: from orders, step and number of steps to its sums on a uniform grid.
        first: the first slope that counts.
        graded: from orders and times to its matrices on any grid; None where it has none.
        largest: the largest order.
        series: it is made from the generating function of the derivative, so that sums of derivatives can be inverted.
    """

    stage: str
    uniform: Callable[[Tensor, Tensor, int], list[Sum]]
    first: int = 0
    graded: Callable[[Tensor, Tensor], list[Tensor]] | None = None
    largest: float = 1.0
    series: bool = False


def formula(name: str) -> Formula:
    if name not in FORMULAS:
        raise LookupError(
            f"no independent formula for method={name!r}: add its weights, as the literature has them, to FORMULAS in "
            "tests/reference/formulas.py, and it is tested with every history, storage, order and stepper."
        )
    return FORMULAS[name]


def by_lag(w: Tensor) -> Tensor:
    """Lag weights (steps + 1, 1 or steps + 1, ...) as a lower triangular matrix; row ``n`` takes its own order."""
    n = torch.arange(w.shape[0])
    lag = n[:, None] - n
    row = n[:, None] if w.shape[1] > 1 else torch.zeros_like(n)[:, None]
    inside = (lag >= 0).reshape(*lag.shape, *[1] * (w.ndim - 2))
    return torch.where(inside, w[lag.clamp(min=0), row], 0.0)


def later(w: Tensor) -> Tensor:
    """Every slope one step later."""
    return torch.cat([torch.zeros_like(w[:1]), w[:-1]])


def rectangle(b: Tensor, h: Tensor, steps: int) -> Tensor:
    """``h^β/Γ(β+1) [(m+1)^β - m^β]``: the weight of the cell that ends ``m`` steps back."""
    powers = torch.stack([series.power(m, b) for m in range(steps + 2)])
    return h**b / series.gamma(b + 1) * (powers[1:] - powers[:-1])


def trapezoid(b: Tensor, h: Tensor, steps: int) -> Sum:
    inner, half = cells.hats(b, h, max(steps, 1))
    lagged = by_lag(inner[: steps + 1])
    own = torch.arange(steps + 1)
    first = half[own, own if half.shape[1] > 1 else 0] - lagged[:, 0]
    first = torch.cat([torch.zeros_like(first[:1]), first[1:]])
    extra = torch.zeros_like(lagged)
    return Sum(lagged, torch.cat([first[:, None], extra[:, 1:]], 1))


def multistep(coefficients: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, Tensor, int], list[Sum]]:
    def sums(b: Tensor, h: Tensor, steps: int) -> list[Sum]:
        lagged = by_lag(coefficients(b, steps + 1))
        gain = (h**b)[:, None]
        # with one step length for each group the weights of step 1 are those of each group's order still
        unit = lagged.expand(*lagged.shape[:2], *b.shape[1:])
        return [Sum(gain * lagged, gain * starting(b, unit))]

    return sums


def difference(coefficients: Callable[[Tensor, Tensor, int], Tensor], explicit: bool):  # type: ignore[no-untyped-def]
    """A derivative set equal to the slope of the new point, or of the one before, and solved for the new state."""

    def sums(b: Tensor, h: Tensor, steps: int) -> list[Sum]:
        w = coefficients(b, h, steps)
        return [Sum(by_lag(later(w) if explicit else w))]

    return sums


def gl(b: Tensor, h: Tensor, steps: int) -> Tensor:
    return h**b * series.grunwald(b, steps + 1)


def l1(b: Tensor, h: Tensor, steps: int) -> Tensor:
    return h**b * series.gamma(2 - b) * series.reciprocal(series.l1(b, steps + 1))


def imex(b: Tensor, h: Tensor, steps: int) -> list[Sum]:
    """BDF2 with half of the first slope at the first step, and the straight line through the last two states."""
    w = h**b * series.bdf2(b, steps + 1)
    first = torch.cat([-w[:1], w[:-1] / 2 - w[1:]])  # of v_0, beside its lag weight

    def ahead(x: Tensor) -> Tensor:
        return 2 * later(x) - later(later(x))

    def column(x: Tensor) -> Tensor:
        found, rows = torch.zeros_like(by_lag(w)), torch.arange(steps + 1)
        return torch.cat([x[rows, rows if x.shape[1] > 1 else 0][:, None], found[:, 1:]], 1)

    return [Sum(by_lag(w), column(first)), Sum(by_lag(ahead(w)), column(ahead(first)))]


def imex_on(b: Tensor, t: Tensor) -> list[Tensor]:
    matrix, ahead = cells.trapezoid_on(b, t), []
    for n in range(len(t)):
        share = (t[n] - t[n - 1]) / (t[n - 1] - t[n - 2]) if n > 1 else 0.0
        ahead.append((1 + share) * matrix[n - 1] - share * matrix[n - 2] if n > 1 else torch.zeros_like(matrix[0]))
    return [matrix, torch.stack(ahead)]


FORMULAS: dict[str, Formula] = {
    "predictor": Formula(
        "explicit",
        lambda b, h, n: [Sum(by_lag(later(rectangle(b, h, n))))],
        graded=lambda b, t: [cells.rectangle_on(b, t, right=False)],
        largest=2.0,
    ),
    "predictor-implicit": Formula(
        "implicit",
        lambda b, h, n: [Sum(by_lag(rectangle(b, h, n)))],
        first=1,
        graded=lambda b, t: [cells.rectangle_on(b, t, right=True)],
        largest=2.0,
    ),
    "trapezoid": Formula(
        "implicit",
        lambda b, h, n: [trapezoid(b, h, n)],
        graded=lambda b, t: [cells.trapezoid_on(b, t)],
        largest=2.0,
    ),
    "abm": Formula(
        "corrected",
        lambda b, h, n: [trapezoid(b, h, n), Sum(by_lag(later(rectangle(b, h, n))))],
        graded=lambda b, t: [cells.trapezoid_on(b, t), cells.rectangle_on(b, t, right=False)],
        largest=2.0,
    ),
    "gl": Formula("implicit", difference(gl, explicit=False), first=1, largest=2.0, series=True),
    "gl-explicit": Formula("explicit", difference(gl, explicit=True), largest=2.0, series=True),
    "l1": Formula(
        "implicit",
        difference(l1, explicit=False),
        first=1,
        graded=lambda b, t: [cells.l1_on(b, t, explicit=False)],
    ),
    "l1-explicit": Formula(
        "explicit", difference(l1, explicit=True), graded=lambda b, t: [cells.l1_on(b, t, explicit=True)]
    ),
    "bdf2": Formula("implicit", multistep(series.bdf2)),
    "flmm-trapezoid": Formula("implicit", multistep(series.fractional_trapezoid)),
    "imex": Formula("extrapolated", imex, graded=imex_on),
}
