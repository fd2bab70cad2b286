"""The one autograd Function, for every adjoint: its inputs are a frozen plan, then tensors only."""

from __future__ import annotations

import contextlib
import gc
import math
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..base.policy import TABLE_NUMBERS, UNSTABLE_GROWTH
from ..base.structure import all_finite, extent, replace_tensors, tensors_in
from ..base.torch_private import (
    are_batched,
    derivatives_are_watched,
    places,
    versions_of,
    with_parameters,
    with_tangent,
)
from ..base.torch_transforms import gradients_are_differentiated, refuse_written, tangents_of
from ..errors import ConvergenceError, NonFiniteError, UnsupportedError
from . import loop
from .case import of_tensors
from .composed import composed
from .instability import explained, spoilt, warn_if_unstable
from .loop import Gradients, Record
from .plan import COEFFICIENTS, Coefficients, Plan, Run
from .transforms import Kept, TensorPull, transformed

_T = TypeVar("_T")


class Adjoint(Protocol):
    """How a gradient is computed.

    Attributes:
        stores_graph: the graph of every step is kept from the forward pass.
        exact: the result is the gradient of what the forward pass computes.
    """

    stores_graph: bool
    exact: bool

    def pull(
        self, plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """The gradients of all inputs, from those of the outputs."""


def _advised(plan: Plan, work: Callable[[], _T], let_go: Callable[[], None] = lambda: None) -> _T:
    """Do the work; if memory runs out, free what the solve holds and add to the error what would take less.

    The frames of a traceback would keep every row alive while the error is handled. So it is removed, and the note says
    where memory ran out.
    """
    try:
        return work()
    except ConvergenceError as error:
        if told := spoilt(plan.field):
            error.add_note(told)
        if plan.field.autocast:
            error.add_note(
                f"Autocast evaluates func in {plan.field.autocast['dtype']}, which may be too few digits for an "
                "implicit method: leave the solve out of autocast, or use an explicit method."
            )
        raise
    except torch.OutOfMemoryError as error:
        if plan.advice is not None and not getattr(error, "__notes__", None):
            place = traceback.extract_tb(error.__traceback__)[-1]
            error.__traceback__ = None
            let_go()
            gc.collect()
            error.add_note(f"{plan.advice()} Memory ran out in {place.name}, {place.filename}:{place.lineno}.")
        raise


def solved(plan: Plan, run: Run, adjoint: Adjoint, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    """``(states at grid points, states between them)``, as a node of autograd if derivatives may be needed."""
    if plan.delays is not None:
        return _delayed(plan, run, inputs)
    if torch.compiler.is_exporting():  # the program records every operation
        return _composed(plan, inputs)
    if derivatives_are_watched():
        _refuse_inexact(adjoint)
        read = of_tensors(plan, inputs, gradients_are_differentiated(inputs))
        return _composed(plan, inputs) if read is None else transformed(read.case, read.inputs)
    if plan.train:
        found: tuple[Tensor, Tensor | None] = Solve.apply(plan, run, adjoint, *inputs)  # type: ignore[no-untyped-call]
        return found
    with torch.no_grad():
        return Solve.forward(None, plan, run, adjoint, *inputs)


def _delayed(plan: Plan, run: Run, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    """The solve in PyTorch operations, for a ``func`` that gets delayed states."""
    run.stepper, run.why = "single", "func gets delayed states"
    found = _composed(plan, inputs)
    if plan.check_finite and not all_finite(*[x for x in found if x is not None]):
        raise NonFiniteError("the result contains NaN or infinity: use shorter steps, or an implicit method.")
    return found


def _composed(plan: Plan, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    """The solve in PyTorch operations on these inputs; the arguments of ``func`` are the last of them."""
    z0 = inputs[COEFFICIENTS]
    assert z0 is not None
    c = Coefficients(*[None if x is None else with_tangent(x.to(z0)) for x in inputs[:COEFFICIENTS]])  # type: ignore[arg-type]
    args = inputs[len(inputs) - len(tensors_in(plan.field.args)) :]
    field = plan.field.at(plan.field.times, replace_tensors(plan.field.args, list(args)))  # type: ignore[arg-type]
    func, stands = plan.field.func, {id(x): y for x, y in _of_func(plan, inputs)}
    own = {name: y for name, x in places(func).items() if (y := with_tangent(stands.get(id(x), x))) is not x}
    tangents = tangents_of(own.values())
    versions = versions_of(tangents)
    with _without_autocast(plan, z0), with_parameters(func, own):  # type: ignore[arg-type]
        found = composed(replace(plan, field=field, scheme=plan.scheme.bound(field.args)), c, z0)
    refuse_written(versions, tangents)
    plan.field.evaluations += field.evaluations
    return found


def _numbers(inputs: tuple[Tensor | None, ...], like: Tensor) -> Coefficients:
    """The coefficients in the dtype and on the device of ``like``, as those without gradients are already."""
    given = inputs[:COEFFICIENTS]
    return Coefficients(*[c.detach().to(like) if c is not None and c.requires_grad else c for c in given])  # type: ignore[arg-type]


class Solve(torch.autograd.Function):
    """``(states at grid points, states between them)`` as a function of coefficients, initial row and tensors."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, run: Run, adjoint: Adjoint, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Inputs: the coefficients, the initial row or rows, then the tensors that ``func`` depends on."""
        initial = inputs[COEFFICIENTS]
        assert initial is not None
        z0 = initial.detach()
        c = _numbers(inputs, z0)

        def work() -> tuple[Tensor, Tensor | None, Record]:
            out, between, record = loop.forward(plan, run, c, z0, plan.train and adjoint.stores_graph)
            if plan.check_finite:
                size = extent(out, *(() if between is None else (between,)))
                if not math.isfinite(size):
                    raise explained(plan, run, c, z0)
                if size > UNSTABLE_GROWTH * run.start > 0:
                    warn_if_unstable(plan, size / run.start, z0 if c.base is None else z0[0])
            return out, between, record

        with _without_autocast(plan, z0):
            out, between, record = _advised(plan, work)
        if plan.train:
            ctx.plan, ctx.run, ctx.adjoint, ctx.record = plan, run, adjoint, record
            # small coefficients are kept: to copy them again would wait for all work queued on the device
            ctx.numbers = c if sum(x.numel() for x in c if x is not None) <= TABLE_NUMBERS else None
            ctx.save_for_backward(*inputs)
        return out, between

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_between: Tensor | None) -> tuple[Any, ...]:
        """The gradients, in the order of the inputs of ``forward``."""
        if torch.is_grad_enabled() or are_batched(grad_out):  # create_graph=True, or is_grads_batched=True
            return (None, None, None, *_differentiable(ctx, grad_out, grad_between))
        return (None, None, None, *_gradients(ctx, grad_out.detach(), grad_between))


def _gradients(ctx: Any, grad_out: Tensor, grad_between: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of all inputs, by the adjoint."""
    plan, run, adjoint, inputs = ctx.plan, ctx.run, ctx.adjoint, ctx.saved_tensors
    z0 = inputs[COEFFICIENTS].detach()
    c = ctx.numbers or _numbers(inputs, z0)
    again = plan.called.restored(plan.field.impure is not None or adjoint.stores_graph)

    def work() -> Gradients:
        if ctx.record.spent:
            _, _, ctx.record = loop.forward(plan, run, c, z0, adjoint.stores_graph)
        ctx.record.spent = True
        grads = (grad_out, None if grad_between is None else grad_between.detach())
        found: Gradients = adjoint.pull(plan, run, ctx.record, c, z0, grads)
        if ctx.record.witness is not None:
            ctx.record.witness.verdict()
        return found

    with _without_autocast(plan, z0), torch.no_grad(), again:
        found = _advised(plan, work, lambda: ctx.record.release())
    ctx.record.release()  # the node itself may live until the whole backward pass ends
    weights = [None if g is None or x is None else g.to(x) for g, x in zip(found.coefficients, inputs, strict=False)]
    return (*weights, found.z0, *found.tensors)


def _differentiable(ctx: Any, out: Tensor, between: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients with their own graph, for second derivatives."""
    plan, inputs, batched = ctx.plan, ctx.saved_tensors, are_batched(out)
    _refuse_inexact(ctx.adjoint)
    with plan.called.restored(plan.field.impure is not None):
        read = None if batched and not derivatives_are_watched() else of_tensors(plan, inputs, twice=True)
    if read is None:
        return _in_plain_operations(plan, inputs, out, between)
    kept = Kept()
    if not batched:
        known: list[Tensor | None] = [None] * len(read.inputs)
        for k, g in zip(read.places, _gradients(ctx, out.detach(), between), strict=True):
            if k is not None and g is not None:
                known[k] = g.to(out.dtype) if k < COEFFICIENTS else g
        kept.gradients = tuple(known)
    found = TensorPull.apply(read.case, kept, out, between, *read.inputs)  # type: ignore[no-untyped-call]
    every = [None if k is None else found[k] for k in read.places]
    return tuple(None if g is None or x is None else g.to(x) for g, x in zip(every, inputs, strict=True))


def _refuse_inexact(adjoint: Adjoint) -> None:
    if not adjoint.exact:
        raise UnsupportedError(
            "adjoint='paper' is not the gradient of its forward pass, so that its derivative has no meaning. Use "
            "adjoint='exact' for create_graph=True, forward mode and transforms."
        )


def _in_plain_operations(
    plan: Plan, inputs: tuple[Tensor | None, ...], *grads: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The same gradients from a solve in PyTorch operations, which autograd follows one by one."""
    again = torch.is_grad_enabled()
    assert plan.called is not None
    with torch.enable_grad(), plan.called.restored(plan.field.impure is not None):
        apart = _apart(plan, inputs)
        wanted = [x for x in apart if x is not None and x.requires_grad]
        out, between = _composed(plan, apart)
        ends = [(y, g) for y, g in zip((out, between), grads, strict=True) if y is not None and g is not None]
        found = torch.autograd.grad(
            [y for y, _ in ends], wanted, [g for _, g in ends], create_graph=again, allow_unused=True
        )
    supply = iter(found)
    return tuple(next(supply) if x is not None and x.requires_grad else None for x in inputs)


def _of_func(plan: Plan, inputs: tuple[Tensor | None, ...]) -> list[tuple[Tensor, Tensor]]:
    """The tensors that ``func`` uses besides its arguments, each with the input that stands for it."""
    given = inputs[COEFFICIENTS + 1 : len(inputs) - len(tensors_in(plan.field.args))]
    return [(own, x) for own, x in zip(plan.leaves, given, strict=False) if x is not None]


def _apart(plan: Plan, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Views of the inputs: one may be computed from another, whose gradient must not include what flows through it.

    Tensors that only ``func`` holds, outside of a module, stay what they are. No input may be computed from these.
    """
    held = {id(x) for x in places(plan.field.func).values()}
    fixed = {id(x): x for own, x in _of_func(plan, inputs) if id(own) not in held and x.requires_grad}
    apart = [x if x is None or not x.requires_grad or id(x) in fixed else x.view_as(x) for x in inputs]
    moved = [x for x, y in zip(apart, inputs, strict=True) if x is not None and x is not y]
    if fixed and moved:
        zeros = [torch.zeros_like(x) for x in moved]
        found = torch.autograd.grad(moved, list(fixed.values()), zeros, retain_graph=True, allow_unused=True)
        if any(g is not None for g in found):
            raise UnsupportedError(
                "z0, order or args are computed from a tensor of params= that func uses itself, and here its second "
                "derivative takes two separate tensors. Pass it to func through args=, or let func be a module with it."
            )
    return tuple(apart)


def _without_autocast(plan: Plan, like: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Context without autocast, so that sums keep the dtype of the state; ``func`` enters autocast again itself."""
    if plan.field.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(like.device.type, enabled=False)
