"""Times given as a tensor: increasing times (1-D), or one row of times per sample (2-D)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError
from .checks import valued
from .torch_private import is_followed


def increasing(t: Tensor, name: str) -> Tensor:
    """Increasing times (1-D), or a single time (0-d), checked: in float64 on the CPU."""
    _refuse(t, name)
    if t.ndim > 1:
        raise InputError(
            f"{name} must be a number, a 1-D tensor of times or (batch, times), got a tensor of shape {tuple(t.shape)}."
        )
    times = t.detach().double().cpu()
    if not bool(torch.isfinite(times).all()):
        raise InputError(f"{name} contains NaN or infinity; every time must be finite.")
    if times.ndim > 0 and times.shape[0] < 2:
        raise InputError(
            f"{name} needs at least two times, the initial one and one more; a single end time is a number."
        )
    if times.ndim > 0 and not bool((late := times[1:] > times[:-1]).all()):
        k = int((~late).nonzero()[0])
        raise InputError(
            f"{name} must increase, but {name}[{k + 1}]={times[k + 1]:g} comes after {name}[{k}]={times[k]:g}. "
            "Sort the times and drop repeats; a Caputo equation runs forward from its initial time."
        )
    return times


def ends_of_series(t: Tensor) -> list[float]:
    """The initial time and the latest one of ``t`` (batch, times), each row of which has the times of a sample."""
    _refuse(t, "t")
    t = t.detach().double().cpu()
    gone, rows = t.isnan(), t.nan_to_num(math.inf)
    if t.shape[1] < 2 or bool((rows[:, 1:] < rows[:, :-1]).any()) or bool(gone[:, 0].any() | t.isinf().any()):
        raise InputError(
            "each row of t (batch, times) must have at least the initial time and one more, must not decrease, and "
            "must be finite: NaN fills the rows of shorter series at their ends."
        )
    if not bool((t[:, 0] == t[0, 0]).all()):
        raise InputError(
            "all rows of t (batch, times) begin with the same initial time, that of z0, since the equation remembers "
            "its past from there on; shift the times of each sample, or put the initial time before them."
        )
    start, end = float(t[0, 0]), float(t[~gone].max())
    if end <= start:
        raise InputError(f"t (batch, times) ends at its initial time {start:g}; at least one sample needs a later one.")
    return [start, end]


def times_of_series(t: Tensor) -> Tensor:
    """The same as (times, samples), in float64 on the CPU; after the end of a series its last time is repeated."""
    own = t.detach().double().cpu().T
    return torch.where(own.isnan(), own.nan_to_num(-math.inf).cummax(0).values, own)


def _refuse(t: Tensor, name: str) -> None:
    """Raise unless the times are real, have values and get no gradient."""
    valued(name, t)
    if is_followed(t):
        raise InputError(
            f"{name} requires grad, or a transform follows it, but the times define the grid and get no gradient. "
            "Learn a time scale instead: D^β z = T^β f on [0, 1] has the same solution at T. Pass t.detach()."
        )
    if t.is_complex() or t.dtype == torch.bool:
        raise InputTypeError(f"{name} must be real, got a tensor of dtype {t.dtype}.")
