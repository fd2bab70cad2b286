"""From recorded calls to a program for one sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....base.structure import tensors_in
from .builder import Builder
from .compound import Compound
from .elements import MIXED, Elements, concatenated, constant_slots, slots_of, structural
from .operations import FILLED, LITERAL, MASKED, OTHERS, POINTWISE, SAME, STRUCTURAL
from .program import Program, Sym
from .record import Call, Constants, Refused, Unfit


@dataclass(frozen=True)
class Lowered:
    """A step for one sample.

    Attributes:
        builder: its nodes, and which numbers of which constants it takes.
        constants: the constants, by the numbers that the builder has for them.
        states, slopes: the nodes of its results, a chunk each.
        sums, weights: the nodes of its inputs, (sum, chunk), and of the local weight; None where it takes none.
    """

    builder: Builder
    constants: list[Tensor]
    states: list[int]
    slopes: list[int]
    sums: list[list[int]]
    weights: list[int]

    @property
    def program(self) -> Program:
        """The nodes."""
        return self.builder.program


class Lowering:
    """One attempt, with one idea of what a sample is."""

    def __init__(self, builder: Builder, constants: Constants, dtype: torch.dtype) -> None:
        self.builder, self.dtype, self.recorded, self.compound = builder, dtype, constants, Compound(builder)
        self.held: dict[int, Elements] = {}
        self.numbers: dict[int, int] = {}  # of constants, by the id of their tensor
        self.tensors: list[Tensor] = []

    def of(self, x: Any) -> Any:
        """An argument of a call: elements for tensors, everything else as it is."""
        if not isinstance(x, Tensor):
            return x
        if id(x) in self.held:
            return self.held[id(x)]
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.tensors)
            if id(x) in self.recorded.trained:
                self.builder.trained.add(len(self.tensors))
            self.tensors.append(x)
        return Elements(constant_slots(self.numbers[id(x)], x.shape))

    def run(self, calls: Sequence[Call]) -> None:
        """All calls, in their order."""
        for call in calls:
            name = call.name.removeprefix("aten::")
            out = tensors_in(call.out)
            for x in out:
                if x.is_floating_point() and x.dtype != self.dtype:
                    raise Refused(f"func changes the precision to {x.dtype}, by {call.name}")
            try:
                found = self._lower(call, name)
            except (TypeError, ValueError, IndexError, NotImplementedError, RuntimeError) as error:
                raise Refused(f"{call.name} is not covered in this form: {error}") from error
            # a buffer for a backward pass may have no elements at all
            found = [y if x.numel() else Elements(torch.empty(x.shape).long()) for x, y in zip(out, found, strict=True)]
            if [elements.slot.shape for elements in found] != [x.shape for x in out]:
                raise Refused(f"{call.name} is not covered in this form")
            self.held.update({id(x): elements for x, elements in zip(out, found, strict=True)})

    def _lower(self, call: Call, name: str) -> list[Elements]:
        args, kwargs = call.args, call.kwargs
        if name in LITERAL or name in FILLED:
            value = LITERAL[name] if name in LITERAL else float(args[FILLED[name]])
            return [Elements(slots_of(self.builder.program.number(value), 1).expand(call.out.shape))]
        if name in STRUCTURAL:
            return structural(call.op, args, kwargs, self.held)
        if name in SAME:
            return [self.of(args[0])]
        if name == "masked_fill":
            name, args = "where", (args[1], args[2], args[0])
        if name in MASKED:
            masks, others = args[: MASKED[name]], args[MASKED[name] :]
            given = [*map(self._mask, masks), *[self.of(_float(x)) for x in others]]
            return [self.builder.pointwise(POINTWISE[name], *given)]
        if name in POINTWISE:
            named = {k: v for k, v in kwargs.items() if k in ("alpha", "value", "rounding_mode", "approximate")}
            rule = POINTWISE[name]
            return [self.builder.pointwise(lambda *xs: rule(*xs, **named), *[self.of(_float(x)) for x in args])]
        if name in OTHERS:
            plain = name.lstrip("_")
            made = getattr(self.compound, plain, None) or getattr(self, f"_{plain}")
            found = made(*[self.of(x) for x in args], **kwargs)
            return found if isinstance(found, list) else [found]
        raise Refused(f"{call.name} is not covered")

    def _mask(self, x: Any) -> Elements:
        """What is true or not; numbers are where they are not zero, and so is a mask that does not change."""
        found: Elements = self.of(x)
        compared = id(x) in self.held and x.dtype == torch.bool
        return found if compared else self.builder.pointwise(lambda c: c.ne(0.0), found)

    def _cat(self, parts: list[Any], dim: int = 0) -> Elements:
        return concatenated(torch.cat, [self.of(x) for x in parts], dim, new_axis=False)

    def _stack(self, parts: list[Any], dim: int = 0) -> Elements:
        return concatenated(torch.stack, [self.of(x) for x in parts], dim, new_axis=True)

    def _mm(self, x: Elements, w: Elements) -> Elements:
        if bool((w.slot >= 0).any()) and bool((x.slot < 0).all()):  # constants come second
            return self.builder.product(w.map(Tensor.t), x.map(Tensor.t)).map(Tensor.t)
        return self.builder.product(x, w)

    def _addmm(self, bias: Elements, x: Elements, w: Elements, beta: float = 1.0, alpha: float = 1.0) -> Elements:
        rule = lambda b, y: b * float(beta) + y * float(alpha)  # noqa: E731
        return self.builder.pointwise(rule, bias, self._mm(x, w))

    def _mv(self, w: Elements, x: Elements) -> Elements:
        return self._mm(x.map(lambda a: a[None]), w.map(Tensor.t)).map(lambda a: a[0])

    def _addmv(self, bias: Elements, w: Elements, x: Elements, beta: float = 1.0, alpha: float = 1.0) -> Elements:
        return self.builder.pointwise(lambda b, y: b * float(beta) + y * float(alpha), bias, self._mv(w, x))

    def _bmm(self, x: Elements, w: Elements) -> Elements:
        if self.builder.chunk > 1:
            raise Refused("aten::bmm is covered for small matrices alone")
        wide = self.builder.pointwise(Sym.__mul__, x.map(lambda a: a[..., None]), w.map(lambda a: a[:, None]))
        return self.builder.summed(wide, [2], False)

    def _baddbmm(self, bias: Elements, x: Elements, w: Elements, beta: float = 1.0, alpha: float = 1.0) -> Elements:
        return self.builder.pointwise(lambda b, y: b * float(beta) + y * float(alpha), bias, self._bmm(x, w))


def _float(x: Any) -> Any:
    return float(x) if isinstance(x, int) and not isinstance(x, bool) else x


def lowered(
    live: Sequence[Call],
    constants: Constants,
    given: tuple[Sequence[Tensor], Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor],
    chunk: int,
    limit: int,
) -> Lowered:
    """The step for one sample: ``given`` are sums, local weight and time; ``where``, the sample and the feature of each
    element of a row."""
    (sums, weight, time), (sample, feature) = given, where
    features = int(feature.max()) + 1
    builder = Builder(int(sample.max()) + 1, chunk, limit, set())
    lowering = Lowering(builder, constants, sums[0].dtype)
    sizes = [min(chunk, features - a) for a in range(0, features, chunk)]

    def entered(op: str, x: Tensor) -> list[int]:
        nodes = [builder.program.add(op, (), size, k) for k, size in enumerate(sizes)]
        slots = torch.cat([slots_of(i, size) for i, size in zip(nodes, sizes, strict=True)])
        lowering.held[id(x)] = Elements(slots[feature].view(x.shape), sample.view(x.shape))
        return nodes

    inputs = [entered(f"sum{i}", x) for i, x in enumerate(sums)]
    weights = entered("local", weight)
    lowering.held[id(time)] = Elements(slots_of(builder.program.add("time", (), 1), 1))
    lowering.run(live)

    by_feature = torch.argsort(feature.view(-1)[builder.order(sample)].view(builder.samples, -1)[0])

    def left(x: Tensor) -> list[int]:
        own = lowering.of(x)
        if own.sample is not None and not torch.equal(own.sample.reshape(-1), sample.reshape(-1)):
            raise Unfit(MIXED)
        rows = builder.rows(own, sample.view(x.shape), x.shape)[:, by_feature]
        found = [builder.piece(rows[:, a : a + size]) for a, size in zip(range(0, features, chunk), sizes, strict=True)]
        return [builder.program.move(i, 0, n, 0, n) for i, n in zip(found, sizes, strict=True)]

    return Lowered(builder, lowering.tensors, left(results[0]), left(results[1]), inputs, weights)
