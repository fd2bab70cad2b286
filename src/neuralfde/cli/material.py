"""A material that relaxes over many decades, and three models that are asked for its future.

No model is the one that the data come from: they are a sum of sixty exponentials whose times spread over eight decades,
as in polymers and tissues, with 1 % noise. Everything is compared by logarithms, so that every decade counts alike,
and over several sets of noise. The models of order 1 have a stress that rests, or they would forecast none at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..fitting import CurveFit, FitWarning, fit_curve
from ..special import mittag_leffler

SEEN, AHEAD, REPEATS = 10.0, 100.0, 3


def measure(seed: int, noise: float = 0.01) -> tuple[Tensor, Tensor]:
    """Times from 0.01 to ``AHEAD``, and the logarithm of the stress."""
    times = torch.logspace(-2, 2, 81, dtype=torch.float64)
    scales = torch.logspace(-3, 5, 60, dtype=torch.float64)
    shares = scales**-0.3
    stress = (shares * torch.exp(-times[:, None] / scales)).sum(1) / shares.sum()
    generator = torch.Generator().manual_seed(seed)
    return times, stress.log() + noise * torch.randn(len(times), generator=generator, dtype=torch.float64)


def exponential(t: Tensor, level: Any, log_time: Any, rest: Any) -> Tensor:
    """Order 1, one time: the logarithm of ``A exp(-t/τ) + C``."""
    return torch.logaddexp(level - t * torch.exp(-torch.as_tensor(log_time)), rest + 0 * t)


def two_exponentials(t: Tensor, level: Any, log_time: Any, second: Any, longer: Any, rest: Any) -> Tensor:
    """Order 1, two times: one exponential more."""
    return exponential(t, second, longer, exponential(t, level, log_time, rest))


def fractional(t: Tensor, level: Any, log_time: Any, order: Any) -> Tensor:
    """The logarithm of ``A E_β(-(t/τ)^β)``, which solves ``D^β z = -z/τ^β``."""
    scaled = t * torch.exp(-torch.as_tensor(log_time))
    return level + torch.log(mittag_leffler(-(scaled**order), order))


MODELS: dict[str, tuple[Callable[..., Tensor], dict[str, float]]] = {
    "order 1": (exponential, {"level": -1.0, "log_time": -1.0, "rest": -3.0}),
    "order 1, two times": (
        two_exponentials,
        {"level": -1.0, "log_time": -2.0, "second": -1.5, "longer": 1.0, "rest": -3.0},
    ),
    "order found": (fractional, {"level": 0.0, "log_time": 0.0, "order": 0.8}),
}


def fit_until(name: str, seed: int) -> CurveFit:
    """A model, fitted to the times up to ``SEEN``."""
    function, guess = MODELS[name]
    times, values = measure(seed)
    seen = times <= SEEN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # no model is the one that the data come from
        return fit_curve(
            function, times[seen], values[seen], guess, bounds={"order": (0.05, 1.0)} if "order" in guess else None
        )


def predict(name: str, found: CurveFit, times: Tensor) -> Tensor:
    """The logarithm of the stress at any times."""
    return MODELS[name][0](times, **{k: torch.tensor(v, dtype=times.dtype) for k, v in found.estimates.items()})


def errors(name: str, found: CurveFit, seed: int) -> tuple[float, float]:
    """Root mean square errors of the logarithm: at the times that were seen, and in the decade after them."""
    times, values = measure(seed)
    off = (predict(name, found, times) - values).square()
    return float(off[times <= SEEN].mean().sqrt()), float(off[times > SEEN].mean().sqrt())


def draw(fits: dict[str, CurveFit], seed: int) -> Any:
    """A figure of the data, the fitted curves and their forecasts. Needs matplotlib."""
    from matplotlib.figure import Figure

    times, values = measure(seed)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axis = figure.subplots()
    for (name, found), line in zip(fits.items(), (":", "--", "-"), strict=False):
        axis.loglog(times, predict(name, found, times).exp(), line, label=name)
    axis.loglog(times, values.exp(), "o", ms=3, color="#7d838d", label="stress", zorder=0)
    axis.axvspan(SEEN, AHEAD, color="#7d838d", alpha=0.15, lw=0)
    axis.set(xlabel="time", ylabel="stress", ylim=(1e-3, 2), title="Fitted to three decades, forecast for one (shaded)")
    axis.legend()
    return figure
