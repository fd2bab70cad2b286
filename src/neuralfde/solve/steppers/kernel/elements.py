"""Which number of which sample an element of a tensor is: structure is followed element by element.

A tensor of a recorded step is an integer for each of its elements, its *slot* (a feature of a node of the program, or
an element of a constant), and the sample that it belongs to. Views, slices, transpositions, stacks and gathers act on
these integers as they are; what mixes samples is seen there and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....base.policy import KERNEL_SLOTS
from ....base.structure import tensors_in
from ....base.torch_private import pytree
from .record import Unfit

FEATURES, _CONSTANT = KERNEL_SLOTS
MIXED = "func mixes samples"


@dataclass(frozen=True)
class Elements:
    """A tensor: the slot of each element and, unless all samples share it, the sample that the element belongs to."""

    slot: Tensor
    sample: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Elements:
        """The same change of structure in both."""
        return Elements(change(self.slot), None if self.sample is None else change(self.sample))


def slots_of(index: int, count: int) -> Tensor:
    """The slots of a node's features."""
    return index * FEATURES + torch.arange(count)


def constant_slots(number: int, shape: torch.Size) -> Tensor:
    """The slots of the elements of constant ``number``."""
    return (-1 - number * _CONSTANT - torch.arange(shape.numel())).view(shape)


def joined(samples: Sequence[Tensor | None], shape: torch.Size) -> Tensor | None:
    """The samples of a pointwise result, which must be those of all its arguments."""
    found: Tensor | None = None
    for sample in samples:
        if sample is None:
            continue
        sample = sample.expand(shape)
        if found is None:
            found = sample
        elif not torch.equal(found, sample):
            raise Unfit(MIXED)
    return found


def concatenated(op: Any, parts: list[Elements], dim: int, new_axis: bool) -> Elements:
    """``cat`` or ``stack``; parts that all samples share take the samples of the others."""
    slot = op([part.slot for part in parts], dim)
    own = next((part.sample for part in parts if part.sample is not None), None)
    if own is None:
        return Elements(slot)
    if not new_axis:
        line = own.narrow(dim, 0, 1)
        if not all(p.sample is None or torch.equal(p.sample, line.expand(p.sample.shape)) for p in parts):
            raise Unfit(MIXED)
        return Elements(slot, line.expand(slot.shape))
    if not all(p.sample is None or torch.equal(p.sample, own) for p in parts):
        raise Unfit(MIXED)
    return Elements(slot, op([own] * len(parts), dim))


def constant_of(slot: int) -> tuple[int, int]:
    """The number of a constant, and which of its elements a slot means."""
    return divmod(-1 - slot, _CONSTANT)


@dataclass(frozen=True)
class Pick:
    """Elements of the constants ``numbers``, one after the other: those of these indices, or all of them."""

    numbers: list[int]
    index: Tensor | None
    shape: torch.Size

    def of(self, constants: Sequence[Tensor], like: Tensor) -> Tensor:
        """These elements, in the dtype of ``like``; differentiable."""
        flat = torch.cat([constants[k].reshape(-1).to(like) for k in self.numbers])
        return (flat if self.index is None else flat.index_select(0, self.index)).view(self.shape)


def picked(slots: Tensor, constants: Sequence[Tensor], device: torch.device) -> Pick:
    """Which elements of which constants these slots mean."""
    number, element = (-1 - slots).div(_CONSTANT, rounding_mode="floor"), (-1 - slots) % _CONSTANT
    numbers, total = list(dict.fromkeys(number.reshape(-1).tolist())), 0
    starts = torch.zeros(len(constants), dtype=torch.int64)
    for k in numbers:
        starts[k], total = total, total + constants[k].numel()
    index = (starts[number] + element).reshape(-1)
    whole = len(index) == total and torch.equal(index, torch.arange(total))
    return Pick(numbers, None if whole else index.to(device), slots.shape)


def structural(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], held: dict[int, Elements]) -> list[Elements]:
    """An operation that only rearranges elements, done to their numbers."""

    def done(which: str) -> Any:
        own = lambda x: getattr(held[id(x)], which) if id(x) in held else x.cpu()  # noqa: E731
        given = pytree.tree_map_only(Tensor, own, args)
        if "view" in op._schema.name:  # these integers may lie otherwise in memory than the numbers did
            return given[0].reshape(given[1])
        return op(*given, **kwargs)

    slots = tensors_in(done("slot"))
    shared = all(held[id(x)].sample is None for x in tensors_in(args) if id(x) in held)
    samples = [None] * len(slots) if shared else tensors_in(done("sample"))
    return [Elements(slot, sample) for slot, sample in zip(slots, samples, strict=True)]
