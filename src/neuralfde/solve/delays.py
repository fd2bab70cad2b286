"""Delayed states: ``func(t, z, lagged, *args)`` with ``lagged = z(t - τ)``, differentiable in the lag τ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import number
from ..base.structure import Structure
from ..base.torch_transforms import refuse_mapped
from ..errors import InputError, InputTypeError


@dataclass(frozen=True)
class Delays:
    """Which earlier states ``func`` gets.

    The state is linear between grid points, except at jumps, and constant before the first known time.

    Attributes:
        lags: float64 0-d tensors, not shorter than a step.
        single: whether ``func`` gets one state, not a tuple of states.
        structure: the structure of a state.
        times: the grid points since the start, float64.
        back: the times of known states before the start, negative, float64.
        before: these states, (times, groups, width).
        place: the index of the delayed states among the arguments of ``func``.
        jump: cells shorter than this are those in which the state jumps.
    """

    lags: tuple[Tensor, ...]
    single: bool
    structure: Structure
    times: Tensor
    back: Tensor
    before: Tensor
    place: int = 0
    jump: float = 0.0

    def at(self, n: int, rows: list[Tensor]) -> Any:
        """The delayed states at grid point ``n``, from the rows of all points before, (groups, width) each."""
        known = torch.cat([self.back, self.times[: max(n, 1)]])
        instants, count, found = known.detach(), len(self.back), []
        for lag in self.lags:
            time = self.times[n] - lag
            k = int(torch.searchsorted(instants, time.detach(), right=True)) - 1
            low = min(max(k, 0), len(known) - 2)
            if k < 0 or len(known) < 2:
                found.append(self._row(0, count, rows))
                continue
            share = (time - known[low]) / (known[low + 1] - known[low])
            if float((known[low + 1] - known[low]).detach()) < self.jump:  # the state before or after it, not between
                share = share.detach().round()
            a, b = self._row(low, count, rows), self._row(low + 1, count, rows)
            found.append(a + share.to(a) * (b - a))
        states = tuple(self.structure.unpack(row) for row in found)
        return states[0] if self.single else states

    def _row(self, k: int, count: int, rows: list[Tensor]) -> Tensor:
        return self.before[k] if k < count else rows[k - count].reshape(self.structure.row_shape)

    def arguments(self, args: tuple[Any, ...], n: int, rows: list[Tensor]) -> tuple[Any, ...]:
        """The arguments of ``func`` at grid point ``n``."""
        return (*args[: self.place], self.at(n, rows), *args[self.place + 1 :])


def lags_of(given: Any) -> tuple[tuple[Tensor, ...], bool]:
    """The lags as 0-d float64 tensors, and whether a single one was given that is not in a list."""
    single = isinstance(given, int | float) or (isinstance(given, Tensor) and given.ndim == 0)
    listed = isinstance(given, list | tuple) or (isinstance(given, Tensor) and given.ndim == 1)
    if not (single or listed) or (listed and len(given) == 0):
        raise InputTypeError(
            "lags= must be a positive number, or several as a list or 1-D tensor. A lag that depends on the state is "
            "not supported."
        )
    lags = []
    for lag in [given] if single else list(given):
        number("lags", lag, "")
        lags.append(torch.as_tensor(lag, dtype=torch.float64, device="cpu").reshape(()))
    refuse_mapped("lags=", *lags)
    if not all(0 < float(x.detach()) < math.inf for x in lags):
        raise InputError(f"lags= must be positive and finite, got {[float(x.detach()) for x in lags]}.")
    return tuple(lags), single
