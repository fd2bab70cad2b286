"""Products with transposed Jacobians as operations that are repeated, and gradients of parameters as sums over steps.

Recorded are ``v = f(t, z)`` and the gradients of ``⟨v̄, v⟩``. The operations that lead to ``v`` belong to the forward
pass. The others are repeated in the backward pass, from what the first ones have left in memory: kept for every step
where this is little, and made again otherwise.

Gradients of parameters are added up. If the last operation of one is a product of matrices, as in a linear layer, its
two factors are collected instead, and the products of a block of steps are one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import INSTANTS, REPEATED_KEPT, REPEATED_TOGETHER
from ..base.torch_private import place_of
from .recorder import Call, Recorder


class Sum(NamedTuple):
    """The gradient of a tensor in one step: ``grad`` itself, or a view of the product of two ``factors``."""

    grad: Tensor
    factors: tuple[Tensor, ...]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What has to be known of every step."""
        return self.factors or (self.grad,)

    def over(self, parts: Sequence[Tensor]) -> Tensor:
        """The gradient of many steps, from the parts of each."""
        if not self.factors:
            return parts[0].sum(0)
        a, b = (x if x.ndim == 4 else x[:, None] for x in parts)  # (steps, matrices, …)
        a = a.permute(1, 0, 3, 2).flatten(1, 2).contiguous()  # (matrices, steps · terms, rows or columns): far faster
        b = b.transpose(0, 1).flatten(1, 2).contiguous()
        if a.shape[2] <= b.shape[2]:
            found = torch.bmm(a.transpose(1, 2), b)
        else:
            found = torch.bmm(b.transpose(1, 2), a).transpose(1, 2).contiguous()
        return found.as_strided(self.grad.shape, self.grad.stride(), self.grad.storage_offset())


class Lines:
    """Copies of a piece of memory, one for each step."""

    def __init__(self, x: Tensor) -> None:
        self.own = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
        self.rows, self._first, self._lines = self.own[:0, None], -1, tuple[Tensor, ...]()

    def begin(self, count: int) -> None:
        """Have room for so many lines."""
        if self.rows.shape[0] < count:
            self.rows, self._first = self.own.new_zeros(count, self.own.numel()), -1

    def __getitem__(self, k: int) -> Tensor:
        first = k - k % INSTANTS
        if first != self._first:  # many at once take less time
            self._first, self._lines = first, self.rows[first : first + INSTANTS].unbind(0)
        return self._lines[k - first]


class Products:
    """The operations of a backward pass, what they need of the forward pass, and what is collected for sums.

    Args:
        seen: all operations.
        own: the memory of time, local weight and sums, and of the gradients of state and slope.
        ahead: the operations of the forward pass.
        grads: the gradients of the sums, of the local weight and of further tensors.
        slope: the slope, if the backward pass needs it again.
        steps: how many steps may leave results; 0: none.

    Attributes:
        possible: whether the operations can be taken apart in this way.
        inputs: which of ``own`` they read, besides those gradients.
    """

    def __init__(
        self,
        seen: Recorder,
        own: tuple[Tensor, ...],
        ahead: Sequence[Call],
        grads: Sequence[Tensor | None],
        slope: Tensor | None,
        steps: int,
    ) -> None:
        count = len(own) - 4
        self._grads, self._local, self._slope = list(grads[:count]), grads[count], slope
        self._sums = [g if g is None else _sum(seen, g) for g in grads[count + 1 :]]
        sums, rows = [x for x in self._sums if x is not None], [x for x in self._grads if x is not None]
        each = [x for x in (slope, self._local) if x is not None]  # needed of every step
        parts = [*each, *[x for own_sum in sums for x in own_sum.parts]]
        done, left = {id(call) for call in ahead}, set[int]().union(*[call.writes for call in ahead])
        calls = [call for call in seen.needed([*rows, *parts]) if id(call) not in done]
        read = set(map(place_of, rows)).union(*[call.reads for call in calls])
        self.possible = all(left.isdisjoint(call.writes) for call in calls) and not any(map(_is_flagged, parts))
        self._given = (*own[2:-2], own[-1])  # known to the caller in every step
        memory, wanted = {**{place_of(x): x for x in (*own[:2], own[-2])}, **seen.made}, set(map(place_of, parts))
        self._kept = {place: Lines(memory[place]) for place in left & (read | wanted)}
        self._again = steps == 0 or steps * sum(x.own.nbytes for x in self._kept.values()) > REPEATED_KEPT
        self._kept, self._from = {} if self._again else self._kept, steps
        for lines in self._kept.values():
            lines.begin(steps)
        several = set(map(place_of, [*each, *[x for own_sum in sums for x in own_sum.factors]]))
        known = {*self._kept, *map(place_of, self._given)}
        self._collected = {place: Lines(memory[place]) for place in (several & memory.keys()) - known}
        self._added = {place: Lines(memory[place]) for place in (wanted & memory.keys()) - known - several}
        for lines in self._added.values():
            lines.begin(1)
        inner = {place for place in self._collected.keys() | self._added.keys() if place not in seen.made}
        self._calls = [call.run for call in calls]
        self.inputs = [k for k, x in enumerate(own[:-2]) if place_of(x) in read | inner]

    def keep(self, n: int) -> None:
        """Keep what a forward step has left in memory."""
        self._from = min(n, self._from)
        for lines in self._kept.values():
            lines[n].copy_(lines.own)

    def has(self, n: int) -> bool:
        """Whether that is kept of step ``n``."""
        return n >= self._from and not self._again

    @property
    def together(self) -> int:
        """For how many steps things are collected at once, and their sums held."""
        each = sum(x.nbytes for x in (*[lines.own for lines in self._collected.values()], *self._given))
        return max(1, REPEATED_TOGETHER // each)

    @property
    def calls(self) -> int:
        """How many operations a step takes."""
        return len(self._calls)

    @property
    def bytes(self) -> int:
        """What is kept for all steps, in bytes."""
        return sum(lines.rows.nbytes for lines in self._kept.values())

    def begin(self, steps: range) -> None:
        """Begin a block of steps, which descend."""
        self._last, self._count, self._skipped = steps[-1], len(steps), list[int]()
        for lines in self._collected.values():
            lines.begin(self._count)
        for lines in self._added.values():
            lines.rows.zero_()

    def repeat(self, n: int) -> list[Tensor | None]:
        """The gradients of the sums of step ``n``, where the inputs are in place."""
        for lines in self._kept.values():
            lines.own.copy_(lines[n])
        for call in self._calls:
            call()
        for lines in self._collected.values():
            lines[n - self._last].copy_(lines.own)
        for lines in self._added.values():
            lines[0].add_(lines.own)
        return self._grads

    def skip(self, n: int) -> None:
        """Step ``n`` adds nothing to the sums; its ``bars`` have to be zero."""
        self._skipped.append(self._count - 1 - (n - self._last))
        for lines in self._collected.values():
            lines[n - self._last].zero_()

    def end(self, rows: Tensor, bars: Tensor) -> tuple[list[Tensor | None], Tensor | None, Tensor | None]:
        """The gradients of all tensors, and of every step that of its local weight, and its slope; 0 where skipped.

        ``rows`` (steps, sums, numbers) and ``bars`` (steps, numbers) are the sums of the block and the gradients of its
        slopes.
        """
        stacks = {place: lines.rows[: self._count] for place, lines in self._collected.items()}
        stacks |= {place: lines.rows[self._last : self._last + self._count] for place, lines in self._kept.items()}
        stacks |= {place: lines.rows.clone() for place, lines in self._added.items()}
        given = zip(self._given, (*rows.unbind(1), bars), strict=True)
        stacks |= {place_of(x): known.contiguous().flip(0) for x, known in given}  # a line of each is one piece

        def each(x: Tensor) -> Tensor:
            """A part in all steps of the block, or its sum over them."""
            found = stacks.get(place_of(x))
            if found is None:
                return x.expand(self._count, *x.shape)
            found = found if found.dtype == x.dtype else found.view(x.dtype)
            offset = found.storage_offset() + x.storage_offset()
            return found.as_strided((len(found), *x.shape), (found.stride(0), *x.stride()), offset)

        grads = [None if own is None else own.over([each(x) for x in own.parts]) for own in self._sums]
        local, slopes = (None if x is None else each(x).flip(0) for x in (self._local, self._slope))
        for k in self._skipped:  # a slope that is known otherwise than from its step, as a constant is
            for found in (local, slopes):
                if found is not None:
                    found[k].zero_()
        return grads, local, slopes


def _sum(seen: Recorder, grad: Tensor) -> Sum:
    """How a gradient is added up over steps."""
    calls = [call for call in seen.calls if place_of(grad) in call.writes]
    if len(calls) == 1 and calls[0].name in ("mm", "bmm"):
        out, factors = seen.made[place_of(grad)], calls[0].args
        if out.is_contiguous() and sum(x.numel() for x in factors) <= out.numel():
            return Sum(grad, tuple(factors))
    return Sum(grad, ())


def _is_flagged(x: Tensor) -> bool:
    """Whether a tensor is not what its memory holds, but the conjugate or the negative of it."""
    return x.is_conj() or x.is_neg()
