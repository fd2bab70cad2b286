"""How far off a step is, and how long the next one may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.policy import ADAPTIVE_CAUTION, ADAPTIVE_CONTRACTION, ADAPTIVE_GROWTH, ADAPTIVE_SHRINK
from ..errors import InputError


@dataclass(frozen=True)
class Tolerance:
    """Errors stay below about ``atol + rtol |z|``, in at most ``max_steps`` steps."""

    rtol: float
    atol: float
    max_steps: int

    @staticmethod
    def read(rtol: float | None, atol: float | None, max_steps: int, dtype: torch.dtype) -> Tolerance:
        """As a user gives it, for states of this dtype: without ``atol`` errors are relative to ``1 + |z|``."""
        rtol = 1e-4 if rtol is None else rtol
        atol = rtol if atol is None else atol
        for name, value in (("rtol", rtol), ("atol", atol), ("max_steps", max_steps)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"{name}={value!r} must be a positive number.")
        least = 64 * torch.finfo(dtype).eps
        if rtol < least:
            raise InputError(
                f"rtol={rtol:g} is lost in the rounding of {dtype}; use at least {least:.0e}, or z0.double()."
            )
        return Tolerance(float(rtol), float(atol), int(max_steps))

    def scale(self, *states: Tensor) -> Tensor:
        """The error that is allowed for each number."""
        largest = states[0].abs()
        for z in states[1:]:
            largest = torch.maximum(largest, z.abs())
        return self.atol + self.rtol * largest


@dataclass
class Trial:
    """A step that was tried: the state and slope at its end, and the error of each number.

    ``contraction`` is the factor by which a correction of an explicit step changes less than the one before.
    """

    state: Tensor
    slope: Tensor
    error: Tensor
    contraction: float = 0.0

    def excess(self, tolerance: Tolerance, before: Tensor) -> float:
        """The largest error in units of what is allowed; infinite where a number is not finite."""
        found = float((self.error / tolerance.scale(before, self.state)).max())
        return found if math.isfinite(found) else math.inf


def next_length(length: float, excess: float, power: float, contraction: float, order: float) -> float:
    """The length that would have met the tolerance, with caution, for an error that goes like ``length^power``.

    It keeps the contraction, which goes like ``length^order``, below what is stable.
    """
    factor = ADAPTIVE_CAUTION * max(excess, 1e-10) ** (-1 / power)
    stable = (ADAPTIVE_CONTRACTION / contraction) ** (1 / order) if contraction > 0 else math.inf
    return length * min(ADAPTIVE_GROWTH, max(ADAPTIVE_SHRINK, min(factor, max(stable, 0.5))))


def interpolation_error(slopes: list[Tensor], lengths: list[float], order: Tensor) -> Tensor:
    """What a slope that is no straight line on the newest cell adds: ``|v[t_{n-2}, t_{n-1}, t_n]| β h^{2+β}/Γ(β+3)``.

    That is the integral of the quadratic term against the kernel; on the first cell, where a solution behaves like
    ``t^β``, the difference of the trapezoid and the rectangle rule, ``h^β/Γ(β+2) |v_1 - v_0|``.
    """
    if len(slopes) < 3:
        return pair_error(slopes, lengths, order)
    (a, b, c), (before, h) = slopes[-3:], lengths[-2:]
    bend = ((c - b) / h - (b - a) / before) / (h + before)
    weight = order * h ** (2 + order) * torch.exp(-torch.lgamma(order + 3))
    return bend.abs() * weight.to(bend)[:, None]


def pair_error(slopes: list[Tensor], lengths: list[float], order: Tensor) -> Tensor:
    """The difference of the trapezoid and the rectangle rule on the newest cell."""
    weight = lengths[-1] ** order * torch.exp(-torch.lgamma(order + 2))
    return (slopes[-1] - slopes[-2]).abs() * weight.to(slopes[-1])[:, None]
