"""Tools of steppers: the rows of a block that is being filled, and single steps with their autograd graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...history import add_rows, ieee
from ...rhs.field import Field, unvalued
from ...schemes.base import Scheme


def local_weights(local: Tensor, groups: int, weigh: bool) -> list[Tensor]:
    """(count, groups) as one tensor per step that broadcasts to the state; leaves that require grad if ``weigh``."""
    rows = local.detach()
    if rows.stride(0) == 0:  # one weight for all steps
        one = rows[0, 0] if groups == 1 else rows[0].unsqueeze(1)
        return [one.requires_grad_(weigh)] * local.shape[0]
    return [(row[0] if groups == 1 else row.unsqueeze(1)).requires_grad_(weigh) for row in rows.unbind(0)]


class Work:
    """The rows of a block that is being filled, and the contributions of its earlier steps to the next one.

    ``past`` (groups, count, inputs, width) holds the resulting rows. ``slots[k]`` are those of step ``k``, one for each
    input, and ``x[k]`` are its sums, one for each output, all in the shape of the state. Views are made only once.
    """

    def __init__(self, inner: Tensor, sums: Tensor, shape: torch.Size, past: Tensor | None = None) -> None:
        groups, count, outs, _, ins = inner.shape
        self.inner, self.shape, self.groups, self.ins = inner, shape, groups, ins
        self.past = sums.new_empty(groups, count, ins, sums.shape[-1]) if past is None else past
        self.slots = per_step(self.past[0].view(-1, ins, *shape) if groups == 1 else self.past.permute(1, 2, 0, 3))
        # contiguous, as the kernel in history/kernels.py needs it; no copy if inner is contiguous
        table, flat = inner.contiguous().view(groups, count, outs, count * ins), self.past.flatten(1, 2)
        self.weights = (table[0] if groups == 1 else table.transpose(0, 1)).unbind(0)
        self.flat = flat[0] if groups == 1 else flat
        self.terms: list[tuple[Tensor, Tensor]] = []  # for each step, the weights and the rows before it
        self.x: Sequence[Sequence[Tensor]] = ()
        self.lines: Sequence[Tensor] = ()
        self.on_gpu = sums.device.type == "cuda"

    def take(self, sums: Tensor) -> None:
        """Begin a block with these sums, (count, outputs, groups, width)."""
        count, outs, groups, width = sums.shape
        if groups == 1:
            self.lines, self.x = sums.view(count, outs, width).unbind(0), per_step(sums.view(count, outs, *self.shape))
        else:
            self.lines, self.x = sums.transpose(1, 2).unbind(0), per_step(sums)

    def release(self) -> None:
        """Drop the references to the sums: the next block has its own."""
        self.lines, self.x = (), ()

    def add(self, k: int) -> None:
        """Add the contributions of the first ``k`` steps of the block to the sums of step ``k``."""
        if k == 0:
            return
        while len(self.terms) < k:
            terms = (len(self.terms) + 1) * self.ins
            self.terms.append((self.weights[len(self.terms) + 1].narrow(-1, 0, terms), self.flat.narrow(-2, 0, terms)))
        line, (weights, before) = self.lines[k], self.terms[k - 1]
        if self.groups > 1:
            with ieee(line):
                line.baddbmm_(weights, before)
        elif not self.on_gpu:
            line.addmm_(weights, before)
        else:
            for own, weight in zip(line.split(1), weights.split(1), strict=True):
                add_rows(own, weight, before)

    def rows(self, count: int) -> Tensor:
        """The rows of the first ``count`` steps, (count, inputs, groups, width)."""
        return self.past[:, :count].permute(1, 2, 0, 3)


def per_step(rows: Tensor) -> list[tuple[Tensor, ...]]:
    """Rows (count, parts, …) as a tuple of parts for each step."""
    if rows.shape[1] == 1:
        return [(row,) for row in rows.squeeze(1).unbind(0)]
    return [row.unbind(0) for row in rows.unbind(0)]


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
    """State and slope of a step with their autograd graph; at the ``start`` the row itself is the state."""
    if start:
        return x[0], f(x[0]) if slope else None
    return scheme.evaluate(f, x, w0, slope)


def kept(
    traces: list[Trace], scheme: Scheme, f: Any, x: Sequence[Tensor], w0: Tensor, slope: bool, start: bool = False
) -> tuple[Tensor, Tensor | None]:
    """State and slope of a step whose graph is appended to ``traces``; it holds only what the graph needs."""
    own = tuple(part.detach().clone().requires_grad_() for part in x)  # a view would keep the sums of a whole block
    known = take_first_graph(f) if start and slope else None
    with torch.enable_grad():
        if known is None:
            z, v = traced(scheme, f, own, w0, slope, start)
        else:  # reuse the first evaluation: func may keep state, and must not be called twice
            own, z, v = known[:1], *known
        alone = v is not None and not w0.requires_grad
        traces.append(Trace(own, w0, z, _Graph.apply(v) if alone else v))  # type: ignore[no-untyped-call]
    return z.detach(), None if v is None else v.detach()


def take_first_graph(f: Any) -> tuple[Tensor, Tensor] | None:
    """The initial state and its slope with the graph of the first evaluation, if it was kept; only once."""
    field = f.func if isinstance(f, partial) else None
    known = field.first_graph if isinstance(field, Field) else None
    if isinstance(field, Field):
        field.first_graph = field.first_slope = None
    return known


class _Graph(torch.autograd.Function):
    """The graph of a value without the value itself, which the history keeps."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return unvalued(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
