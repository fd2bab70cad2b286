"""``func`` as a list of calls: one step is taken and every operation of PyTorch in it is written down.

Calls that see neither the state nor the time are made once a solve, by PyTorch, with its autograd: whatever is done to
parameters and arguments alone is allowed. The others are to become a kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....base.structure import tensors_in
from ....base.torch_private import Recording, pytree


class Refused(Exception):
    """Why a function cannot become a kernel."""


class Unfit(Refused):
    """Why it cannot with this idea of what a sample is."""


@dataclass(frozen=True)
class Call:
    """One operation, the tensors and numbers it got, and what came out."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @property
    def name(self) -> str:
        """For instance ``aten::add``, also where it writes in place."""
        return str(self.op._schema.name).rstrip("_")


class Recorder(Recording):
    """Writes calls down; ``live`` are those that depend on the given tensors, ``constant`` all others.

    Args:
        given: tensors that change from step to step.
        covered: names of the operations that are taken as they are; others are taken apart where PyTorch knows how.
    """

    def __init__(self, given: Iterable[Tensor], covered: Iterable[str]) -> None:
        super().__init__()
        self.live: list[Call] = []
        self.constant: list[Call] = []
        self.covered, self.given = frozenset(covered), {id(x) for x in given}
        self.depends, self.places = set(self.given), dict[int, set[int]]()  # tensors by their storage

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in(args) + (tensors_in(kwargs) if kwargs else [])
        live = any(id(x) in self.depends for x in given)
        if live and op._schema.name not in self.covered:
            with self:
                found = op.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if op._schema.is_mutable and not (live and self._alone(args[0])):
            raise Refused(f"func writes in place, by {op._schema.name}, to a tensor that something else looks at")
        if torch.Tag.nondeterministic_seeded in op.tags:
            raise Refused(f"func draws random numbers, by {op._schema.name}")
        if live and torch.Tag.data_dependent_output in op.tags:
            raise Refused("func looks at the numbers of its state (float(), item(), if)")
        out = op(*args, **kwargs)
        (self.live if live else self.constant).append(Call(op, args, kwargs, out))
        made = tensors_in(out)
        for x in (*given, *made):
            self.places.setdefault(x.untyped_storage().data_ptr(), set()).add(id(x))
        if live:
            self.depends.update(map(id, made))
        return out

    def _alone(self, x: Tensor) -> bool:
        """Whether this tensor was made here and has no views, which would have to change with it."""
        return self.places.get(x.untyped_storage().data_ptr()) == {id(x)} and id(x) not in self.given


class Constants:
    """The constants of a solve: what parameters, arguments and captured tensors become before the first step.

    Args:
        calls: the recorded calls that see neither state nor time.
        leaves: tensors that get a gradient.
    """

    def __init__(self, calls: Sequence[Call], leaves: Sequence[Tensor]) -> None:
        self.calls, self.leaves = calls, leaves
        self.trained = {id(x) for x in leaves}
        for call in calls:
            if any(id(x) in self.trained for x in tensors_in((call.args, call.kwargs))):
                self.trained.update(id(x) for x in tensors_in(call.out) if x.is_floating_point())

    def again(self, own: Sequence[Tensor]) -> dict[int, Tensor]:
        """Every call once more with these tensors in place of the leaves: from a tensor's id to its new value."""
        values = {id(x): y for x, y in zip(self.leaves, own, strict=True)}
        for call in self.calls:
            if not any(id(x) in self.trained for x in tensors_in(call.out)):
                continue
            given = (call.args, call.kwargs)
            args, kwargs = pytree.tree_map_only(Tensor, lambda x: values.get(id(x), x), given)
            found = call.op(*args, **kwargs)
            for x, y in zip(tensors_in(call.out), tensors_in(found), strict=True):
                values[id(x)] = y
        return values


def described(
    calls: Sequence[Call], given: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[Hashable, list[Tensor]]:
    """What calls do, so that equal ones can share a kernel; and every tensor in them, in the order of that description.

    Floating-point numbers of constants may change from solve to solve; indices and masks are part of what is done.
    """
    numbers = {id(x): k for k, x in enumerate(given)}
    seen, made = list(given), set(numbers)

    def name(x: Any) -> Hashable:
        if not isinstance(x, Tensor):
            return repr(x)
        if id(x) not in numbers:
            numbers[id(x)] = len(seen)
            seen.append(x)
        fixed = not x.is_floating_point() and id(x) not in made
        return (numbers[id(x)], tuple(x.shape), x.dtype, tuple(x.flatten().tolist()) if fixed else None)

    lines = []
    for call in calls:
        taken = tuple(map(name, pytree.tree_leaves((call.args, call.kwargs))))
        made.update(id(x) for x in tensors_in(call.out))
        lines.append((str(call.op), taken, tuple(map(name, tensors_in(call.out)))))
    return (tuple(lines), tuple(map(name, (*given, *results)))), seen
