"""Solves whose course depends on the state: events, and jumps that are functions of the state before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.grid import read_times, request
from ..base.structure import structure_of
from ..base.torch_private import is_followed, pytree
from ..door.adaptive import Adapted, adapted
from ..door.export import refuse_export
from ..door.validation import Options
from ..errors import InputError
from ..solver import Solved, run, to_tolerance
from ..time.jumps import points_of, read_jumps, time_slack, value_of_jump, with_jumps
from .events import refuse_event, run_with_event


def follow(func: Any, z0: Any, t: Any, order: Any, given: Options, *more: Any) -> Solved:
    """:func:`~neuralfde.solver.run`, as often as events and jumps require."""
    if torch.compiler.is_exporting():
        refuse_export(t, order, given)
    if given.event is not None:
        refuse_event(given, t)
    jumps = given.jumps
    if not (isinstance(jumps, tuple | list) and len(jumps) == 2 and callable(jumps[1])):
        return run_with_event(func, z0, t, order, given)
    if given.before is not None:
        raise InputError(
            "jumps= put a short step before each jump, and a resumed solve continues with steps of one length. Solve "
            "from the start with all jumps, or continue from a window: past=(times, states)."
        )
    if isinstance(jumps[0], Tensor) and is_followed(jumps[0]):
        raise InputError(
            "jumps= by a function of the state need times without gradient: detach them, or find them by "
            "event=Event(fn, reset=...), whose times have gradients."
        )
    if given.event is not None and given.adaptive:
        with torch.no_grad():
            found = _jump_by_jump(run_with_event, func, z0, t, order, given)
        again = _jump_by_jump(run_with_event, func, z0, t, order, _on_mesh_of(found, t, given))
        return again._replace(march=found.march, spent=again.spent + found.spent + found.plan.field.evaluations)
    if given.event is not None:
        return _jump_by_jump(run_with_event, func, z0, t, order, given)
    if not given.adaptive:
        return _jump_by_jump(run, func, z0, t, order, given, *more)

    def once(share: float) -> tuple[Solved, Adapted]:
        steps, march = adapted(func, z0, t, order, given, any(more), share)
        return _jump_by_jump(run, func, z0, t, order, steps, *more), march

    return to_tolerance(once)


def _jump_by_jump(
    solve: Callable[..., Solved], func: Callable[..., Any], z0: Any, t: Any, order: Any, given: Options, *more: Any
) -> Solved:
    """Solve up to each jump for the state before it, which gives the value of the jump; then solve with all of them.

    With given steps all solves share one mesh; with a tolerance each finds its own.
    """
    (times, value), structure = given.jumps, structure_of(z0)
    known, asked = read_jumps(given.jumps, structure, t), read_times(t)[0]
    values: list[Any] = []
    spent = 0
    points, whole = None, asked[-1] - asked[0]
    slack = time_slack(torch.finfo(torch.float64).eps, whole, asked[0], whole)
    if not given.adaptive:
        wanted = with_jumps(request(t, given.step, given.steps, given.grading, given.grid), known, t)
        points = points_of(asked[0], wanted.grid.elapsed)
        given = given._replace(step=None, steps=None, grading=1.0)
    for k, at in enumerate(known.times):
        end = torch.tensor([asked[0] + at], dtype=torch.float64)
        part = given._replace(jumps=_stacked(times[:k], values), callback=None)
        if points is not None:
            part = part._replace(grid=torch.cat([points[points < end - slack], end]))
        found = solve(func, z0, torch.tensor([asked[0], asked[0] + at], dtype=torch.float64), order, part)
        spent += found.stats.evaluations
        values.append(value_of_jump(value, pytree.tree_map(lambda x: x[-1], found.ys)))
    given = given._replace(jumps=_stacked(times, values))
    if points is not None:
        given = given._replace(grid=torch.cat([points[points < asked[-1] - slack], end.new_tensor(asked[-1:])]))
    found = solve(func, z0, t, order, given, *more)
    return found._replace(spent=found.spent + spent)


def _on_mesh_of(found: Solved, t: Any, given: Options) -> Options:
    """The options for repeating a solve to a tolerance on its own mesh, extended to the last time of ``t``."""
    grid, asked = found.problem.request.grid, read_times(t)[0]
    points = points_of(grid.start, grid.elapsed)
    end = torch.tensor(asked[-1:], dtype=torch.float64)
    named = given.method is not None or given.linear is not None  # otherwise the default method for a tolerance
    method, mesh = given.method if named else found.problem.scheme, torch.cat([points[points < asked[-1]], end])
    return given._replace(rtol=None, atol=None, grid=mesh, method=method)


def _stacked(times: Any, values: list[Any]) -> tuple[Any, Any] | None:
    return (times, pytree.tree_map(lambda *x: torch.stack(x), *values)) if values else None
