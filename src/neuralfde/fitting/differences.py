"""The Jacobian of a fit by central differences: half the time of the exact one, and enough to choose a step by.

All moved solutions are copies in one solve. How far an unknown is moved follows from what it does: far enough to change
the data by 1e-4 of their size, so that units do not matter. The error is about 1e-8 of a column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from ..api import fdeint
from ..errors import NonFiniteError
from .semilinear import Unknown
from .unknowns import INITIAL, ORDER

if TYPE_CHECKING:
    from .problem import Problem

#: By how much of their size the data are to change.
_CHANGE = 1e-4


def offsets(problem: Problem, flat: Tensor, lengths: Tensor) -> Tensor | None:
    """How far to move each unknown, given the lengths of the columns nearby; None where differences would not do."""
    size = float((problem.data.scale * problem.data.values).norm())
    down, up = problem.unknowns.room(flat)
    wanted = _CHANGE * size / lengths
    allowed = torch.minimum(wanted, 0.5 * torch.minimum(-down, up))
    good = bool((allowed > 1e-2 * wanted).all()) and bool(allowed.isfinite().all())
    return allowed if good else None


def small_offsets(problem: Problem, flat: Tensor) -> Tensor:
    """Moves of 1e-4 of each unknown, or of half its way to a bound."""
    down, up = problem.unknowns.room(flat)
    wanted = 1e-4 * torch.where(flat == 0, 1.0, flat.abs())
    return torch.minimum(wanted, 0.5 * torch.minimum(-down, up))


def columns_by_differences(problem: Problem, flat: Tensor, moves: Tensor) -> tuple[Tensor, Tensor] | None:
    """Predictions (T, B, m) and their columns: model, variables of the initial state, order; None if one blows up."""
    named, by = problem.unknowns.split(flat), problem.unknowns.split(moves)
    z0 = named.get(INITIAL, problem.initial)
    values = [named[n].reshape(-1) for n in problem.names]
    parameters = torch.cat(values) if values else flat.new_zeros(0)
    width = z0.shape[-1] if INITIAL in named else 0
    count, batch = len(parameters), z0.shape[0]
    orders = ORDER in named and not problem.semilinear  # systems with a linear part have one order
    total = count + width + orders
    far = flat.new_zeros(total, batch)  # the move behind each column, for each trajectory
    far[:count] = torch.cat([by[n].reshape(-1) for n in problem.names] or [parameters])[:, None]
    if width:
        far[count : count + width] = by[INITIAL].T
    if orders:
        far[-1] = by[ORDER]
    signs = torch.cat([flat.new_zeros(1, total), torch.eye(total).to(flat), -torch.eye(total).to(flat)])
    moved = parameters + signs[:, :count] * far[:count, 0]
    starts = z0.expand(len(signs), -1, -1).clone()
    starts[..., :width] += signs[:, None, count : count + width] * far[count : count + width].T
    order = named.get(ORDER, problem.order)
    if orders:
        order = (order + signs[:, -1] * far[-1, 0]).reshape(-1, 1, 1)
    shapes = [named[n].shape for n in problem.names]
    parts = [p.reshape(-1, *s) for p, s in zip(moved.split([len(v) for v in values], -1), shapes, strict=True)]
    mapped = vmap(problem.field_of, in_dims=(None, 0, *(0 for _ in parts)))
    options = {k: v for k, v in problem.options.items() if k != "adjoint"}
    if problem.velocity is not None:
        options["velocity"] = problem.velocity.expand(len(signs), -1, -1).clone()
    try:
        states = _copies(problem, mapped, starts, order, parts, options)
    except NonFiniteError:
        if problem.semilinear:  # there is no other way
            raise
        return None
    seen = torch.stack([problem.observed(s) for s in states.unbind(1)])
    return seen[0], (seen[1 : 1 + total] - seen[1 + total :]) / (2 * far[:, None, :, None])


def _copies(
    problem: Problem, mapped: Any, starts: Tensor, order: Any, parts: list[Tensor], options: dict[str, Any]
) -> Tensor:
    """The states of all copies (times, copies, B, d): one solve, or one for each where the linear part wants that."""
    linear, times = options.get("linear"), problem.data.times
    if isinstance(linear, Unknown):
        named = dict(zip(problem.names, parts, strict=True))
        options = {**options, "linear": linear.copies(named)}
        if options["linear"] is None:
            each = [{n: x[k] for n, x in {**named, INITIAL: starts}.items()} for k in range(len(starts))]
            return torch.stack([problem.solve({ORDER: order, **one}) for one in each], 1)
    found: Tensor = fdeint(lambda t, z: mapped(t, z, *parts), starts, times, order, **options)
    return found
