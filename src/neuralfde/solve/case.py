"""A solve as a function of tensors alone: what transforms of PyTorch work on, where a solve can be taken so."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.structure import Structure, tensors_in
from ..base.torch_private import derivatives_are_watched, is_constant, pytree, value_of
from ..base.torch_transforms import follows_gradients, tangents_are_around
from ..history import FFT, Exponentials, Full, Window
from ..rhs.field import Called
from ..rhs.reach import OfTensors, moves
from ..schemes import ABM, OneStage
from .plan import COEFFICIENTS, Coefficients, Plan

_log = logging.getLogger("neuralfde")

#: Coefficients, initial rows, and the tensors that ``func`` uses.
Inputs = Sequence[Tensor | None]


@dataclass(frozen=True)
class Case:
    """A solve as a function of tensors; ``wanted`` says for each of them whether it may be asked for a gradient."""

    plan: Plan
    wanted: tuple[bool, ...]

    def bound(self, inputs: Inputs) -> tuple[Plan, Coefficients, Tensor]:
        """The solve with these inputs, its numbers and its initial rows."""
        *numbers, z0 = [None if x is None else x.detach() for x in inputs[: COEFFICIENTS + 1]]
        assert z0 is not None
        pairs = zip(inputs[COEFFICIENTS + 1 :], self.wanted[COEFFICIENTS + 1 :], strict=True)
        tensors = tuple(x.detach().requires_grad_(wanted) for x, wanted in pairs if x is not None)
        field = self.plan.field.at(self.plan.field.times, tensors)
        weigh = any(self.wanted[:COEFFICIENTS])
        plan = replace(self.plan, field=field, leaves=tensors, train=any(self.wanted), weigh=weigh)
        return plan, Coefficients(*numbers), z0  # type: ignore[arg-type]


class Read(NamedTuple):
    """A solve as a case and its inputs; ``places`` says which of these each input of the solve is."""

    case: Case
    inputs: Inputs
    places: tuple[int | None, ...]


def of_tensors(plan: Plan, inputs: Inputs, twice: bool) -> Read | None:
    """A solve with these inputs as a function of tensors; None where it has to be followed operation by operation.

    ``twice``: it may be asked for second derivatives.
    """
    field, z0 = plan.field.at(value_of(plan.field.times), plan.field.args), inputs[COEFFICIENTS]
    assert z0 is not None
    why, cut = _refusal(plan, inputs), len(inputs) - len(tensors_in(field.args))
    # by identity: what autograd gives back of an input need not be the same object
    trained = dict(zip(map(id, plan.leaves), inputs[COEFFICIENTS + 1 : cut], strict=False))
    if why is None:
        func, row = OfTensors(field), (z0 if inputs[COEFFICIENTS - 1] is None else z0[0]).reshape(field.shape)
        why = _surprise(func, row, trained, twice or tangents_are_around(), twice)
    if why is not None:
        _log.debug("a solve in plain operations, since %s", why)
        return None
    watched = derivatives_are_watched()
    kept = [trained.get(id(x), x if watched else x.detach()) for x in func.kept]
    args = [x for x in inputs[cut:] if x is not None and moves(x)]
    tensors = (*[None if c is None else c.to(z0) for c in inputs[:COEFFICIENTS]], z0, *kept, *args)
    wanted = tuple(map(follows_gradients, tensors))
    field.work = func.verdict.work
    made = field.made_of(func, grouped_rows(field.structure, 1), field.shape)
    plan = replace(
        plan, field=made, stepper=None, tables=None, check_finite=False, keep_slopes=False,
        called=plan.called or Called(field.func),
    )  # fmt: skip
    supply = itertools.count(COEFFICIENTS + 1)
    at = dict(zip(map(id, func.kept), supply, strict=False))
    supply = itertools.count(COEFFICIENTS + 1 + len(kept))
    of_args = [next(supply) if x is not None and moves(x) else None for x in inputs[cut:]]
    return Read(Case(plan, wanted), tensors, (*range(COEFFICIENTS + 1), *[at.get(x) for x in trained], *of_args))


def grouped_rows(like: Structure, count: int, apart: bool = True) -> Structure:
    """So many rows as one state: with groups of their own, or all in one."""
    groups, width = like.row_shape
    row = (count * groups, width) if apart else (1, count * width)
    return Structure(pytree.tree_structure(0), (torch.Size(row),), like.dtype, like.device, True, ((0, 1),))


def _refusal(plan: Plan, inputs: Inputs) -> str | None:
    """Why a solve is no function of tensors to which the doubled system would do justice; None if nothing is known."""
    field = plan.field
    if field.impure is not None or field.overwrites:
        return "func changes something when it is called"
    if plan.known is not None:
        return "it goes on from another solve"
    if type(plan.scheme).evaluate not in (OneStage.evaluate, ABM.evaluate):
        return "the local map of the scheme may not be linear in sums and slopes"
    known = isinstance(plan.history, Full | FFT | Window | Exponentials)
    if not known and any(c is not None and not is_constant(c) for c in inputs[:COEFFICIENTS]):
        return "the sums of the history may not be linear in its weights"
    return None


def _surprise(
    func: OfTensors, row: Tensor, trained: Mapping[int, Tensor | None], pushed: bool, twice: bool
) -> str | None:
    """What speaks against ``func`` when it is tried out, also in forward mode or for second derivatives."""
    field, needed = func.field, {at for at, x in trained.items() if x is not None and not is_constant(x)}
    with field.noise.of_step(0) if field.noise.active else contextlib.nullcontext():
        if not func.uses_no_other(row, needed):
            return "func uses tensors that cannot be reached from outside"
        if not needed <= {id(x) for x in func.kept}:
            return "params= names tensors that cannot be reached from func"
        try:
            if pushed:
                func.is_pushed()
        except Exception as error:
            return f"func has no forward mode: {_line(error)}"
    if twice:
        try:
            commute = func.derivatives_commute()
        except Exception as error:
            return f"the forward mode of func has no gradient: {_line(error)}"
        return None if commute else "its second derivatives by forward mode are not those of autograd"
    return None


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
