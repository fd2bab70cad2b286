"""One step with its autograd graph: made for a backward pass, or kept from the forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...rhs.demand import unvalued
from ...rhs.field import Field
from ...schemes.base import Scheme


class Trace(NamedTuple):
    """One step with its autograd graph: inputs ``x`` and ``w0``, outputs ``z`` and ``v``."""

    x: tuple[Tensor, ...]
    w0: Tensor
    z: Tensor
    v: Tensor | None


def leaves(row: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """A row (sums, groups, width) as one leaf of the state's shape for each sum."""
    if row.shape[0] == 1:
        return (row.detach().view(shape).requires_grad_(),)
    return tuple(part.view(shape).requires_grad_() for part in row.detach().unbind(0))


def traced(
    scheme: Scheme, f: Any, x: Sequence[Tensor], w0: Tensor, slope: bool, start: bool
) -> tuple[Tensor, Tensor | None]:
    """State and slope of a step with their autograd graph; the initial row is its own state."""
    if start:
        return x[0], f(x[0]) if slope else None
    return scheme.evaluate(f, x, w0, slope)


def kept(
    traces: list[Trace], scheme: Scheme, f: Any, x: Sequence[Tensor], w0: Tensor, slope: bool, start: bool = False
) -> tuple[Tensor, Tensor | None]:
    """State and slope of a step whose graph is kept; it holds no more than the graph needs."""
    own = tuple(part.detach().clone().requires_grad_() for part in x)  # a view would hold the sums of a whole block
    known = take_first_graph(f) if start and slope else None
    with torch.enable_grad():
        if known is None:
            z, v = traced(scheme, f, own, w0, slope, start)
        else:  # func is not evaluated a second time where it may keep something
            own, z, v = known[:1], *known
        alone = v is not None and not w0.requires_grad
        traces.append(Trace(own, w0, z, _Graph.apply(v) if alone else v))  # type: ignore[no-untyped-call]
    return z.detach(), None if v is None else v.detach()


def take_first_graph(f: Any) -> tuple[Tensor, Tensor] | None:
    """The initial state and its slope with the graph of the check at the door, once, where there is one."""
    field = f.func if isinstance(f, partial) else None
    known = field.first_graph if isinstance(field, Field) else None
    if isinstance(field, Field):
        field.first_graph = field.first_slope = None
    return known


class _Graph(torch.autograd.Function):
    """The graph of a value without the value, which the history keeps."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return unvalued(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
