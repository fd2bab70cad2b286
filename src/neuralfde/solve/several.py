"""Solves made of a solve: several of them as one, with the same engine.

A solve is taken as a function of tensors alone: coefficients, initial rows, and what ``func`` uses. Then

- its derivative in a direction is the solve of the *doubled* system: the state is ``(z, ż)`` and the field is
  ``(f, ∂f/∂z ż + ∂f/∂θ θ̇)``, with the same weights. Where the weights have a tangent too, a third part ``e`` has
  these as its own weights and ``f`` as its field: the tangent of the state is then ``ż + e``;
- a *mapped* solve is one whose ``func`` is mapped and whose state has one more axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..base.torch_transforms import follows_gradients
from .case import Case, Inputs, grouped_rows
from .fields import PushedField, mapped_field
from .plan import COEFFICIENTS


@dataclass(frozen=True)
class Several:
    """So many solves as one, each with rows (groups, width); ``apart``: their groups have weights of their own."""

    count: int
    row: tuple[int, int]
    apart: bool

    def case(self, case: Case, func: Callable[..., Tensor], wanted: Sequence[bool]) -> Case:
        """The solve of all of them."""
        field = case.plan.field
        structure = grouped_rows(field.structure, self.count, self.apart)
        shape = structure.row_shape if self.apart else (self.count, *field.shape)
        return Case(replace(case.plan, field=field.made_of(func, structure, shape)), tuple(wanted))

    def rows(self, each: Tensor | None) -> Tensor | None:
        """Rows (count, …, groups, width) as those of the whole."""
        if each is None:
            return None
        groups, width = self.row
        each, whole = each.movedim(0, -3), (self.count * groups, width) if self.apart else (1, self.count * width)
        return each.reshape(*each.shape[:-3], *whole)

    def each(self, rows: Tensor | None) -> Tensor | None:
        """Rows of the whole as (count, …, groups, width)."""
        return None if rows is None else rows.reshape(*rows.shape[:-2], self.count, *self.row).movedim(-3, 0)

    def weights(self, each: Tensor) -> Tensor:
        """Weights (count, …, groups) as those of the whole."""
        return each.movedim(0, -2).flatten(-2)

    def each_weight(self, weights: Tensor) -> Tensor:
        """Weights of the whole as (count, …, groups)."""
        return weights.unflatten(-1, (self.count, -1)).movedim(-2, 0)


class Doubled:
    """A solve together with its derivative in the direction of ``tangents``, None where there is none."""

    def __init__(self, case: Case, inputs: Inputs, tangents: Inputs) -> None:
        numbers, z0, tensors = inputs[:COEFFICIENTS], inputs[COEFFICIENTS], inputs[COEFFICIENTS + 1 :]
        assert z0 is not None
        row = case.plan.field.structure.row_shape
        self.parts = 2 + any(x is not None for x in tangents[:COEFFICIENTS])
        self.all = Several(self.parts, row, self.parts == 3 or row[0] > 1 or _by_parts(inputs))
        self.lines = numbers[-1] is not None  # what the initial rows contribute has weights
        moved = [_or_zeros(t, x) for t, x in zip(tangents, inputs, strict=True)]
        if self.all.apart:
            pairs = zip(numbers, moved, strict=False)
            numbers = [None if c is None else self.all.weights(torch.stack([c, c, d][: self.parts])) for c, d in pairs]  # type: ignore[arg-type]
        first = [z0, moved[COEFFICIENTS], z0 if self.lines else torch.zeros_like(z0)]
        rows = self.all.rows(torch.stack(first[: self.parts]))  # type: ignore[arg-type]
        self.inputs = (*numbers, rows, *tensors, *moved[COEFFICIENTS + 1 :])
        further = list(map(follows_gradients, tangents))
        own = [a or b for a, b in zip(case.wanted, further, strict=True)][: COEFFICIENTS + 1]
        func = PushedField(case.plan.field.func, case.plan.field.shape, self.parts)
        wanted = (*own, *case.wanted[COEFFICIENTS + 1 :], *further[COEFFICIENTS + 1 :])
        self.case = self.all.case(case, func, wanted)

    def tangents(self, outputs: Inputs) -> tuple[Tensor | None, ...]:
        """The derivatives of the outputs."""
        parts = map(self.all.each, outputs)
        return tuple(None if p is None else p[1] if self.parts == 2 else p[1] + p[2] for p in parts)

    def values(self, outputs: Inputs) -> tuple[Tensor | None, ...]:
        """The outputs themselves."""
        return tuple(None if p is None else p[0] for p in map(self.all.each, outputs))

    def gradients(self, of_values: Inputs, of_tangents: Inputs) -> tuple[Tensor | None, ...]:
        """Gradients of outputs and of their derivatives, as those of the outputs of the whole."""
        return tuple(
            None
            if d is None
            else self.all.rows(torch.stack([torch.zeros_like(d) if v is None else v, d, d][: self.parts]))
            for v, d in zip(of_values, of_tangents, strict=True)
        )

    def own(self, grads: Inputs) -> tuple[Tensor | None, ...]:
        """Of gradients of all inputs those of the solve's own, the tangents' left out."""
        numbers = grads[:COEFFICIENTS]
        if self.all.apart:
            numbers = [None if g is None else self.all.each_weight(g)[:2].sum(0) for g in numbers]
        z0 = self.all.each(grads[COEFFICIENTS])
        if z0 is not None:
            z0 = z0[0] + z0[2] if self.parts == 3 and self.lines else z0[0]
        tensors = grads[COEFFICIENTS + 1 :]
        return (*numbers, z0, *tensors[: len(tensors) // 2])


def _by_parts(inputs: Inputs) -> bool:
    """Whether output between nodes has weights for each sample of a group: rows side by side would mix them."""
    weights, _, _, dense, _ = inputs[:COEFFICIENTS]
    return dense is not None and weights is not None and dense.shape[-1] > weights.shape[-1]


def _or_zeros(tangent: Tensor | None, x: Tensor | None) -> Tensor | None:
    return torch.zeros_like(x) if tangent is None and x is not None else tangent


class Mapped:
    """So many solves at once, those inputs mapped whose axis is given; with ``every`` all that may get gradients."""

    def __init__(
        self, case: Case, inputs: Inputs, axes: Sequence[int | None], count: int, randomness: str, every: bool
    ) -> None:
        row = case.plan.field.structure.row_shape
        along = [a is not None or (every and wanted) for a, wanted in zip(axes, case.wanted, strict=True)]
        self.all = Several(count, row, any(along[:COEFFICIENTS]) or row[0] > 1 or _by_parts(inputs))
        each = [front(x, a, count) for x, a in zip(inputs, axes, strict=True)]
        numbers = inputs[:COEFFICIENTS]
        if self.all.apart:
            numbers = [None if c is None else self.all.weights(c) for c in each[:COEFFICIENTS]]
        field = case.plan.field
        func, moving = mapped_field(field.func, field.shape, along[COEFFICIENTS + 1 :], count, randomness)
        rest = zip(each[COEFFICIENTS + 1 :], inputs[COEFFICIENTS + 1 :], moving, strict=True)
        self.inputs = (*numbers, self.all.rows(each[COEFFICIENTS]), *[x if moves else y for x, y, moves in rest])
        self.case = self.all.case(case, func, case.wanted)

    def own(self, grads: Inputs) -> tuple[Tensor | None, ...]:
        """Gradients of all inputs, each solve's own along the first axis."""
        numbers = [None if g is None else self.all.each_weight(g) for g in grads[:COEFFICIENTS]]
        return (*numbers, self.all.each(grads[COEFFICIENTS]), *grads[COEFFICIENTS + 1 :])


def front(x: Tensor | None, axis: int | None, count: int) -> Tensor | None:
    """The mapped axis as the first one."""
    if x is None:
        return None
    return x.expand(count, *x.shape) if axis is None else x.movedim(axis, 0)
