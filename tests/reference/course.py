"""The textbook loop on any mesh for solves whose course is not plain: jumps, an observed past, delays, linear parts.

As everywhere here, the formulas are written out: full matrices of weights, one sum after the other, autograd alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import cells
from .limit import limited
from .loop import implicit
from .weights import Weights, graded, uniform
from .window import observed

#: Schemes whose slope is defined between nodes: as at the left end of a cell, as at the right end, or on a line.
RULES = {"predictor": "left", "predictor-implicit": "right", "trapezoid": "hats", "abm": "hats"}
#: The step before a jump, as a share of the interval.
SHORT = 1e-12
Numbers = tuple[Tensor, Any]


class Course:
    """``D^β z = A z + func(t, z, *lagged)`` on a mesh that begins at 0; states, slopes, and the state at any time.

    Args:
        func: the right-hand side; with ``lags`` it gets the earlier states behind ``z``.
        z0: of any shape; numbers in double precision, real or complex.
        mesh: where steps end, float64 (steps + 1,), beginning with 0.
        order: 0-d, or one for each number along the last axis.
        method: its name; ``even``: by its weights on a uniform grid.
        jumps: times, and values stacked first, or a function of the state before, or one for each time.
        past: negative times that end with 0, and states stacked first.
        lags: numbers or 0-d tensors.
        matrix: ``A``, which acts on the last axis of the state.
    """

    def __init__(
        self,
        func: Callable[..., Tensor],
        z0: Tensor,
        mesh: Tensor,
        order: Tensor,
        method: str,
        even: bool,
        jumps: Numbers | None = None,
        past: tuple[Tensor, Tensor] | None = None,
        lags: Sequence[Any] = (),
        matrix: Tensor | None = None,
    ) -> None:
        self.func, self.z0, self.order, self.past = func, z0, order.reshape(1, -1), past
        self.method, self.lags, self.matrix = method, lags, matrix
        self.jumps, self.values = jumps, [] if jumps is None or callable(jumps[1]) else list(jumps[1])
        self.by = [jumps[1]] * len(jumps[0]) if jumps is not None and callable(jumps[1]) else []
        if self.values and callable(self.values[0]):
            self.by, self.values = self.values, []
        self.mesh = self._moving(mesh)
        self.states, self.slopes = [z0], [self._slope(0, z0)]
        weights = self._weights(even)
        for n in range(1, len(mesh)):
            self._step(n, weights.matrix, weights.stage)

    def _moving(self, mesh: Tensor) -> Tensor:
        """The mesh, of which the points where a jump comes back move with the lag, each by one of ``moves``."""
        points = list(mesh)
        moved = [(j, lag) for k, lag in self._echoes(mesh) if isinstance(lag, Tensor) for j in (k - 1, k)]
        self.moves = [lag - lag.detach() for _, lag in moved]
        for (j, _), move in zip(moved, self.moves, strict=True):
            points[j] = points[j] + move
        return torch.stack(points)

    def _echoes(self, mesh: Tensor) -> list[tuple[int, Any]]:
        """Where jumps come back: the point behind a short step, and the lag."""
        found: dict[int, Any] = {}
        for lag in self.lags:
            for at in self.jumps[0] if self.jumps is not None else ():
                k = int((mesh - float(at) - float(torch.as_tensor(lag).detach())).abs().argmin())
                short = k > 0 and mesh[k] - mesh[k - 1] < 1.5 * SHORT * mesh[-1]
                exact = (mesh[k] - float(at) - float(torch.as_tensor(lag).detach())).abs() < 0.1 * SHORT
                if short and exact and not any(float(mesh[k]) == float(x) for x in self.jumps[0]):
                    found.setdefault(k, lag)
        return list(found.items())

    def _weights(self, even: bool) -> Weights:
        times = self.mesh[:, None]
        if even:
            return uniform(self.method, self.order, times[-1] / (len(times) - 1), len(times) - 1)
        return graded(self.method, self.order, times)

    def _step(self, n: int, matrix: Tensor, stage: str) -> None:
        if self.jumps is not None and self.by:
            reached = sum(t <= float(self.mesh[n].detach()) for t in self.jumps[0])
            if reached > len(self.values):
                self.values.append(self.by[len(self.values)](self._before(n)))
        c, *more = (self.base(self.mesh[n]) + weighted(row[n, :n], self.slopes) for row in matrix)
        w = matrix[0, n, n]
        if stage == "extrapolated":
            z, v = self._imex(n, c, more[0], w)
        else:
            if stage == "explicit":
                z = c
            elif stage == "corrected":
                z = c + w * self._slope(n, more[0])
            else:
                z = implicit(lambda x: self._slope(n, x), c, w)
            v = self._slope(n, z)
        self.states.append(z)
        self.slopes.append(v)

    def _before(self, n: int) -> Tensor:
        """The state at a jump without it: of a solve that has no point just before."""
        assert self.jumps is not None
        mesh, k = torch.cat([self.mesh[: n - 1], self.mesh[n : n + 1]]).detach(), len(self.values)
        behind = [int((mesh == at).nonzero()) for at in self.jumps[0][:k]] + [j for j, _ in self._echoes(mesh)]
        for j in behind:  # the short step before a jump is a share of the interval
            mesh[j - 1] = mesh[j] - SHORT * mesh[-1]
        earlier = (self.jumps[0][:k], self.values) if k else None
        given = (self.func, self.z0, mesh, self.order, self.method, False)
        return Course(*given, earlier, self.past, self.lags, self.matrix).states[-1]

    def _imex(self, n: int, c: Tensor, p: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Implicit in ``A``: ``z = c + w v`` with ``v = A z + f``, solved for ``v``; ``(z - c) / w`` would cancel."""
        v = self.func(self.mesh[n], p, *self._lagged(n))
        if self.matrix is not None:
            one = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
            right = v.unsqueeze(-1) + self.matrix @ c.unsqueeze(-1)
            v = torch.linalg.solve(one - w[..., None] * self.matrix, right).squeeze(-1)
        return c + w * v, v

    def _slope(self, n: int, z: Tensor) -> Tensor:
        v = self.func(self.mesh[n], z, *self._lagged(n))
        return v if self.matrix is None else v + (self.matrix @ z.unsqueeze(-1)).squeeze(-1)

    def _lagged(self, n: int) -> list[Any]:
        """Earlier states, on lines between what is known; constant before that."""
        if not self.lags:
            return []
        times, states = list(self.mesh[: max(n, 1)]), self.states[: max(n, 1)] if n else [self.z0]
        if self.past is not None:
            times, states = [*self.past[0][:-1], *times], [*self.past[1][:-1], *states]
        found = []
        for lag in self.lags:
            t = self.mesh[n] - lag
            if len(times) == 1 or t < times[0]:
                found.append(states[0])
                continue
            k = max(k for k in range(len(times) - 1) if k == 0 or times[k] <= t)
            share = (t - times[k]) / (times[k + 1] - times[k])
            if self.jumps is not None and times[k + 1] - times[k] < 1.5 * SHORT * self.mesh[-1]:
                share = share.detach().round()  # before the jump or behind it
            found.append(states[k] + share * (states[k + 1] - states[k]))
        return [found[0] if len(found) == 1 else tuple(found)]

    def base(self, t: Tensor) -> Tensor:
        """What is known without a slope: the initial state, or the past, and the jumps so far."""
        found = self.z0 if self.past is None else observed(self.order[0], *self.past, t)
        if self.jumps is None:
            return found
        return found + sum(v for at, v in zip(self.jumps[0], self.values, strict=False) if at <= float(t.detach()))

    def at(self, t: Tensor | float) -> Tensor:
        """The state at any time: the integral of the slope as the scheme has it; else on a line."""
        t = torch.as_tensor(t, dtype=torch.float64)
        n = min(int(torch.searchsorted(self.mesh.detach(), t.detach(), right=True)) - 1, len(self.mesh) - 2)
        share = (t - self.mesh[n]) / (self.mesh[n + 1] - self.mesh[n])
        for node, near in ((n, 0.0), (n + 1, 1.0)):
            if abs(float(share.detach()) - near) < 1e-9:
                return self.states[node]
        left, right = self.states[n], self.states[n + 1]
        if self.method not in RULES:
            return left + share * (right - left)
        if self.method == "trapezoid":
            return limited(self._integral(n, t), self.states, list(self.mesh), n, share)
        if self.method != "abm":
            return self._integral(n, t)
        a, b = left - self._integral(n, self.mesh[n]), right - self._integral(n + 1, self.mesh[n + 1])
        return self._integral(n, t) + a + share * (b - a)

    def _integral(self, n: int, t: Tensor) -> Tensor:
        """Up to a time in the cell behind node ``n``, or that node."""
        inside, rule = bool(t > self.mesh[n]), RULES[self.method]
        times = torch.cat([self.mesh[: n + 1], t[None]]) if inside else self.mesh[: n + 1]
        if len(times) == 1:
            return self.base(t)
        table = (
            cells.trapezoid_on(self.order, times[:, None])
            if rule == "hats"
            else cells.rectangle_on(self.order, times[:, None], rule == "right")
        )
        row, slopes = table[-1], self.slopes[: len(times)]
        if inside:
            # the last entry belongs to the slope at this very time, which the rule takes from the nodes around
            share = 1.0 if rule == "right" else (t - self.mesh[n]) / (self.mesh[n + 1] - self.mesh[n])
            row = torch.cat([row[:n], (row[n] + (1 - share) * row[-1])[None], (share * row[-1])[None]])
        return self.base(t) + weighted(row, slopes)


def weighted(row: Tensor, slopes: list[Tensor]) -> Tensor:
    """``Σ_j w_j v_j``; each weight is one number, or one for each along the last axis."""
    past = torch.stack(slopes)
    return (row.reshape(len(row), *[1] * (past.ndim - 2), -1) * past).sum(0)


#: Where the cubic that stands for the state inside a cell meets it: Chebyshev's points, as shares of the cell.
SHARES = 0.5 - 0.5 * torch.cos((2 * torch.arange(4, dtype=torch.float64) + 1) * torch.pi / 8)


def crossing(course: Course, value: Callable[[Tensor, Tensor], Tensor], n: int) -> tuple[Tensor, Tensor]:
    """When ``value(t, z)`` is zero behind node ``n``, and the state then, both differentiable."""
    low, high = course.mesh[n], course.mesh[n + 1]
    jumps = [float(at) for at in course.jumps[0]] if course.jumps is not None else []
    if any(-1e-15 <= at - float(x) <= 1.5 * SHORT * float(course.mesh[-1]) for at in jumps for x in (low, high)):
        unit = 2.0 ** (math.floor(math.log2(float(high - low))) - 4)  # away from a jump, at multiples of this
        low, high = (
            torch.tensor(x, dtype=torch.float64)
            for x in (math.ceil(float(low) / unit) * unit, math.floor(float(high) / unit) * unit)
        )
    length = high - low
    samples = torch.stack([course.at(low + length * s) for s in SHARES])

    def state(share: Tensor) -> Tensor:
        weights = [torch.stack([(share - y) / (x - y) for y in SHARES if y != x]).prod() for x in SHARES]
        return torch.tensordot(torch.stack(weights).to(samples.dtype), samples, 1)

    def at(share: Tensor) -> Tensor:
        return value(low + length * share, state(share))

    a, b = torch.tensor(-0.5, dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(60):
            middle = (a + b) / 2
            a, b = (middle, b) if at(a) * at(middle) > 0 else (a, middle)
    here = ((a + b) / 2).requires_grad_()
    (slope,) = torch.autograd.grad(at(here), here, retain_graph=True)
    here = here.detach()
    here = here - (at(here) - at(here).detach()) / slope
    return low + length * here, state(here)
