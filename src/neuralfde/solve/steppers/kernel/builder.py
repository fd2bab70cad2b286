"""A program that grows as the calls of a step are read: tensors in, nodes on chunks of their features out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .elements import FEATURES, MIXED, Elements, constant_of, joined, slots_of
from .program import Matrix, Program, Sym
from .record import Refused, Unfit


@dataclass
class Builder:
    """A program that grows, and the constants that it takes.

    Attributes:
        samples: how many there are.
        chunk: how many features a node has at most.
        limit: how many nodes there may be.
        shared: indices into the constants, (numbers,) each: what all samples share, one after the other.
        own: the same for what each sample has for itself, (samples, numbers) each.
        trained: the numbers of the constants that get a gradient.
    """

    samples: int
    chunk: int
    limit: int
    trained: set[int]
    program: Program = field(default_factory=Program)
    shared: list[Tensor] = field(default_factory=list)
    own: list[Tensor] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)
    orders: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def rows(self, x: Elements, sample: Tensor | None, shape: torch.Size) -> Tensor:
        """The slots of a tensor by sample, (samples or 1, features)."""
        slot = x.slot.expand(shape)
        if sample is None:
            return slot.reshape(1, -1)
        return slot.reshape(-1)[self.order(sample)].view(self.samples, -1)

    def order(self, sample: Tensor) -> Tensor:
        """What sorts elements by sample."""
        known = self.orders.get(id(sample))
        if known is None:
            flat = sample.reshape(-1)
            order = torch.argsort(flat, stable=True)
            if len(flat) % self.samples or not torch.equal(
                flat[order].view(self.samples, -1),
                torch.arange(self.samples)[:, None].expand(-1, len(flat) // self.samples),
            ):
                raise Unfit("func takes different numbers of elements from its samples")
            known = self.orders[id(sample)] = (sample, order)  # held, so that no other tensor gets its id
        return known[1]

    def placed(self, features: Tensor, sample: Tensor | None, shape: torch.Size) -> Elements:
        """A tensor from the slots of one sample's features."""
        if sample is None:
            return Elements(features.view(shape))
        flat = torch.empty(shape.numel(), dtype=torch.int64)
        flat[self.order(sample)] = features.expand(self.samples, -1).reshape(-1)
        return Elements(flat.view(shape), sample)

    def pointwise(self, rule: Callable[..., Sym], *args: Elements | float | None) -> Elements:
        """A formula of nodes, applied to tensors that broadcast, and to numbers."""
        tensors = [a for a in args if isinstance(a, Elements)]
        shape = torch.broadcast_tensors(*[a.slot for a in tensors])[0].shape
        sample = joined([a.sample for a in tensors], shape)
        rows = [self.rows(a, sample, shape) if isinstance(a, Elements) else a for a in args]
        count, found = next(r for r in rows if isinstance(r, Tensor)).shape[1], []
        for start in range(0, count, self.chunk):
            size = min(self.chunk, count - start)
            given = [
                self.program.sym(self.piece(r[:, start : start + size])) if isinstance(r, Tensor) else r for r in rows
            ]
            found.append(self.slots(self.check(rule(*given).index), size))
        return self.placed(torch.cat(found), sample, shape)

    def slots(self, index: int, size: int) -> Tensor:
        """The slots of a node that stands for so many features."""
        return slots_of(index, size) if self.program.nodes[index].size == size else slots_of(index, 1).expand(size)

    def check(self, index: int) -> int:
        """Raise if the program has become too long."""
        if len(self.program.nodes) > self.limit:
            raise Unfit(f"func has more than {self.limit} operations on single numbers or tiles")
        return index

    def piece(self, rows: Tensor) -> int:
        """The node with these slots, (samples or 1, features): one that there is, or one that gathers them."""
        program, first = self.program, rows[0]
        varies = (rows != first).any(0) if len(rows) > 1 else torch.zeros_like(first, dtype=torch.bool)
        if bool((varies & (first >= 0)).any()):
            raise Unfit(MIXED)
        if not bool(varies.any()) and bool((first == first[0]).all()):
            return self.feature(int(first[0]))
        # runs of constants, and of consecutive features of one node; the same feature again is a run of its own kind
        slots, size, found = first.tolist(), len(first), None
        start = 0
        while start < size:
            stop, source, offset = self._run(slots, rows, varies, start)
            part = program.move(source, offset, stop - start, start, size)
            found = part if found is None else (program.sym(found) + program.sym(part)).index
            start = stop
        assert found is not None
        return self.check(found)

    def _run(self, slots: list[int], rows: Tensor, varies: Tensor, start: int) -> tuple[int, int, int]:
        """Where the run that begins at ``start`` ends, the node that it comes from, and its first feature there."""
        stop, step = start + 1, None
        if slots[start] < 0:
            number = constant_of(slots[start])[0]
            while stop < len(slots) and slots[stop] < 0 and constant_of(slots[stop])[0] == number:
                stop += 1
            return stop, self.constant(rows[:, start:stop], bool(varies[start:stop].any())), 0
        while stop < len(slots) and slots[stop] // FEATURES == slots[start] // FEATURES:
            if step is None:
                step = slots[stop] - slots[start]
            if step not in (0, 1) or slots[stop] - slots[stop - 1] != step:
                break
            stop += 1
        if step == 0 and stop - start > 1:
            return stop, self.feature(slots[start]), 0
        return stop, slots[start] // FEATURES, slots[start] % FEATURES

    def feature(self, slot: int) -> int:
        """One feature as a node."""
        if slot < 0:
            return self.constant(torch.tensor([[slot]]), False)
        return self.program.total(slot // FEATURES, slot % FEATURES, 1)

    def constant(self, rows: Tensor, varies: bool) -> int:
        """A node of elements of one constant: ("shared" or "own", where it begins, whether it gets a gradient)."""
        rows = rows if varies else rows[:1]
        return self.program.add("constant", (), rows.shape[1], self._keep(rows, varies))

    def _keep(self, rows: Tensor, varies: bool) -> tuple[str, int, bool]:
        key, held = (varies, rows.numpy().tobytes()), self.own if varies else self.shared
        if key not in self.known:
            self.known[key] = sum(x.shape[-1] for x in held)
            held.append(rows if varies else rows[0])
        return ("own" if varies else "shared", self.known[key], constant_of(int(rows[0, 0]))[0] in self.trained)

    def product(self, x: Elements, w: Elements) -> Elements:
        """A matrix product (rows, n) × (n, columns), where ``w`` is made of constants that all samples share."""
        count, columns = w.slot.shape
        if self.chunk == 1:
            if count * columns > self.limit:
                raise Unfit(f"func has more than {self.limit} operations on single numbers")
            wide = self.pointwise(Sym.__mul__, x.map(lambda a: a.unsqueeze(2)), w.map(lambda a: a.unsqueeze(0)))
            return self.summed(wide, [1], False)
        if bool((w.slot >= 0).any()) or w.sample is not None:
            raise Refused("func multiplies matrices neither of which is constant")
        lines = None
        if x.sample is not None:
            lines = x.sample[:, 0].contiguous()
            if not torch.equal(x.sample, lines[:, None].expand_as(x.sample)):
                raise Unfit(MIXED)
        order = torch.arange(len(x.slot)).view(1, -1) if lines is None else self.order(lines).view(self.samples, -1)
        offset, turned = (self._keep(a.reshape(1, -1), False)[1] for a in (w.slot, w.slot.t()))
        found = torch.empty(len(x.slot), columns, dtype=torch.int64)
        for k in range(order.shape[1]):
            found[order[:, k]] = self._line(x.slot[order[:, k]], (offset, columns, turned, count))
        return Elements(found, None if lines is None else lines[:, None].expand(found.shape).contiguous())

    def _line(self, rows: Tensor, matrix: tuple[int, int, int, int]) -> Tensor:
        """One row of a product, for every sample: pieces of the row times pieces of the matrix, of which is given what
        a :class:`Matrix` begins with."""
        program, count, pieces, start = self.program, rows.shape[1], [], 0
        slots, varies = rows[0].tolist(), (rows != rows[0]).any(0)
        while start < count:
            stop, source, first = self._run(slots, rows, varies, start)
            stop = min(stop, start + self.chunk)
            repeated = program.nodes[source].size == 1 and stop - start > 1
            if slots[start] < 0 or repeated or bool(varies[start:stop].any()):
                source, first = self.piece(rows[:, start:stop]), 0
                if program.nodes[source].size == 1 and stop - start > 1:
                    source = program.move(source, 0, stop - start, 0, stop - start)
            pieces.append((source, first, start, stop - start))
            start = stop
        found = []
        for column in range(0, matrix[1], self.chunk):
            wide, total = min(self.chunk, matrix[1] - column), None
            for source, first, row, size in pieces:
                part = program.linear(source, Matrix(*matrix, row, column, wide, first, size))
                total = part if total is None else (program.sym(total) + program.sym(part)).index
            assert total is not None
            found.append(slots_of(self.check(total), wide))
        return torch.cat(found)

    def summed(self, x: Elements, dims: Sequence[int], keep: bool) -> Elements:
        """The sum over some axes."""
        ndim = x.slot.ndim
        dims = sorted(d % ndim for d in dims) if dims else list(range(ndim))
        rest = [d for d in range(ndim) if d not in dims]
        shape = torch.Size([x.slot.shape[d] for d in rest])
        y = x.map(lambda a: a.permute(*rest, *dims).reshape(*shape, -1))
        sample = None
        if y.sample is not None:
            sample = y.sample[..., 0].contiguous()
            if not torch.equal(y.sample, sample[..., None].expand_as(y.sample)):
                raise Unfit(MIXED)
        parts = [self.rows(Elements(y.slot[..., k]), sample, shape) for k in range(y.slot.shape[-1])]
        count = parts[0].shape[1]
        if count == 1:
            found = self._total(torch.cat(parts, 1))
        else:
            found = torch.cat(
                [self._added([p[:, s : s + self.chunk] for p in parts]) for s in range(0, count, self.chunk)]
            )
        out = self.placed(found, sample, shape)
        return (
            out.map(lambda a: a.reshape([1 if d in dims else s for d, s in enumerate(x.slot.shape)])) if keep else out
        )

    def _total(self, rows: Tensor) -> Tensor:
        """The sum of all features."""
        whole = [self.piece(rows[:, s : s + self.chunk]) for s in range(0, rows.shape[1], self.chunk)]
        sizes = [min(self.chunk, rows.shape[1] - s) for s in range(0, rows.shape[1], self.chunk)]
        parts = [
            self.program.sym(self.program.total(i)) * (1.0 if self.program.nodes[i].size == n else float(n))
            for i, n in zip(whole, sizes, strict=True)
        ]
        return slots_of(self.check(_chain(parts).index), 1)

    def _added(self, parts: list[Tensor]) -> Tensor:
        """The sum of several chunks of features."""
        return self.slots(self.check(_chain([self.program.sym(self.piece(p)) for p in parts]).index), parts[0].shape[1])


def _chain(parts: list[Sym]) -> Sym:
    """A sum, from the first part to the last."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
