"""One autograd Function for every adjoint: a frozen plan, then tensors only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..base.torch_private import derivatives_are_watched
from . import loop
from .loop import Gradients, Record
from .plan import Coefficients, Plan, Run

#: How many tensors a solve passes before the initial values.
COEFFICIENTS = len(Coefficients._fields)


class Adjoint(Protocol):
    """How a gradient is computed. ``stores_graph`` keeps every step's graph from the forward pass."""

    stores_graph: bool

    def pull(
        self, plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """Gradients of everything from gradients of the outputs."""


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        error.add_note("Less memory: adjoint='exact', storage='auto', history='auto'; see neuralfde.plan(...).")
        raise


def solved(plan: Plan, run: Run, adjoint: Adjoint, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    """``(states at nodes, states between nodes)``, with a node of autograd where one may be asked for derivatives."""
    if plan.train or derivatives_are_watched():
        found: tuple[Tensor, Tensor | None] = Solve.apply(plan, run, adjoint, *inputs)  # type: ignore[no-untyped-call]
        return found
    with torch.no_grad():
        return Solve.forward(None, plan, run, adjoint, *inputs)


def _numbers(inputs: tuple[Tensor | None, ...], like: Tensor) -> Coefficients:
    """The coefficients in the dtype and on the device of ``like``; those without gradients already are."""
    given = inputs[:COEFFICIENTS]
    return Coefficients(*[c.detach().to(like) if c is not None and c.requires_grad else c for c in given])  # type: ignore[arg-type]


class Solve(torch.autograd.Function):
    """``(states at nodes, states between nodes)`` as a function of coefficients, initial row and tensors."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, run: Run, adjoint: Adjoint, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Inputs: the coefficient tensors, the initial row or rows, then what ``func`` depends on."""
        initial = inputs[COEFFICIENTS]
        assert initial is not None
        z0 = initial.detach()
        c = _numbers(inputs, z0)
        with _without_autocast(plan, z0), _advised():
            out, between, record = loop.forward(plan, run, c, z0, plan.train and adjoint.stores_graph)
            if plan.check_finite:
                loop.check_outputs(plan, run, c, z0, (out, between))
        if plan.train:
            ctx.plan, ctx.run, ctx.adjoint, ctx.record = plan, run, adjoint, record
            ctx.save_for_backward(*inputs)
        return out, between

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_between: Tensor | None) -> tuple[Any, ...]:
        """Gradients in the order of the inputs of ``forward``."""
        plan, run, adjoint, inputs = ctx.plan, ctx.run, ctx.adjoint, ctx.saved_tensors
        z0 = inputs[COEFFICIENTS].detach()
        c = _numbers(inputs, z0)
        with _without_autocast(plan, z0), torch.no_grad(), plan.field.as_called(), _advised():
            if ctx.record.spent:
                _, _, ctx.record = loop.forward(plan, run, c, z0, adjoint.stores_graph)
            ctx.record.spent = True
            with plan.field.noise.borrowed():
                grads = (grad_out.detach(), None if grad_between is None else grad_between.detach())
                found = adjoint.pull(plan, run, ctx.record, c, z0, grads)
        ctx.record.release()  # the node itself may live until the whole backward pass ends
        weights = [
            None if g is None or x is None else g.to(x) for g, x in zip(found.coefficients, inputs, strict=False)
        ]
        return (None, None, None, *weights, found.z0, *found.tensors)


def _without_autocast(plan: Plan, like: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Sums keep the dtype of the state; ``func`` enters the caller's autocast again by itself."""
    if plan.field.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(like.device.type, enabled=False)
