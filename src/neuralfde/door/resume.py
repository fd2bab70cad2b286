"""Going on with a solve where it stopped: the slopes so far enter the new rows as a known sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.grid import Request, request
from ..errors import InputError
from ..history import Full, History, Window
from ..schemes import Scheme
from ..weights.kernel import Kernel


@dataclass(frozen=True)
class State:
    """Where a solve stopped: its slopes ``v_0 … v_{N-1}``, its first and its last row; cut off from any gradient.

    It holds N rows: the past of a fractional equation does not fade, so that going on exactly needs all of it.
    """

    time: float
    step: float
    method: Scheme
    first: Tensor
    last: Tensor
    slopes: Tensor

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self.slopes.shape[0]

    def request(self, t: float | Tensor, step: float | None, steps: int | None, scheme: Scheme) -> Request:
        """The grid of the continuation; ``t`` is the new end, or times that begin where the last solve stopped."""
        if scheme != self.method:
            raise InputError(
                f"the solve to be resumed was made with {self.method}, this one asks for {scheme}. A method's weights "
                "belong to all of its past; use the same method, or start anew."
            )
        if isinstance(t, Tensor) and t.ndim > 0:
            if abs(float(t[0]) - self.time) > 1e-6 * max(1.0, abs(self.time)):
                raise InputError(f"t begins at {float(t[0]):g}, but the solve to be resumed stopped at {self.time:g}.")
            found = request(t, step if steps is None and step is not None else self._step(steps), None)
            return found
        if float(t) <= self.time:
            raise InputError(f"t={float(t):g} is not after {self.time:g}, where the solve to be resumed stopped.")
        times = torch.tensor([self.time, float(t)], dtype=torch.float64)
        found = request(times, step if step is not None else self._step(steps), None)
        if abs(found.grid.step - self.step) > 1e-6 * self.step:
            raise InputError(
                f"the solve to be resumed has step {self.step:g}, this one {found.grid.step:g}; one grid runs through "
                "all of a fractional history. Leave step= out to keep it."
            )
        return Request(found.grid, found.positions[-1:], True)

    def _step(self, steps: int | None) -> float:
        if steps is not None:
            raise InputError("a resumed solve keeps its step; leave steps= out and give the new end time as t.")
        return self.step

    def known_rows(self, kernel: Kernel, history: History, count: int) -> Tensor:
        """What the slopes so far contribute to rows N … N+count-1: (count, sums, groups, width), with z_0."""
        past, like = self.steps, self.slopes
        weights = kernel.weights.detach().to(like)
        start = None if kernel.start is None else kernel.start.detach().to(like)
        if isinstance(history, Window):
            lag = torch.arange(weights.shape[1], device=like.device)
            weights = torch.where((lag <= history.length)[:, None], weights, 0.0)
            if start is not None:
                lag = lag - torch.arange(start.shape[0], device=like.device)[:, None]
                start = torch.where((lag <= history.length)[..., None], start, 0.0)
        slopes = like.clone()
        slopes[: kernel.first] = 0
        memory = Full(block=count).forward(weights, past + count - 1, self.first)
        memory.inputs[0].buffer[:past].copy_(slopes)
        rows = memory.product(past, count, 0, past) + self.first
        if start is not None:
            for j in range(min(start.shape[0], past)):
                rows[:, 0] += start[j, past : past + count, :, None] * like[j]
        rows[0] = self.last
        return rows

    def extended(self, blocks: list[Tensor], last: Tensor, time: float) -> State:
        """The state after further steps, whose slopes come by blocks."""
        return State(time, self.step, self.method, self.first, last, torch.cat([self.slopes, *blocks]))
