"""Least squares for a curve in closed form, with the same optimiser and intervals as ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ..base import checks
from ..errors import InputError, InputTypeError
from .data import Data, doubles, squarable
from .diagnostics import Diagnostics, diagnose, warn_of
from .intervals import gauss_newton, stretched, wide
from .optimisers import LevenbergMarquardt
from .problem import Problem
from .unknowns import Bounds, Unknowns, unknowns_from


@dataclass(frozen=True)
class CurveFit:
    """Estimates, 95 % intervals, their covariance, and the fitted curve at the points of the data."""

    estimates: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    predicted: Tensor
    loss: float
    r_squared: float
    converged: bool
    covariance: Tensor
    noise: float
    diagnostics: Diagnostics
    _curve: _Curve | None = field(repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the curve, which may be a local function: what comes out of a file or another process has no band."""
        return {**self.__dict__, "_curve": None}

    def band(self, x: Any) -> tuple[Tensor, Tensor]:
        """Lower and upper limits of the 95 % band of a new measurement at these points, by the delta method."""
        if self._curve is None:
            raise InputError("a fit from a file or another process does not have its function. Fit again for a band.")
        x, flat = doubles("x", x), torch.tensor([*self.estimates.values()], dtype=torch.float64)
        there = replace(self._curve, x=x, data=Data(x, torch.zeros_like(x), torch.ones_like(x), False))
        middle, matrix = there.jacobian(flat)
        variance = ((matrix @ self.covariance) * matrix).sum(-1).clamp(min=0) + self.noise**2
        half = wide(cast(Problem, there), len(self.predicted) - len(flat)) * variance.sqrt()
        return middle - half, middle + half


@dataclass(frozen=True)
class _Curve:
    function: Callable[..., Tensor]
    x: Tensor
    data: Data
    unknowns: Unknowns
    robust: None = None

    def found(self, flat: Tensor, iterations: int) -> tuple[Tensor, bool]:
        """From these values to the least squares, and whether they were found."""
        start, problem = self.unknowns.to_free(flat), cast(Problem, self)
        path = LevenbergMarquardt(iterations=iterations).minimise(problem, start, lambda *_: False, None)
        return self.unknowns.to_value(path.free), path.converged

    def resampled(self, flat: Tensor, count: int, seed: int, iterations: int) -> Tensor:
        """95 % intervals (unknowns, 2) from fits to the curve with its residuals dealt out anew."""
        rest = -self.residuals(flat).detach()
        y = self.data.values - rest
        rest = rest * (len(rest) / max(1, len(rest) - len(flat))) ** 0.5  # residuals are shorter than the noise
        generator, draws = torch.Generator().manual_seed(seed), []
        for _ in range(count):
            pick = rest[torch.randint(len(rest), (len(rest),), generator=generator)]
            draws.append(replace(self, data=replace(self.data, values=y + pick)).found(flat, iterations)[0])
        return stretched(cast(Problem, self), torch.stack(draws), flat, len(rest))

    def check(self, flat: Tensor) -> None:
        """Refuse a function whose values are no curve, or whose points depend on each other (see ``jacobian``)."""
        numbers = flat.detach().clone().requires_grad_()
        with torch.enable_grad():
            out = self.function(self.x, **self.unknowns.split(numbers))
        if not isinstance(out, Tensor) or out.shape not in ((), self.x.shape):
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise InputError(f"function(x, **params) must give one number for each of {len(self.x)} points, got {got}.")
        if not out.requires_grad:
            raise InputError(
                "function(x, **params) gives numbers without a gradient: compute them from params in torch."
            )
        probe = torch.linspace(1.0, 2.0, len(self.x), dtype=torch.float64)
        (together,) = torch.autograd.grad((probe * out).sum(), numbers)
        rows = self.jacobian(flat)[1]
        if bool(((probe @ rows - together).abs() > 1e-6 * (probe @ rows.abs() + together.abs())).any()):
            raise InputError(
                "points of the curve depend on each other: function(x, **params) must give each point from its own x "
                "and params alone. Write sums and means over x as formulas, or give what they are as params."
            )

    def residuals(self, flat: Tensor) -> Tensor:
        return self.function(self.x, **self.unknowns.split(flat)) - self.data.values

    def jacobian(self, flat: Tensor) -> tuple[Tensor, Tensor]:
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
    resamples: int = 0,
    seed: int = 0,
) -> CurveFit:
    """Fit ``function(x, **params)``, which acts on each point separately, to ``y``; x and y have shape (points,).

    It is called with parameters that are scalars or, for the Jacobian, have shape (points,), and is refused where a
    point depends on another one. With ``resamples`` the
    intervals come from that many bootstrap fits to resampled residuals, otherwise from the Jacobian. What makes them
    doubtful is in ``CurveFit.diagnostics`` and is warned of, as in ``fit``; neighbours are points with neighbouring x.
    """
    checks.whole("iterations", iterations)
    checks.whole("resamples", resamples, least=0)
    if resamples == 1:
        raise InputError("resamples=1 gives no interval. Use 0 for intervals from the Jacobian, or a hundred fits.")
    checks.function("function", function, "function(x, **params)")
    x, y = doubles("x", x), doubles("y", y)
    if x.shape != y.shape or x.ndim != 1 or not len(x) or not bool((x.isfinite() & y.isfinite()).all()):
        raise InputError(
            f"x and y must be two rows of finite numbers, as long as each other and not empty, got {tuple(x.shape)} "
            f"and {tuple(y.shape)}. Leave out points with a missing value."
        )
    squarable("y", y)
    if not isinstance(params, Mapping) or not params:
        raise InputTypeError(f"params={params!r:.60} must be a dictionary of first guesses such as {{'rate': 1.0}}.")
    why = checks.misfit(function, x, **params)
    if why is not None:
        raise InputError(
            f"function cannot be called as function(x, {', '.join(params)}): {why}. Give these in params=."
        )
    values = {n: doubles(f"params[{n!r}]", v).reshape(()) for n, v in params.items()}
    unknowns = unknowns_from(values, bounds or {})
    curve = _Curve(function, x, Data(x, y, torch.ones_like(y), False), unknowns)
    curve.check(unknowns.pack(values))
    flat, converged = curve.found(unknowns.pack(values), iterations)
    sure = gauss_newton(cast(Problem, curve), flat)
    intervals = curve.resampled(flat, resamples, seed, iterations) if resamples else sure.intervals
    residual = curve.residuals(flat).detach()
    labels = unknowns.labels()
    found = diagnose(cast(Problem, curve), flat, -residual[x.argsort(stable=True), None, None], sure)
    warn_of(found, network=False, known_start=False)
    return CurveFit(
        dict(zip(labels, flat.tolist(), strict=True)),
        {n: (a, b) for n, (a, b) in zip(labels, intervals.tolist(), strict=True)},
        residual + y,
        float(residual.square().mean()),
        1 - float(residual.square().sum() / (y - y.mean()).square().sum()),
        converged,
        sure.covariance,
        sure.noise,
        found,
        curve,
    )
