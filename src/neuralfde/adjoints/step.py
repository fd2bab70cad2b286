"""One step of a scheme, with and without its autograd graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..demand import unvalued
from .captured import Captured
from .plan import Coefficients, Plan


class Trace(NamedTuple):
    """One step with its autograd graph: inputs ``x``, outputs ``z`` and ``v``."""

    x: Tensor
    z: Tensor
    v: Tensor | None


def arrive(
    plan: Plan, c: Coefficients, z0: Tensor, heads: list[Tensor], n: int, past: Tensor | None, captured: Captured | None
) -> Tensor:
    """From what the history contributes to row ``n`` to the row ``x`` that step ``n`` starts from."""
    base = c.lift(z0, n) if plan.known is None else plan.known[n]
    if n == 0 or past is None:
        sums = base.expand(plan.scheme.sums, *base.shape[-2:])
    elif captured is None:
        sums = past.add_(base)
    else:
        sums = torch.add(past, base, out=captured.x)
    if n == 0:
        return sums
    if heads:
        sums = sums.clone() if past is None else sums
        add_heads(sums, c.start, heads, n)
    return plan.scheme.locate(plan.field, n, sums, c.local_at(n))


def add_heads(sums: Tensor, start: Tensor | None, heads: list[Tensor], n: int) -> None:
    """Add what the starting weights give the first slopes in row ``n`` of the first sum."""
    if start is not None and n > 0:
        for j, v in enumerate(heads[:n]):
            sums[0].addcmul_(start[j, n, :, None], v)


def plain_step(plan: Plan, n: int, x: Tensor, local: Tensor, slope: bool, captured: Captured | None = None) -> Trace:
    """Evaluate step ``n`` without gradients."""
    if captured is not None and n > 0 and slope:
        return Trace(x, *captured.plain(n, x))
    if n == 0 and slope and plan.field.first_slope is not None:
        first, plan.field.first_slope = plan.field.first_slope, None  # a row less until the backward pass has ended
        return Trace(x, x[0], first)
    return Trace(x, *plan.scheme.evaluate(plan.field, n, x, local, slope))


def traced_step(plan: Plan, n: int, x: Tensor, local: Tensor, slope: bool) -> Trace:
    """Evaluate step ``n`` with gradients; only its own graph is made."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return Trace(x, *plan.scheme.evaluate(plan.field, n, x, local, slope))


def kept_step(plan: Plan, n: int, x: Tensor, local: Tensor, slope: bool) -> tuple[Trace, Tensor | None]:
    """A traced step that holds no more than its graph needs, and its slope, which the history keeps."""
    if x.untyped_storage().nbytes() > x.nbytes:
        x = x.clone()  # or one row would hold the sums of a whole block
    traced = traced_step(plan, n, x, local, slope)
    if traced.v is None or plan.weigh:
        return traced, traced.v
    with torch.enable_grad():
        return traced._replace(v=_Graph.apply(traced.v)), traced.v  # type: ignore[no-untyped-call]


class _Graph(torch.autograd.Function):
    """The graph of a value without the value."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return unvalued(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
