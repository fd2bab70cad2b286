"""Jumps of the state at known times: doses, kicks. ``z(t) = z_0 + Σ_{t_k ≤ t} Δ_k + I^β f``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.grid import Grid, Request, read_times
from ..base.policy import JUMP_LENGTH, WHOLE_SLACK
from ..base.structure import Structure, all_finite
from ..base.torch_private import pytree
from ..errors import InputError, InputTypeError


class Jumps(NamedTuple):
    """When the state jumps, since the start, and by how much: (jumps, groups, width)."""

    times: tuple[float, ...]
    values: Tensor

    def steps(self, elapsed: Tensor) -> Tensor:
        """Which jumps have happened at these times since the start, 1 or 0: (jumps, times)."""
        return (elapsed[None] >= torch.tensor(self.times, dtype=torch.float64)[:, None]).to(torch.float64)


def read_jumps(given: Any, structure: Structure, t: float | Tensor) -> Jumps:
    """``(times, values)`` as a user gives them, values stacked along a first axis in the structure of ``z0``."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputTypeError("jumps= is a pair (times, values), values stacked along a first axis like z0.")
    times, values = torch.as_tensor(given[0], dtype=torch.float64).detach().reshape(-1).tolist(), given[1]
    asked, _ = read_times(t)
    start, end = asked[0], asked[-1]
    apart = 2 * JUMP_LENGTH * (end - start)
    if not times or not all(b - a > apart for a, b in itertools.pairwise([start, *times])) or not times[-1] <= end:
        raise InputError(f"the times of jumps= must increase, after the initial time {start:g} and up to {end:g}.")
    leaves, spec = pytree.tree_flatten(values)
    shapes = [(len(times), *shape) for shape in structure.shapes]
    if spec != structure.spec or [tuple(getattr(x, "shape", ())) for x in leaves] != shapes:
        raise InputError(
            f"the values of jumps= must have the structure of z0 with {len(times)} entries, one for each time, along a "
            f"first axis: shapes {shapes}."
        )
    if any(x.dtype != structure.dtype or x.device != structure.device for x in leaves):
        raise InputTypeError(f"the values of jumps= must be {structure.dtype} on {structure.device}, like z0.")
    rows = [structure.pack(pytree.tree_map(lambda x, k=k: x[k], values)) for k in range(len(times))]
    if not all_finite(torch.stack(rows)):
        raise InputError("the values of jumps= contain NaN or infinity.")
    return Jumps(tuple(x - start for x in times), torch.stack(rows))


def with_jumps(wanted: Request, jumps: Jumps, t: float | Tensor) -> Request:
    """The request with two points for each jump, just before it and at it."""
    if wanted.series:
        raise InputError("jumps= and times for each sample do not go together: give all times in one row, t.unique().")
    grid, at = wanted.grid, torch.tensor(jumps.times, dtype=torch.float64)
    whole = float(grid.elapsed[-1])
    near = (grid.elapsed[:, None] - at).abs().amin(1) <= 2 * JUMP_LENGTH * whole
    near[0] = False
    points = torch.cat([grid.elapsed[~near], at - JUMP_LENGTH * whole, at]).sort()[0]
    count = points.shape[0] - 1
    mesh = Grid(grid.start, whole / count, count, points=points)
    asked, terminal = read_times(t)
    slack = max(WHOLE_SLACK * whole, torch.finfo(torch.float32).eps * max(map(abs, asked)))  # times may be in float32
    inner = replace(mesh, start=0.0).positions([_snapped(x - asked[0], jumps.times, slack) for x in asked[1:-1]])
    positions = (0.0, *inner, float(count))
    return Request(mesh, positions[-1:] if terminal else positions, terminal)


def _snapped(x: float, jumps: tuple[float, ...], slack: float) -> float:
    """A time that is that of a jump, to rounding, is it: the state there is the one after the jump."""
    return next((k for k in jumps if abs(x - k) <= slack), x)
