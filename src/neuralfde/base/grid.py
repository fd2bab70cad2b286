"""Grids (uniform, graded, or any mesh) and requests: where steps end, and at which times the caller wants states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError
from .caches import Cache, to_device
from .checks import installed_memory, is_real, real, reals, whole
from .policy import STEP_BYTES, TABLE_NUMBERS, WHOLE_SLACK
from .times import ends_of_series, increasing, times_of_series
from .torch_private import outside_of_transforms, transforms_are_active

_REQUESTS: Cache[Request] = Cache("grids of steps", 32)


@dataclass(frozen=True)
class Grid:
    """The points ``t_n = start + T (n/N)^r`` for ``n = 0 … N``; r = 1 is the uniform grid, ``start + n * step``.

    Any other mesh is given by ``points``, the times since the start, float64 (steps + 1,). If some of them get
    gradients, ``moving`` has the same times with their graph.
    """

    start: float
    step: float
    steps: int
    grading: float = 1.0
    points: Tensor | None = field(default=None, compare=False, repr=False)
    moving: Tensor | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def through(start: float, elapsed: Tensor, moving: Tensor | None = None) -> Grid:
        """The grid with these times since the start, (steps + 1,), as its points."""
        count, end = elapsed.shape[0] - 1, float(elapsed[-1])
        return Grid(start, end / count, count, points=elapsed, moving=moving)

    @property
    def uniform(self) -> bool:
        """Whether all steps have the same size."""
        return self.grading == 1 and self.points is None

    @property
    def cause(self) -> str:
        """Why it is not uniform, in terms of the caller's arguments."""
        return "a mesh (grid=, jumps=, a tolerance)" if self.points is not None else f"grading={self.grading:g}"

    @property
    def end(self) -> float:
        """The last point."""
        return self.start + self.steps * self.step

    @cached_property
    def elapsed(self) -> Tensor:
        """The time since the start of all grid points, float64 (steps + 1,)."""
        if self.points is not None:
            return self.points
        # grids are cached, and what is computed in a transform belongs to it
        with outside_of_transforms() if transforms_are_active() else nullcontext():
            n = torch.arange(self.steps + 1, dtype=torch.float64)
            if self.grading == 1:
                return n * self.step
            return self.steps * self.step * (n / self.steps) ** self.grading

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest step size, computed in parts, without a table of all."""
        parts = [self.elapsed[k : k + (1 << 16) + 1].diff().aminmax() for k in range(0, self.steps, 1 << 16)]
        return min(float(x.min) for x in parts), max(float(x.max) for x in parts)

    def times(self, like: Tensor) -> Tensor:
        """All grid points, in the dtype and on the device of ``like``; shape (steps + 1,).

        This is a copy, so that a ``func`` that writes to its time does not change the cached table.
        """
        contents = ("grid", self.start, self.step, self.steps, self.grading) if self.points is None else None
        return to_device(self.start + self.elapsed if self.start else self.elapsed, like, contents).clone()

    def positions(self, times: list[float], eps: float = torch.finfo(torch.float64).eps) -> tuple[float, ...]:
        """Where these times lie on the grid: the index of the cell, plus the fraction of the cell that has passed.

        On a mesh, a time that differs from a point only by rounding (``eps``) is at that point. A time after the end
        is extrapolated from the last cell.
        """
        if self.uniform:
            start, step = self.start, self.step
            return tuple([(x - start) / step for x in times])
        since = torch.tensor(times, dtype=torch.float64) - self.start
        low = (torch.searchsorted(self.elapsed, since, right=True) - 1).clamp(0, self.steps - 1)
        left, right = self.elapsed[low], self.elapsed[low + 1]
        slack, share = 4 * eps * (since.abs() + 2 * abs(self.start)), (since - left) / (right - left)
        share = torch.where((since - left).abs() <= slack, 0.0, share)
        share = torch.where((since - right).abs() <= slack, 1.0, share)
        return tuple((low + share).tolist())

    def snapped(self, positions: Tensor) -> Tensor:
        """Positions, but those that differ from a grid point only by rounding are at that point; on a mesh, where
        :meth:`positions` has seen to that, as they are."""
        near, slack = positions.round(), WHOLE_SLACK if self.uniform else 0.0
        return torch.where((positions - near).abs() <= slack * positions.abs().clamp(1, 1e3), near, positions)

    def at(self, positions: Tensor) -> Tensor:
        """The inverse of :meth:`positions`, as times since the start; any shape, float64."""
        return positions * self.step if self.uniform else _between(self.elapsed, positions)

    def held(self, positions: Tensor) -> Tensor:
        """The positions of times that stay fixed while the points around them move; differentiable in the points."""
        if self.moving is None:
            return positions
        low = positions.long().clamp(max=self.steps - 1)
        share = (self.at(positions) - self.moving[low]) / (self.moving[low + 1] - self.moving[low])
        return torch.where(positions > low, low + share, positions)


@dataclass(frozen=True)
class Mesh:
    """The grid as the weights see it: each group of elements has its own time, ``horizon · (t - t_0)``.

    Attributes:
        steps: the number of steps.
        elapsed: (steps + 1,), the times since the start, not yet multiplied by the horizon.
        start: the initial time, not multiplied by the horizon.
        uniform: whether all steps have the same size.
        horizon: (groups,), the time scale of each group.
        velocity: whether ``z'_0`` is given too.
        rates: the rates of the exponentials that approximate the kernel; None if all weights are needed.
    """

    steps: int
    elapsed: Tensor
    start: float
    uniform: bool
    horizon: Tensor
    velocity: bool
    rates: Any = None

    @property
    def step(self) -> Tensor:
        """The (mean) step size of each group, (groups,)."""
        return self.elapsed[-1] / self.steps * self.horizon

    @property
    def times(self) -> Tensor:
        """The times since the start of all points in each group, (steps + 1, groups)."""
        return self.elapsed[:, None] * self.horizon

    def at(self, positions: Tensor) -> Tensor:
        """The times since the start, (times, groups), at positions in steps, (times, 1 or groups)."""
        return _between(self.elapsed, positions) * self.horizon


@dataclass(frozen=True)
class Request:
    """What the caller asked for: the grid, and the positions of the output times on it, in steps.

    If each sample has its own output times, ``own`` has their positions, float64 (times, samples).
    """

    grid: Grid
    positions: tuple[float, ...]
    terminal: bool
    own: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def series(self) -> bool:
        """Whether each sample has its own times."""
        return self.own is not None

    @property
    def all_positions(self) -> Tensor:
        """The positions of all output times, float64 (times,), or (times, samples)."""
        return torch.tensor(self.positions, dtype=torch.float64) if self.own is None else self.own

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The grid index of each output time that lies on the grid; -1 for the others."""
        found = self.grid.snapped(torch.tensor(self.positions, dtype=torch.float64))
        return tuple(torch.where(found == found.round(), found, -1.0).long().tolist())

    @cached_property
    def between(self) -> Tensor:
        """The positions of output times between grid points, float64 (times, 1); all of ``own``, if that is given."""
        if self.own is not None:
            return self.own
        with outside_of_transforms() if transforms_are_active() else nullcontext():
            found = torch.tensor(self.positions, dtype=torch.float64)
            return found[torch.tensor(self.nodes) < 0, None]

    @property
    def cells(self) -> Tensor:
        """The index of the grid point before each position of :attr:`between`, in the same shape."""
        return self.between.floor().clamp(max=self.grid.steps - 1)


def _between(points: Tensor, positions: Tensor) -> Tensor:
    """The values of ``points`` at positions in steps, linear between neighbours."""
    low = positions.long().clamp(max=len(points) - 2)
    return torch.lerp(points[low], points[low + 1], positions - low)


def request(
    t: float | Tensor,
    step: float | None,
    steps: int | None,
    grading: float = 1.0,
    mesh: Tensor | Sequence[float] | Grid | None = None,
) -> Request:
    """Read ``t``, ``step``, ``steps`` and ``grid`` as a user gives them, or raise an error that says what is wrong.

    Requests for a number T and a moderate number of steps are cached, with what was computed of their grids.
    """
    plain = mesh is None and step is None and type(t) is type(grading) is float
    if plain and type(steps) is int and 0 < steps <= TABLE_NUMBERS:
        return _REQUESTS.get((t, steps, grading), lambda: _request(t, step, steps, grading, mesh))
    return _request(t, step, steps, grading, mesh)


def _request(
    t: float | Tensor,
    step: float | None,
    steps: int | None,
    grading: float,
    mesh: Tensor | Sequence[float] | Grid | None,
) -> Request:
    times, terminal = read_times(t)
    start, end = times[0], times[-1]
    if mesh is not None:
        if not (step is None and steps is None and grading == 1):
            raise InputError("grid= says where every step ends: leave step=, steps= and grading= out.")
        grid = mesh if isinstance(mesh, Grid) else mesh_of(mesh, start, end)
    else:
        count = _count(start, end, step, steps)
        grid = Grid(start, (end - start) / count, count, _grading(grading, step))
    eps = torch.finfo(t.dtype if isinstance(t, Tensor) and t.is_floating_point() else torch.float64).eps
    if isinstance(t, Tensor) and t.ndim == 2:
        own = times_of_series(t)
        places = grid.snapped(torch.tensor(grid.positions(own.flatten().tolist(), eps), dtype=torch.float64))
        return Request(grid, (), False, places.clamp(0, grid.steps).view(own.shape))
    found = grid.positions(times, eps)
    # the ends are exact: on a mesh, the rounding of an end could be a visible fraction of a cell
    positions = (0.0, *found[1:-1], float(grid.steps))
    return Request(grid, positions[-1:] if terminal else positions, terminal)


def mesh_of(mesh: Tensor | Sequence[float], start: float, end: float) -> Grid:
    """The grid with these points, which must begin and end with the initial and the last time."""
    if not isinstance(mesh, Tensor | Sequence) or isinstance(mesh, str):
        raise InputTypeError(f"grid must be a 1-D tensor of increasing times, got {type(mesh).__name__}.")
    points = increasing(reals("grid", mesh) if isinstance(mesh, Sequence) else mesh, "grid")
    if points.ndim == 0:
        raise InputError("grid must be a 1-D tensor of increasing times, got one number; a number of steps is steps=.")
    for name, mine, theirs in (("begins", float(points[0]), start), ("ends", float(points[-1]), end)):
        if abs(mine - theirs) > WHOLE_SLACK * (end - start):
            raise InputError(
                f"grid {name} at {mine:g}, but the times asked for {name[:-1]} at {theirs:g}: the first and the last "
                "point of the grid must be the initial time and the last of t."
            )
    count = points.shape[0] - 1
    step, n = (end - start) / count, torch.arange(count + 1, dtype=torch.float64)
    if bool((((points - start) / step - n).abs() <= WHOLE_SLACK * n.clamp(1, 1000)).all()):
        return Grid(start, step, count)
    return Grid.through(start, points - points[0])


def _grading(grading: float, step: float | None) -> float:
    meaning = "It is r in t_k = T (k/N)^r: 1 is uniform, and a larger r puts more points next to the start."
    if real("grading", grading, hint=meaning) < 1:
        raise InputError(f"grading={grading:g} must be at least 1. {meaning}")
    if grading != 1 and step is not None:
        raise InputError(
            "a graded grid has steps of different sizes: give steps= (their number) with grading=, not step=."
        )
    return float(grading)


def read_times(t: float | Tensor, name: str = "t") -> tuple[list[float], bool]:
    """The times of ``t``, the initial one first, and whether only the last state is requested."""
    if isinstance(t, Tensor) and t.ndim == 2 and name == "t":
        return ends_of_series(t), False
    if isinstance(t, Tensor):
        times = increasing(t, name)
        if times.ndim > 0:
            return times.tolist(), False
        t = float(times)
    if not is_real(t):
        raise InputTypeError(
            f"{name} must be a number or a 1-D tensor of times, got {type(t).__name__}. Use torch.as_tensor(t)."
        )
    if not math.isfinite(t):
        raise InputError(f"{name} contains NaN or infinity; every time must be finite.")
    if t <= 0:
        raise InputError(
            f"t={t:g} must be positive: a number T integrates from 0 to T. "
            "To start elsewhere pass torch.tensor([start, ..., end])."
        )
    return [0.0, float(t)], True


def _count(start: float, end: float, step: float | None, steps: int | None) -> int:
    if (step is None) == (steps is None):
        raise InputError(
            "give exactly one of step= (the step size h) and steps= (the number of steps); "
            f"got {'both' if step is not None else 'neither'}."
        )
    if steps is not None:
        steps = whole("steps", steps)
        _tabulated(steps)
        return steps
    assert step is not None
    ratio = (end - start) / real("step", step, above=0, hint="From a tensor use float(step).")
    _tabulated(ratio)
    if ratio >= 1 - WHOLE_SLACK and _is_whole(ratio):
        return round(ratio)
    low = max(1, math.floor(ratio))
    high = low + 1
    raise InputError(
        f"step={step:g} does not divide [{start:g}, {end:g}]. "
        f"Use step={(end - start) / high:.6g} ({high} steps) or step={(end - start) / low:.6g} ({low} steps), "
        "or pass steps=, or grid= for steps of different sizes."
    )


def _tabulated(count: float) -> None:
    """Raise if the times and weights of so many steps exceed the memory."""
    if STEP_BYTES * count > (memory := installed_memory()):
        count = min(count, 1e30)
        raise InputError(
            f"the times and weights of {count:.3g} steps take {STEP_BYTES * count / 2**30:.3g} GiB or more, and this "
            f"machine has {memory >> 30} GiB. Use fewer steps, and a method of higher order such as 'bdf2'."
        )


def _is_whole(x: float) -> bool:
    return abs(x - round(x)) <= WHOLE_SLACK * max(1.0, min(abs(x), 1e3))
