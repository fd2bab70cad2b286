"""The estimated error of a step, and the size of the next one."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

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
        """The tolerance as a user gives it, for states of this dtype; ``atol`` is ``rtol`` by default."""
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
        """A tolerance larger by this factor."""
        return replace(self, rtol=factor * self.rtol, atol=factor * self.atol)

    def scale(self, *states: Tensor) -> Tensor:
        """The allowed error of each element, for the largest of these states."""
        largest = reduce(torch.maximum, (z.abs() for z in states))
        return (self.share * self.rtol * largest).add_(self.share * self.atol)


@dataclass
class Trial:
    """A step that was tried: state and slope at its end, and the error of each element relative to what is allowed.

    ``stiffness`` is ``w_0 |J|`` of an explicit step, relative to the limit of stability. ``between`` is the largest
    error of continuous output so long after the beginning of the step: an implicit stage damps the error of a stiff
    slope at the end of a step, and nothing does in between.
    """

    state: Tensor
    slope: Tensor
    error: Tensor
    stiffness: float = 0.0
    between: Callable[[float], float] = lambda ahead: 0.0

    def first_lost(self, outputs: Sequence[float], begin: float, length: float) -> float | None:
        """The first of these times inside the step at which continuous output is too inaccurate; the error grows."""
        low, high = bisect.bisect_right(outputs, begin), bisect.bisect_left(outputs, begin + length)

        def lost(k: int) -> bool:
            return self.between(outputs[k] - begin) > 1

        if low == high or not lost(high - 1):
            return None
        return outputs[bisect.bisect_left(range(high), True, low, high - 1, key=lost)]

    @property
    def excess(self) -> float:
        """The largest error; infinite if an error is not finite."""
        found = float(self.error.max())
        return found if math.isfinite(found) else math.inf


def next_length(length: float, excess: float, power: float, stiffness: float, order: float) -> float:
    """The step size that would just have met the tolerance, less a margin, if the error grows like ``length^power``.

    It also keeps the stiffness, which grows like ``length^order``, below 1.
    """
    factor = ADAPTIVE_CAUTION * max(excess, 1e-10) ** (-1 / power)
    stable = stiffness ** (-1 / order) if stiffness > 0 else math.inf
    return length * min(ADAPTIVE_GROWTH, max(ADAPTIVE_SHRINK, min(factor, max(stable, 0.5))))


def cell_error(rows: list[Tensor], lengths: list[float], linear: bool) -> Tensor:
    """The mean distance of a slope (or a state) from its approximation on the newest cell, with its sign.

    For a linear rule it is ``h²/6 v[t_{n-2}, t_{n-1}, t_n]``, a divided difference; for a constant rule, and on the
    first cell, half of the change.
    """
    change, h = rows[-1] - rows[-2], lengths[-1]
    if not linear or len(rows) < 3:
        return change / 2
    before = lengths[-2]
    return (change - (rows[-2] - rows[-3]) * (h / before)) * (h / (6 * (h + before)))
