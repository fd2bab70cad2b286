"""A traced step, found again by what ``func`` did when it was first evaluated: nothing is traced twice.

That evaluation is watched, with every operation, its numbers and where each tensor came from. Where a later solve does
the same, its step is the same program, of tensors that may have other values; what is done to parameters and arguments
alone is done once more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....base.structure import tensors_in
from ....base.torch_private import pytree
from ....schemes import ABM, GrunwaldLetnikov, Predictor
from ...plan import Plan
from .record import Call

#: Schemes whose step follows from their numbers; one of a user's own may do anything.
_KNOWN = (ABM, GrunwaldLetnikov, Predictor)


@dataclass(frozen=True)
class Place:
    """A tensor of a recipe: the ``index``-th one that ``func`` takes (``call`` is -1), or that comes out of a call."""

    call: int
    index: int


@dataclass(frozen=True)
class Recipe:
    """How the constants of a step are made of what ``func`` takes; it holds no tensors.

    Attributes:
        prepared: the kernels of the step.
        calls: operations, what they take, with places for tensors, and how that is nested.
        constants: the places of the constants that the kernels take.
    """

    prepared: Any
    calls: tuple[tuple[Any, list[Any], Any], ...]
    constants: tuple[Place, ...]

    def again(self, taken: Sequence[Tensor]) -> tuple[list[Call], list[Tensor]]:
        """The calls with these tensors, and the constants."""
        known = {Place(-1, k): x for k, x in enumerate(taken)}
        calls = []
        with torch.no_grad():
            for number, (op, given, nested) in enumerate(self.calls):
                found = [known[x] if isinstance(x, Place) else x for x in given]
                args, kwargs = pytree.tree_unflatten(found, nested)
                out = op(*args, **kwargs)
                calls.append(Call(op, args, kwargs, out))
                known.update({Place(number, k): x for k, x in enumerate(tensors_in(out))})
        return calls, [known[place] for place in self.constants]


def taken_by(plan: Plan) -> list[Tensor]:
    """What ``func`` takes from outside, and its arguments."""
    return [*plan.field.taken, *tensors_in(plan.field.args)]


def key_of(plan: Plan, like: Tensor) -> Hashable | None:
    """All that the program of a step depends on; None where it has to be traced.

    Indices and masks are part of a program by their values, which may change without a trace.
    """
    field, taken = plan.field, taken_by(plan)
    if field.trace is None or type(plan.scheme) not in _KNOWN or not all(x.is_floating_point() for x in taken):
        return None
    leaves = {id(x) for x in plan.leaves if x.requires_grad}
    trained = tuple(id(x) in leaves for x in taken)
    return field.trace, field.known_by, plan.scheme, trained, field.structure, like.shape, plan.weigh


def written(
    prepared: Any, calls: Sequence[Call], constants: Sequence[Tensor], taken: Sequence[Tensor], fixed: Sequence[Tensor]
) -> Recipe | None:
    """The recipe of these constants; None where one is made of a tensor that is made anew in every call, or where one
    of those that are ``fixed`` in the program (indices) is made of tensors whose values may change."""
    places = {id(x): Place(-1, k) for k, x in enumerate(taken)}
    changing = set(places)
    for call in calls:
        if any(id(x) in changing for x in tensors_in((call.args, call.kwargs))):
            changing.update(id(x) for x in tensors_in(call.out))
    if any(id(x) in changing for x in fixed):
        return None
    lines = []
    try:
        for number, call in enumerate(calls):
            given, nested = pytree.tree_flatten((call.args, call.kwargs))
            lines.append((call.op, [places[id(x)] if isinstance(x, Tensor) else x for x in given], nested))
            places.update({id(x): Place(number, k) for k, x in enumerate(tensors_in(call.out))})
        return Recipe(prepared, tuple(lines), tuple(places[id(x)] for x in constants))
    except KeyError:
        return None
