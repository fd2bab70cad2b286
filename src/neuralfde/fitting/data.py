"""Measurements as a user has them, laid out as one rectangle: (times, trajectories, observed variables)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import reals
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


@dataclass(frozen=True)
class _Series:
    """Trajectories that share their times: (T,), (T, B, m), and how many axes the values were given with."""

    times: Tensor
    values: Tensor
    axes: int


def read_data(times: Any, observations: Any, noise: Any, weights: Any) -> Data:
    """One trajectory, a batch sharing its times, or lists of both; NaN marks a missing value."""
    times, observations, noise, weights = _listed(times, observations, noise, weights)
    series = _all_series(times, observations)
    start = float(series[0].times[0])
    for k, one in enumerate(series):
        if float(one.times[0]) != start:
            raise InputError(
                f"trajectory {k} begins at t={float(one.times[0]):g}, trajectory 0 at t={start:g}. A fractional "
                "equation remembers its past from the initial time on: shift the times so that all begin together, "
                "with NaN where the initial state was not measured."
            )
    widths = {one.values.shape[-1] for one in series}
    if len(widths) > 1:
        raise InputError(
            f"trajectories have different numbers of variables: {sorted(widths)}. Give all of "
            "them the same ones, with NaN where one was not measured."
        )
    union, values = _rectangle(series, [one.values for one in series])
    if bool(values.isinf().any()):
        raise InputError("observations contain infinity; mark missing values by NaN.")
    seen = ~values.isnan()
    if not bool(seen.any()):
        raise InputError("every observation is NaN; there is nothing to fit. NaN is only for what is missing.")
    if noise is not None and weights is not None:
        raise InputError("give noise= (standard deviations) or weights= (relative importance), not both.")
    scale = torch.ones_like(values)
    if noise is not None:
        scale = 1 / _alike("noise", noise, series, seen)
    elif weights is not None:
        scale = _alike("weights", weights, series, seen).sqrt()
    squarable("observations, divided by their noise," if noise is not None else "observations", (scale * values)[seen])
    return Data(union, values.nan_to_num(0.0), torch.where(seen, scale, 0.0), noise is not None)


def _rectangle(series: Sequence[_Series], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The union of all times, and the values there, side by side; NaN at times of other trajectories."""
    union = torch.unique(torch.cat([one.times for one in series]))
    blocks = []
    for one, v in zip(series, values, strict=True):
        block = torch.full((len(union), *v.shape[1:]), torch.nan, dtype=torch.float64)
        block[torch.searchsorted(union, one.times.contiguous())] = v
        blocks.append(block)
    return _even(union), torch.cat(blocks, 1)


def _even(t: Tensor) -> Tensor:
    """Equally spaced times that came in float32 without its rounding, so that the solver's grid can meet them."""
    even = torch.linspace(float(t[0]), float(t[-1]), len(t), dtype=torch.float64)
    rounding = torch.finfo(torch.float32).eps * float(t.abs().max())
    return even if torch.equal(t.float().double(), t) and bool(((even - t).abs() <= rounding).all()) else t


def _listed(times: Any, *others: Any) -> tuple[Any, ...]:
    """Nested tensors as lists, and likewise times (trajectories, times) with NaN at the ends of shorter ones."""
    given = tuple(list(x.unbind()) if isinstance(x, Tensor) and x.is_nested else x for x in (times, *others))
    if isinstance(given[0], list) or getattr(times, "ndim", 1) != 2:
        return given
    times = doubles("times", times)
    ends = times.isfinite().sum(1).tolist()
    return tuple(
        [row[:n] for row, n in zip(x, ends, strict=True)] if getattr(x, "shape", ())[:2] == times.shape else x
        for x in (times, *given[1:])
    )


def _nested(given: Any) -> bool:
    """A list of lists or of arrays."""
    return _many(given) or (isinstance(given, list | tuple) and any(isinstance(item, list | tuple) for item in given))


def _many(given: Any) -> bool:
    """A list of arrays, one for each trajectory. A list of numbers, nested or not, is one array, as for NumPy."""
    return isinstance(given, list | tuple) and any(getattr(item, "ndim", 0) > 0 for item in given)


def _all_series(times: Any, observations: Any) -> list[_Series]:
    if _nested(times):
        if not isinstance(observations, list | tuple) or len(times) != len(observations):
            count = len(observations) if isinstance(observations, list | tuple) else "no list"
            raise InputError(f"{len(times)} lists of times for {count} trajectories.")
        return [_series(t, v, k) for k, (t, v) in enumerate(zip(times, observations, strict=True))]
    if _many(observations):
        return [_series(times, v, k) for k, v in enumerate(observations)]
    return [_series(times, observations, 0)]


def _series(times: Any, values: Any, k: int) -> _Series:
    t, v = doubles("times", times), doubles("observations", values)
    if t.ndim != 1 or len(t) < 2:
        raise InputError(f"times of trajectory {k} must be one row of at least two numbers, got {tuple(t.shape)}.")
    if not bool(t.isfinite().all()) or not bool((t[1:] > t[:-1]).all()):
        raise InputError(f"times of trajectory {k} must be finite and increase; sort the rows and drop repeats.")
    if v.ndim not in (1, 2, 3) or v.shape[0] != len(t):
        raise InputError(
            f"observations of trajectory {k} have shape {tuple(v.shape)} for {len(t)} times; expected "
            "(times,), (times, variables) or (times, trajectories, variables). Several trajectories as lists of "
            "numbers need a list of times for each."
        )
    return _Series(t, v if v.ndim == 3 else v.reshape(len(t), 1, -1), v.ndim)


def squarable(name: str, given: Tensor) -> None:
    """Refuse numbers whose squares, which a fit adds up, have no floating-point number."""
    largest = float(given.abs().max())
    if largest > 1e140 or 0 < largest < 1e-140:
        raise InputError(f"{name} are up to {largest:.3g}, and their squares are beyond float64. Choose another unit.")


def doubles(name: str, given: Any) -> Tensor:
    """Real numbers in the arithmetic of a fit."""
    found = reals(name, given, hint="Make real and imaginary part two variables.")
    return found.detach().to(device="cpu", dtype=torch.float64)


def _alike(name: str, given: Any, series: Sequence[_Series], seen: Tensor) -> Tensor:
    """Numbers given in the layout of the observations, (T, B, m), and checked where something was measured."""
    separate = _many(given) or (len(series) > 1 and _nested(given))
    parts = list(given) if separate else [given] * len(series)
    if len(parts) != len(series):
        raise InputError(f"{name} has {len(parts)} entries for {len(series)} trajectories.")
    full = _rectangle(series, [_expanded(name, part, one) for part, one in zip(parts, series, strict=True)])[1]
    if not bool(((full > 0) & full.isfinite())[seen].all()):
        raise InputError(f"{name} must be positive and finite; mark missing observations by NaN instead.")
    return full


def _expanded(name: str, given: Any, one: _Series) -> Tensor:
    """A number, one for each variable, one for each time, or all of them, as (T, B, m)."""
    array, shape = doubles(name, given), one.values.shape
    if array.ndim == 1 and shape[2] == 1:
        array = array[:, None, None]
    elif array.ndim == 2:
        array = array[:, None, :]
    try:
        return array.expand(shape)
    except RuntimeError:
        asked = shape if one.axes == 3 else shape[:1] if one.axes == 1 else (shape[0], shape[2])
        raise InputError(
            f"{name} has shape {tuple(array.shape)}, which does not fit observations of shape {tuple(asked)}. "
            "Pass a number, one for each variable, or an array of that shape."
        ) from None


def variable_names(given: Sequence[str] | None, data: Data) -> tuple[str, ...]:
    """What the observed variables are called."""
    count = data.values.shape[-1]
    if given is None:
        return tuple(f"variable {k}" for k in range(count))
    if not isinstance(given, list | tuple) or len(given) != count:
        raise InputError(f"variables={given!r}: {count} names are needed, one for each observed variable, in a list.")
    return tuple(given)


def observer(observe: Observe) -> Callable[[Tensor], Tensor]:
    """What is measured of a state of shape (..., variables)."""
    if observe is None:
        return _whole
    if callable(observe):
        return observe
    try:
        index = [operator.index(k) for k in ([observe] if isinstance(observe, int) else observe)]
    except TypeError:
        raise InputTypeError(
            f"observe={observe!r:.60} must be an index, a list of them, or a function of the state."
        ) from None
    return functools.partial(_variables, index=index)


def _whole(z: Tensor) -> Tensor:
    return z


def _variables(z: Tensor, index: list[int]) -> Tensor:
    count = z.shape[-1]
    if not all(-count <= k < count for k in index):
        raise InputError(f"observe={index}: the state has {count} variables; use indices from 0 to {count - 1}.")
    return z[..., index]


@dataclass(frozen=True)
class OwnTimes:
    """Trajectories measured at different times: each at its own, in place of all at the union of them.

    Times (B, K), and values and scales (K, B, m) there. What fills a row up is the last time, with scale zero, so that
    every part of the trajectories is solved on the grid of all of them.
    """

    times: Tensor
    values: Tensor
    scale: Tensor

    def of(self, rows: Tensor) -> OwnTimes:
        """Those of some trajectories."""
        return OwnTimes(self.times[rows], self.values[:, rows], self.scale[:, rows])


def own_times(data: Data) -> OwnTimes | None:
    """None where trajectories share most of their times."""
    seen = data.seen.any(-1).T.clone()
    seen[:, 0] = True  # the initial time
    counts = seen.sum(1)
    most = int(counts.max()) + 1
    if 2 * most > len(data.times):
        return None
    where = seen.int().argsort(dim=1, descending=True, stable=True)[:, :most]  # those first, in the order of time
    there = torch.arange(most) < counts[:, None]
    where = torch.where(there, where, len(data.times) - 1)
    rows = torch.arange(len(where))[:, None]
    scale = torch.where(there[..., None], data.scale.transpose(0, 1)[rows, where], 0.0)
    values = data.values.transpose(0, 1)[rows, where]
    return OwnTimes(data.times[where], values.transpose(0, 1), scale.transpose(0, 1))
