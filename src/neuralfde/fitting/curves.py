"""Least squares for a curve known in closed form, with the same optimiser and intervals as ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base import checks
from ..errors import InputError, InputTypeError
from .data import Data, doubles
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

    def jacobian(self, flat: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Each point gets parameters of its own, so that one backward pass gives all rows."""
        each = flat.detach()[:, None].expand(-1, len(self.x)).clone().requires_grad_()
        with torch.enable_grad():
            named = dict(zip(self.unknowns.shapes, each, strict=True))
            residual = self.function(self.x, **named) - self.data.values
            (rows,) = torch.autograd.grad(residual.sum(), each)
        return residual.detach(), rows.T.contiguous()


def fit_curve(
    function: Callable[..., Tensor],
    x: Any,
    y: Any,
    params: Mapping[str, float],
    bounds: Mapping[str, Bounds] | None = None,
    iterations: int = 100,
) -> CurveFit:
    """Fit ``function(x, **params)`` to ``y``; both have shape (points,), and ``function`` acts point by point.

    Parameters reach it as numbers or, for the Jacobian, as one number for each point.
    """
    checks.whole("iterations", iterations)
    checks.function("function", function, "function(x, **params)")
    x, y = doubles("x", x), doubles("y", y)
    if x.shape != y.shape or x.ndim != 1 or not bool((x.isfinite() & y.isfinite()).all()):
        raise InputError(f"x and y must be two rows of finite numbers, got {tuple(x.shape)} and {tuple(y.shape)}.")
    if not isinstance(params, Mapping) or not params:
        raise InputTypeError(f"params={params!r:.60} must be a dictionary of first guesses such as {{'rate': 1.0}}.")
    values = {n: doubles(f"params[{n!r}]", v).reshape(()) for n, v in params.items()}
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
