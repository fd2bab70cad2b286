"""Jumps of the state at known times: doses, kicks. ``z(t) = z_0 + Σ_{t_k ≤ t} Δ_k + I^β f``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.checks import function, reals
from ..base.grid import Grid, Request, read_times
from ..base.policy import JUMP_CLEARANCE, JUMP_LENGTH
from ..base.structure import Structure, alike, all_finite, as_numbers
from ..base.torch_private import is_followed, pytree
from ..base.torch_transforms import refuse_mapped
from ..errors import InputError, InputTypeError


class Jumps(NamedTuple):
    """The times of jumps since the start, and their values, (jumps, groups, width).

    ``values`` may also be a function of the row before a jump. If the times get gradients, ``moving`` has their graph.
    ``eps`` is the relative rounding of the times that were given, of jumps and of output.
    """

    times: tuple[float, ...]
    values: Tensor | Callable[[Tensor], Tensor]
    moving: Tensor | None = None
    eps: float = torch.finfo(torch.float64).eps

    def steps(self, elapsed: Tensor) -> Tensor:
        """1 if a jump has happened at a time since the start, otherwise 0: (jumps, times)."""
        return (elapsed[None] >= torch.tensor(self.times, dtype=torch.float64)[:, None]).to(torch.float64)

    def snapped(self, x: float, start: float, whole: float) -> float:
        """The time of a jump if ``x``, since the start, is it but for rounding: the state there is the one after it."""
        slack = time_slack(self.eps, x, start, whole)
        return next((k for k in self.times if abs(x - k) <= slack), x)

    @property
    def rows(self) -> Tensor:
        """The values, if they are not a function."""
        assert isinstance(self.values, Tensor)
        return self.values

    def by(self, k: int, before: Tensor) -> Tensor:
        """The value of jump ``k`` without gradient, for this row before it."""
        return self.values.detach()[k] if isinstance(self.values, Tensor) else self.values(before)


def read_jumps(given: Any, structure: Structure, t: float | Tensor) -> Jumps:
    """Read ``(times, values)`` as a user gives them, with values stacked along a first axis in the structure of z0."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputTypeError("jumps= must be a pair (times, values), values stacked along a first axis like z0.")
    at = reals("the times of jumps=", given[0])
    eps = max(_eps_of(at), _eps_of(t))
    at = at.to("cpu", torch.float64).reshape(-1)
    refuse_mapped("the times of jumps=", at)
    values = given[1]
    times = at.detach().tolist()
    asked, _ = read_times(t)
    start, end = asked[0], asked[-1]
    apart = 2 * JUMP_LENGTH * (end - start)
    if not times or not all(b - a > apart for a, b in itertools.pairwise([start, *times])) or not times[-1] <= end:
        raise InputError(
            f"the times of jumps= must increase, after the initial time {start:g} and up to {end:g}. Add a jump at the "
            "initial time to z0; give two jumps at one time as the sum of both; leave later ones out, and jumps= "
            "itself if there are none."
        )
    since = tuple(x - start for x in times)
    if callable(values):
        function("the value of a jump", values, "value(z)")
        return Jumps(since, lambda row: structure.pack(value_of_jump(values, structure.unpack(row))), eps=eps)
    return Jumps(since, _rows(values, len(times), structure), at - start if is_followed(at) else None, eps)


def _eps_of(times: Any) -> float:
    real = isinstance(times, Tensor) and times.is_floating_point()
    return torch.finfo(times.dtype if real else torch.float64).eps


def time_slack(eps: float, since: float, start: float, whole: float) -> float:
    """How much a time since the start differs at most from that of a jump if the difference is rounding.

    Times are rounded before the start is subtracted from them. Within the step that ends in a jump there is no state.
    """
    return 2 * eps * max(abs(start), abs(start + since)) + 2 * JUMP_LENGTH * whole


def value_of_jump(value: Callable[[Any], Any], before: Any) -> Any:
    """The value of a jump as a function of the state before it, checked."""
    found = as_numbers(value(before))
    if not alike(found, before):
        raise InputError(
            "the value of a jump, as a function of the state before it, must have the structure, shapes and dtype of "
            "z0: torch.zeros_like(z), for example."
        )
    return found


def _rows(values: Any, count: int, structure: Structure) -> Tensor:
    values = as_numbers(values)
    leaves, spec = pytree.tree_flatten(values)
    shapes = [(count, *shape) for shape in structure.shapes]
    if spec != structure.spec or [tuple(getattr(x, "shape", ())) for x in leaves] != shapes:
        raise InputError(
            f"the values of jumps= must have the structure of z0 with {count} entries, one for each time, along a "
            f"first axis: shapes {shapes}; or be a function of the state before the jump."
        )
    if any(x.dtype != structure.dtype or x.device != structure.device for x in leaves):
        raise InputTypeError(f"the values of jumps= must be {structure.dtype} on {structure.device}, like z0.")
    rows = torch.stack([structure.pack(pytree.tree_map(lambda x, k=k: x[k], values)) for k in range(count)])
    if not all_finite(rows):
        raise InputError("the values of jumps= contain NaN or infinity: give finite numbers.")
    return rows


def with_jumps(wanted: Request, jumps: Jumps, t: float | Tensor, lags: tuple[Tensor, ...] = ()) -> Request:
    """The request with two grid points for each jump, just before it and at it, also for jumps of delayed states."""
    if wanted.series:
        raise InputError("jumps= do not work with times for each sample: give all times in one row, t.unique().")
    grid = wanted.grid
    whole = float(grid.elapsed[-1])
    apart, times = 2 * JUMP_LENGTH * whole, list(jumps.times)
    moved = torch.tensor(times, dtype=torch.float64) if jumps.moving is None else jumps.moving
    for lag in lags:
        for k in range(len(jumps.times)):
            here = times[k] + float(lag.detach())
            if here < whole - apart and min(abs(here - x) for x in times) > apart:
                times.append(here)
                moved = torch.cat([moved, (moved[k] + lag)[None]])
    at = torch.tensor(times, dtype=torch.float64)
    slack = time_slack(torch.finfo(torch.float64).eps, whole, grid.start, whole)
    near = (grid.elapsed[:, None] - at).abs().amin(1) <= slack
    near |= _crowded(grid.elapsed, at)
    near[0] = False
    fixed = grid.elapsed[~near]
    points, sources = torch.cat([fixed, at - JUMP_LENGTH * whole, at]).sort()
    moving = None
    if jumps.moving is not None or is_followed(moved):
        moving = torch.cat([fixed, moved - JUMP_LENGTH * whole, moved])[sources]
    mesh = Grid.through(grid.start, points, moving)
    asked, terminal = read_times(t)
    start = asked[0]
    inner = [jumps.snapped(x - start, start, whole) for x in asked[1:-1]]
    if moving is not None:  # output times are fixed: one at a point that moves with a lag is put just before it
        back = jumps._replace(times=tuple(times[len(jumps.times) :]))
        inner = [x - apart if back.snapped(x, start, whole) in back.times else x for x in inner]
    positions = (0.0, *replace(mesh, start=0.0).positions(inner), float(mesh.steps))
    return Request(mesh, positions[-1:] if terminal else positions, terminal)


def points_of(start: float, elapsed: Tensor) -> Tensor:
    """The grid points, as far as late times can be told apart, without those just before jumps.

    :func:`with_jumps` adds these again.
    """
    wide = elapsed.diff() > 3 * JUMP_LENGTH * elapsed[-1]
    return (start + elapsed[torch.cat([wide, torch.ones(1, dtype=torch.bool)])]).unique_consecutive()


def _crowded(points: Tensor, jumps: Tensor) -> Tensor:
    """Grid points so soon after a jump that a step from them would begin where the solution is steepest."""
    lengths = torch.cat([points[1:] - points[:-1], points.new_zeros(1)])
    late = points[:, None] - jumps
    return ((late > 0) & (late < JUMP_CLEARANCE * lengths[:, None])).any(1)
