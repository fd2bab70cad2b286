"""Least squares for a curve known in closed form, with the same optimiser and intervals as :func:`fit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .data import Data
from .intervals import gauss_newton
from .optimisers import LevenbergMarquardt
from .unknowns import Bounds, Unknowns, unknowns_from


@dataclass(frozen=True)
class CurveFit:
    """Estimates, 95 % intervals and the fitted curve at the points of the data."""

    estimates: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    predicted: Tensor
    loss: float
    r_squared: float
    converged: bool


@dataclass(frozen=True)
class _Curve:
    function: Callable[..., Tensor]
    x: Tensor
    data: Data
    unknowns: Unknowns

    def residuals(self, flat: Tensor) -> Tensor:
        return self.function(self.x, **self.unknowns.split(flat)) - self.data.values

    def jacobian(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        u = flat.detach().clone().requires_grad_()
        with torch.enable_grad():
            residual = self.residuals(u)
            rows = torch.autograd.functional.jacobian(self.residuals, u, vectorize=False)
        assert isinstance(rows, Tensor)
        return residual.detach(), rows


def fit_curve(
    function: Callable[..., Tensor],
    x: Any,
    y: Any,
    params: Mapping[str, float],
    bounds: Mapping[str, Bounds] | None = None,
    iterations: int = 100,
) -> CurveFit:
    """Fit ``function(x, **params)`` to ``y``; both have shape (points,)."""
    x, y = torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)
    if x.shape != y.shape or x.ndim != 1 or not bool((x.isfinite() & y.isfinite()).all()):
        raise InputError(f"x and y must be two rows of finite numbers, got {tuple(x.shape)} and {tuple(y.shape)}.")
    values = {n: torch.tensor(float(v), dtype=torch.float64) for n, v in params.items()}
    unknowns = unknowns_from(values, bounds or {})
    curve: Any = _Curve(function, x, Data(x, y, torch.ones_like(y), False), unknowns)
    path = LevenbergMarquardt(iterations=iterations).minimise(
        curve, unknowns.to_free(unknowns.pack(values)), lambda *_: False, None
    )
    flat = unknowns.to_value(path.free)
    sure = gauss_newton(curve, flat)
    residual = curve.residuals(flat).detach()
    labels = unknowns.labels()
    return CurveFit(
        dict(zip(labels, flat.tolist(), strict=True)),
        {n: (a, b) for n, (a, b) in zip(labels, sure.intervals.tolist(), strict=True)},
        residual + y,
        float(residual.square().mean()),
        1 - float(residual.square().sum() / (y - y.mean()).square().sum()),
        path.converged,
    )
