"""Measurements as a user has them, laid out as one rectangle: (times, trajectories, observed variables)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError

Observe = int | Sequence[int] | Callable[[Tensor], Tensor] | None


@dataclass(frozen=True)
class Data:
    """All trajectories on the union of their times.

    Attributes:
        times: increasing; the first is the initial time; shape (T,).
        values: shape (T, B, m), zero where nothing was measured.
        scale: 1 / noise level of each value, zero where nothing was measured; shape (T, B, m).
        calibrated: the noise levels are in the units of the data, so that residuals are standard normal.
    """

    times: Tensor
    values: Tensor
    scale: Tensor
    calibrated: bool

    @property
    def seen(self) -> Tensor:
        """Where there is a measurement."""
        return self.scale > 0

    @property
    def count(self) -> int:
        """How many numbers were measured."""
        return int(self.seen.sum())


def read_data(times: Any, observations: Any, noise: Any, weights: Any) -> Data:
    """One trajectory, a batch sharing its times, or lists of both; NaN marks a missing value."""
    series = _series(times, observations)
    start = float(series[0][0][0])
    for k, (t, _) in enumerate(series):
        if float(t[0]) != start:
            raise InputError(
                f"trajectory {k} begins at t={float(t[0]):g}, trajectory 0 at t={start:g}. A fractional equation "
                "remembers its past from the initial time on: shift the times so that all begin together, "
                "with NaN where the initial state was not measured."
            )
    union = torch.unique(torch.cat([t for t, _ in series]))
    widths = {v.shape[-1] for _, v in series}
    if len(widths) > 1:
        raise InputError(f"trajectories have different numbers of variables: {sorted(widths)}.")
    blocks = []
    for t, v in series:
        block = torch.full((len(union), v.shape[1], v.shape[2]), torch.nan, dtype=torch.float64)
        block[torch.searchsorted(union, t.contiguous())] = v
        blocks.append(block)
    values = torch.cat(blocks, 1)
    seen = ~values.isnan()
    if not bool(seen.any()):
        raise InputError("every observation is NaN; there is nothing to fit.")
    if bool(values.isinf().any()):
        raise InputError("observations contain infinity; mark missing values by NaN.")
    scale = torch.ones_like(values)
    if noise is not None and weights is not None:
        raise InputError("give noise= (standard deviations) or weights= (relative importance), not both.")
    if noise is not None:
        scale = 1 / _broadcast("noise", noise, values)
    elif weights is not None:
        scale = _broadcast("weights", weights, values).sqrt()
    return Data(union, values.nan_to_num(0.0), torch.where(seen, scale, 0.0), noise is not None)


def _series(times: Any, observations: Any) -> list[tuple[Tensor, Tensor]]:
    if isinstance(observations, list | tuple) and len(observations) and not isinstance(observations[0], float | int):
        many = isinstance(times, list | tuple) and not isinstance(times[0], float | int)
        if many and len(times) != len(observations):
            raise InputError(f"{len(times)} lists of times for {len(observations)} trajectories.")
        return [_one(times[k] if many else times, v, k) for k, v in enumerate(observations)]
    return [_one(times, observations, 0)]


def _one(times: Any, values: Any, k: int) -> tuple[Tensor, Tensor]:
    t, v = _tensor("times", times), _tensor("observations", values)
    if t.ndim != 1 or len(t) < 2:
        raise InputError(f"times of trajectory {k} must be one row of at least two numbers, got {tuple(t.shape)}.")
    if not bool(t.isfinite().all()) or not bool((t[1:] > t[:-1]).all()):
        raise InputError(f"times of trajectory {k} must be finite and increase; sort the rows and drop repeats.")
    if v.ndim not in (1, 2, 3) or v.shape[0] != len(t):
        raise InputError(
            f"observations of trajectory {k} have shape {tuple(v.shape)} for {len(t)} times; expected "
            "(times,), (times, variables) or (times, trajectories, variables)."
        )
    if v.ndim == 1:
        v = v[:, None]
    return t, v[:, None, :] if v.ndim == 2 else v


def _tensor(name: str, given: Any) -> Tensor:
    try:
        return torch.as_tensor(given).detach().to(device="cpu", dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"{name} must be numbers (a tensor, an array or a list): {error}") from error


def _broadcast(name: str, given: Any, values: Tensor) -> Tensor:
    given = _tensor(name, given)
    if given.ndim == 2 and given.shape == (values.shape[0], values.shape[2]):
        given = given[:, None, :]
    try:
        full = given.expand(values.shape)
    except RuntimeError:
        raise InputError(
            f"{name} has shape {tuple(given.shape)}, which does not fit observations of shape "
            f"{tuple(values.shape)} (times, trajectories, variables)."
        ) from None
    if not bool((full > 0).all()) or not bool(full.isfinite().all()):
        raise InputError(f"{name} must be positive and finite; mark missing observations by NaN instead.")
    return full


def observer(observe: Observe) -> Callable[[Tensor], Tensor]:
    """What is measured of a state of shape (..., variables)."""
    if observe is None:
        return lambda z: z
    if callable(observe):
        return observe
    index = [observe] if isinstance(observe, int) else list(observe)
    return lambda z: z[..., index]
