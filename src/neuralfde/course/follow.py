"""A solve whose course may depend on the state: events, and jumps that are functions of the state before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.grid import read_times, request
from ..base.policy import JUMP_LENGTH
from ..base.structure import structure_of
from ..base.torch_private import pytree
from ..base.torch_transforms import is_followed
from ..door.adaptive import Adapted, adapted
from ..door.export import refuse_export
from ..door.validation import Options
from ..errors import InputError
from ..solver import Solved, run, to_tolerance
from ..time import read_jumps, value_of_jump, with_jumps
from .events import run_with_event


def follow(func: Any, z0: Any, t: Any, order: Any, given: Options, *more: Any) -> Solved:
    """:func:`~neuralfde.solver.run`, as often as an eventful course takes."""
    if torch.compiler.is_exporting():
        refuse_export(t, order, given)
    if given.event is not None:
        return run_with_event(func, z0, t, order, given)
    return _jumping(func, z0, t, order, given, *more)


def _jumping(func: Callable[..., Any], z0: Any, t: Any, order: Any, given: Options, *more: Any) -> Solved:
    """With given steps, or to a tolerance."""
    if isinstance(given.jumps[0], Tensor) and is_followed(given.jumps[0]):
        raise InputError(
            "jumps= by a function of the state take times without gradient: detach them, or find them by "
            "event=Event(fn, reset=...), whose times have gradients."
        )
    if not given.adaptive:
        return _jump_by_jump(func, z0, t, order, given, *more)

    def once(share: float) -> tuple[Solved, Adapted]:
        steps, march = adapted(func, z0, t, order, given, any(more), share)
        return _jump_by_jump(func, z0, t, order, steps, *more), march

    return to_tolerance(once)


def _jump_by_jump(func: Callable[..., Any], z0: Any, t: Any, order: Any, given: Options, *more: Any) -> Solved:
    """One mesh for all; a solve up to each jump gives the state before it, and with it the value, for the next one."""
    (times, value), structure = given.jumps, structure_of(z0)
    known, asked = read_jumps(given.jumps, structure, t), read_times(t)[0]
    wanted = with_jumps(request(t, given.step, given.steps, given.grading, given.grid), known, t)
    points = asked[0] + wanted.grid.elapsed
    values: list[Any] = []
    given = given._replace(step=None, steps=None, grading=1.0)
    for k, at in enumerate(known.times):
        before = points[wanted.grid.elapsed < at - 1.5 * JUMP_LENGTH * (asked[-1] - asked[0])]
        end = torch.tensor([asked[0] + at], dtype=torch.float64)
        part = given._replace(grid=torch.cat([before, end]), jumps=_stacked(times[:k], values), callback=None)
        found = run(func, z0, torch.cat([points[:1], end]), order, part).ys
        values.append(value_of_jump(value, pytree.tree_map(lambda x: x[-1], found), structure))
    points[-1] = asked[-1]
    return run(func, z0, t, order, given._replace(grid=points, jumps=_stacked(times, values)), *more)


def _stacked(times: Any, values: list[Any]) -> tuple[Any, Any] | None:
    return (times, pytree.tree_map(lambda *x: torch.stack(x), *values)) if values else None
