"""How far off a step is, and how long the next one may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..base.checks import real, whole
from ..base.policy import ADAPTIVE_CAUTION, ADAPTIVE_GROWTH, ADAPTIVE_SHRINK
from ..errors import InputError


@dataclass(frozen=True)
class Tolerance:
    """Errors stay below about ``share · (atol + rtol |z|)``, in at most ``max_steps`` steps."""

    rtol: float
    atol: float
    max_steps: int
    share: float = 1.0

    @staticmethod
    def read(rtol: float | None, atol: float | None, max_steps: int, dtype: torch.dtype) -> Tolerance:
        """As a user gives it, for states of this dtype: without ``atol`` errors are relative to ``1 + |z|``."""
        rtol = 1e-4 if rtol is None else rtol
        atol = rtol if atol is None else atol
        real("rtol", rtol, above=0)
        real("atol", atol, above=0)
        whole("max_steps", max_steps, least=2, hint="A step and its two halves are compared.")
        least = 64 * torch.finfo(dtype).eps
        if rtol < least:
            raise InputError(
                f"rtol={rtol:g} is lost in the rounding of {dtype}; use at least {least:.0e}, or z0.double()."
            )
        return Tolerance(float(rtol), float(atol), max_steps)

    def times(self, factor: float) -> Tolerance:
        """A larger tolerance."""
        return replace(self, rtol=factor * self.rtol, atol=factor * self.atol)

    def scale(self, *states: Tensor) -> Tensor:
        """The error that is allowed for each number."""
        largest = states[0].abs()
        for z in states[1:]:
            largest = torch.maximum(largest, z.abs())
        return (self.share * self.rtol * largest).add_(self.share * self.atol)


@dataclass
class Trial:
    """A step that was tried: the state and slope at its end, and the error of each number in units of what is allowed.

    ``stiffness`` is ``w_0 |J|`` of an explicit step in units of what is stable.
    """

    state: Tensor
    slope: Tensor
    error: Tensor
    stiffness: float = 0.0

    @property
    def excess(self) -> float:
        """The largest error; infinite where a number is not finite."""
        found = float(self.error.max())
        return found if math.isfinite(found) else math.inf


def next_length(length: float, excess: float, power: float, stiffness: float, order: float) -> float:
    """The length that would have met the tolerance, with caution, for an error that goes like ``length^power``.

    It keeps the stiffness, which goes like ``length^order``, below 1.
    """
    factor = ADAPTIVE_CAUTION * max(excess, 1e-10) ** (-1 / power)
    stable = stiffness ** (-1 / order) if stiffness > 0 else math.inf
    return length * min(ADAPTIVE_GROWTH, max(ADAPTIVE_SHRINK, min(factor, max(stable, 0.5))))


def cell_error(rows: list[Tensor], lengths: list[float], linear: bool) -> Tensor:
    """How far a slope, or a state, is in the mean from what a rule takes it to be on the newest cell.

    A linear rule leaves ``h²/6 |v[t_{n-2}, t_{n-1}, t_n]|``, a constant one, or any on the first cell, half of the
    change.
    """
    change, h = rows[-1] - rows[-2], lengths[-1]
    if not linear or len(rows) < 3:
        return change.abs() / 2
    before = lengths[-2]
    return (change - (rows[-2] - rows[-3]) * (h / before)).abs() * (h / (6 * (h + before)))
