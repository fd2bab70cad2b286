"""One autograd Function for every adjoint: a frozen plan, then tensors only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from . import forward
from .forward import Record
from .plan import COEFFICIENTS, Coefficients, Plan, coefficients_from


class Gradients(Protocol):
    """What an adjoint returns: gradients of the coefficients, of the initial row and of further tensors."""

    coefficients: tuple[Tensor | None, ...]
    z0: Tensor
    tensors: tuple[Tensor | None, ...]


class Adjoint(Protocol):
    """How a gradient is computed. ``stores_graph`` keeps every step's graph from the forward pass."""

    stores_graph: bool

    def pull(
        self, plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """Gradients of everything from gradients of the outputs."""


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        error.add_note("Less memory: adjoint='exact', storage='auto', history='auto'; see neuralfde.plan(...).")
        raise


def solved(plan: Plan, adjoint: Adjoint, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    """``(states at nodes, states between nodes)``, with a node of autograd where one may be asked for derivatives."""
    if plan.train or forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        found: tuple[Tensor, Tensor | None] = Solve.apply(plan, adjoint, *inputs)  # type: ignore[no-untyped-call]
        return found
    with torch.no_grad():
        return Solve.forward(None, plan, adjoint, *inputs)


class Solve(torch.autograd.Function):
    """``(states at nodes, states between nodes)`` as a function of coefficients, initial row and tensors."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, adjoint: Adjoint, *inputs: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Inputs: the coefficient tensors, the initial row or rows, then what ``func`` depends on."""
        z0 = inputs[COEFFICIENTS]
        assert z0 is not None
        c = coefficients_from(inputs[:COEFFICIENTS]).cast(z0)
        plain = torch.autocast(z0.device.type, enabled=False) if plan.field.autocast else contextlib.nullcontext()
        with plain, _advised():
            out, between, record = forward.run(plan, c, z0.detach(), plan.train and adjoint.stores_graph)
            if plan.check_finite:
                forward.check_outputs(plan, c, z0.detach(), (out, between))
        if plan.train:
            ctx.plan, ctx.adjoint, ctx.record = plan, adjoint, record
            ctx.save_for_backward(*inputs)
        return out, between

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_between: Tensor | None) -> tuple[Any, ...]:
        """Gradients in the order of the inputs of ``forward``."""
        plan, adjoint = ctx.plan, ctx.adjoint
        inputs = ctx.saved_tensors
        z0 = inputs[COEFFICIENTS].detach()
        c = coefficients_from(inputs[:COEFFICIENTS]).cast(z0)
        plain = torch.autocast(z0.device.type, enabled=False)
        with plain, torch.no_grad(), plan.field.as_called(), _advised():
            if ctx.record.spent:
                _, _, ctx.record = forward.run(plan, c, z0, adjoint.stores_graph)
            ctx.record.spent = True
            with plan.field.noise.borrowed():
                found = adjoint.pull(plan, ctx.record, c, z0, (grad_out, grad_between))
        ctx.record.release()  # the node itself may live until the whole backward pass ends
        weights = [
            None if g is None or x is None else g.to(x) for g, x in zip(found.coefficients, inputs, strict=False)
        ]
        return (None, None, *weights, found.z0, *found.tensors)
