"""The Jacobian of a fit by central differences: all moved solutions are copies in one solve.

For a linear part, and for a function that has no forward mode or cannot be vectorised.

The error is about 1e-8 of a column. That of the order is made elsewhere: systems with a linear part have one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from ..api import fdeint
from .semilinear import Unknown
from .unknowns import INITIAL, ORDER

if TYPE_CHECKING:
    from .problem import Problem


def _offsets(problem: Problem, flat: Tensor) -> Tensor:
    """Moves of 1e-4 of each unknown, or of half its way to a bound."""
    down, up = problem.unknowns.room(flat)
    wanted = 1e-4 * torch.where(flat == 0, 1.0, flat.abs())
    return torch.minimum(wanted, 0.5 * torch.minimum(-down, up))


def columns_by_differences(problem: Problem, flat: Tensor, vectorised: bool = True) -> tuple[Tensor, Tensor]:
    """Predictions (T, B, m) and their columns: model, then variables of the initial state.

    Unless it can be ``vectorised``, the function is called for one copy after the other.
    """
    named, by = problem.unknowns.split(flat), problem.unknowns.split(_offsets(problem, flat))
    z0 = named.get(INITIAL, problem.initial)
    values = [named[n].reshape(-1) for n in problem.names]
    parameters = torch.cat(values) if values else flat.new_zeros(0)
    width = z0.shape[-1] if INITIAL in named else 0
    count, batch = len(parameters), z0.shape[0]
    total = count + width
    far = flat.new_zeros(total, batch)  # the move behind each column, for each trajectory
    far[:count] = torch.cat([by[n].reshape(-1) for n in problem.names] or [parameters])[:, None]
    if width:
        far[count:] = by[INITIAL].T
    signs = torch.cat([flat.new_zeros(1, total), torch.eye(total).to(flat), -torch.eye(total).to(flat)])
    moved = parameters + signs[:, :count] * far[:count, 0]
    starts = z0.expand(len(signs), -1, -1).clone()
    starts[..., :width] += signs[:, None, count:] * far[count:].T
    shapes = [named[n].shape for n in problem.names]
    parts = [p.reshape(-1, *s) for p, s in zip(moved.split([len(v) for v in values], -1), shapes, strict=True)]
    mapped: Any = _one_by_one(problem)
    if vectorised:
        mapped = vmap(problem.field_of, in_dims=(None, 0, *(0 for _ in parts)))
    options = {k: v for k, v in problem.options.items() if k != "adjoint"}
    if problem.velocity is not None:
        options["velocity"] = problem.velocity.expand(len(signs), -1, -1).clone()
    states = _copies(problem, mapped, starts, named.get(ORDER, problem.order), parts, options)
    seen = torch.stack([problem.observed(s) for s in states.unbind(1)])
    return seen[0], (seen[1 : 1 + total] - seen[1 + total :]) / (2 * far[:, None, :, None])


def _one_by_one(problem: Problem) -> Callable[..., Tensor]:
    """The right-hand side of all copies, from a call for each."""

    def mapped(t: Tensor, states: Tensor, *parts: Tensor) -> Tensor:
        each = zip(states.unbind(-3), *(p.unbind(0) for p in parts), strict=True)
        return torch.stack([problem.field_of(t, z, *values) for z, *values in each], -3)

    return mapped


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
