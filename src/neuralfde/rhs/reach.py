"""``func`` as an explicit function of all tensors that it uses, as a transform of the whole solve needs it.

The places where ``func`` holds tensors are found once: parameters and buffers of modules, variables of closures,
entries of dictionaries and lists, attributes of objects. During a call these places, in a replica of ``func``, hold
other tensors. An evaluation checks that ``func`` uses no tensors from elsewhere.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..base.structure import tensors_in
from ..base.torch_private import is_constant, pytree, tables, value_of
from ..base.torch_transforms import Duals, outside_of_transforms, without_tangent
from .field import Field
from .first import global_names
from .replicas import replica


class Place(NamedTuple):
    """Where a tensor ``x`` is held: ``held[key]``."""

    held: Any
    key: Any
    x: Tensor


class OfTensors:
    """The slope as a function of time, row and tensors: those that ``func`` holds, then those among its arguments.

    Attributes:
        kept: the tensors that ``func`` holds, each once.
        stand: constants in the place of the row and of all tensors, for trial evaluations.
        timeless: whether a trial evaluation did not use the time.
    """

    timeless = False

    def __init__(self, field: Field) -> None:
        self.field = copy.copy(field)
        self.field.func = replica(field.func)  # no other thread sees its places
        self.places, self.stand = list(_walk(self.field.func, set(), 3)), list[Tensor]()
        self._keep({id(x): x for *_, x in self.places}.values())
        self._leaves, self._spec = pytree.tree_flatten(field.args)
        self._moving = [k for k, x in enumerate(self._leaves) if isinstance(x, Tensor) and moves(x)]
        self._flat = all(a is b for a, b in zip(self._leaves, field.args, strict=False))

    def __call__(self, t: Tensor, row: Tensor, *tensors: Tensor) -> Tensor:
        """The slope of a row."""
        args = self._arguments(tensors[len(self.kept) :]) if self._moving else self.field.args
        try:
            for (held, key, _), k in zip(self.places, self._which, strict=True):
                held[key] = tensors[k]
            return self.field.slope(t, row, args)
        finally:
            for held, key, x in self.places:
                held[key] = x

    def _keep(self, kept: Iterable[Tensor]) -> None:
        """Let only these tensors of ``func`` be exchanged."""
        self.kept = list(kept)
        at = {id(x): k for k, x in enumerate(self.kept)}
        self.places = [place for place in self.places if id(place.x) in at]
        self._which = [at[id(place.x)] for place in self.places]

    def _arguments(self, tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """The arguments of ``func`` with these tensors."""
        leaves = list(self._leaves)
        for k, x in zip(self._moving, tensors, strict=True):
            leaves[k] = x
        return tuple(leaves) if self._flat else pytree.tree_unflatten(leaves, self._spec)

    def uses_no_other(self, row: Tensor, needed: Collection[int]) -> bool:
        """Whether no other tensor that ``func`` uses has a derivative or an axis of vmap; evaluates it once.

        Tensors that it does not use are dropped from ``kept``, except those in ``needed`` (ids).
        """
        stand = [_stand_in(x) for x in (row, *self.kept, *filter(moves, tensors_in(self.field.args)))]
        with torch.enable_grad(), _Seen() as seen:
            start = self.field.times[0]
            out = self(start, *stand)
        self.timeless = id(start) not in seen.used
        needed = {*needed, *[id(x) for x in self.kept if without_tangent(x)[1] is not None]}
        keep = [k for k, x in enumerate(self.kept) if id(stand[k + 1]) in seen.used or id(x) in needed]
        self.stand = [stand[0], *[stand[k + 1] for k in keep], *stand[len(self.kept) + 1 :]]
        self._keep([self.kept[k] for k in keep])
        return not (seen.others or out.requires_grad or without_tangent(out)[1] is not None)

    def is_pushed(self) -> None:
        """Raise unless ``func`` supports forward mode; evaluates it once."""
        z, *tensors = self.stand
        with outside_of_transforms(), torch.no_grad(), Duals() as duals:
            zeros = map(torch.zeros_like, tensors)
            duals.push(self, self.field.times[0], z, torch.zeros_like(z), (*tensors, *zeros))


def moves(x: Tensor) -> bool:
    """Whether a tensor could have a derivative."""
    return x.is_floating_point() or x.is_complex()


def _stand_in(x: Tensor) -> Tensor:
    """A constant of this shape, with the values of ``x`` unless these have an axis of vmap."""
    plain, shape = without_tangent(value_of(x))[0], x.shape
    if plain.shape == shape:
        return plain
    with outside_of_transforms():
        return torch.ones(shape, dtype=x.dtype, device=x.device)


class _Seen(TorchFunctionMode):
    """Records which tensors are used (ids), and whether one of them comes from outside and is not constant."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()
        self.others = False
        self._made: dict[int, Tensor] = {}  # kept alive, so that no id is reused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchFunctionMode`."""
        for x in tensors_in([args, kwargs]):
            self.used.add(id(x))
            self.others |= id(x) not in self._made and not is_constant(x)
        out = func(*args, **(kwargs or {}))
        self._made |= {id(x): x for x in tensors_in([out])}
        return out


class _Cell:
    """A variable of a closure, with the interface of a dictionary."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __getitem__(self, key: None) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, key: None, value: Any) -> None:
        self.cell.cell_contents = value


def _walk(thing: Any, seen: set[int], depth: int) -> Iterator[Place]:
    """Every place that ``thing`` can reach and that holds a tensor which could have a derivative, once."""
    if id(thing) in seen or depth < 0:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        for _, table in tables(thing):
            yield from _entries(table, table.items(), seen, depth)
        for part in thing.modules():
            own = {k: x for k, x in vars(part).items() if callable(x) and not isinstance(x, nn.Module)}
            yield from _entries(vars(part), own.items(), seen, depth)
    elif isinstance(thing, types.FunctionType):
        for cell in thing.__closure__ or ():
            if cell != types.CellType():
                yield from _entries(_Cell(cell), [(None, cell.cell_contents)], seen, depth)
        for name in global_names(thing):
            yield from _walk(thing.__globals__[name], seen, depth - 1)
    elif isinstance(thing, types.MethodType):
        yield from _walk(thing.__self__, seen, depth)
        yield from _walk(thing.__func__, seen, depth)
    elif isinstance(thing, functools.partial):
        for bound in (thing.func, thing.args, thing.keywords):
            yield from _walk(bound, seen, depth)
    elif isinstance(thing, dict):
        yield from _entries(thing, list(thing.items()), seen, depth)
    elif isinstance(thing, list | tuple):
        places = () if isinstance(thing, tuple) else enumerate(thing)
        yield from _entries(thing, places, seen, depth)
        for entry in thing if isinstance(thing, tuple) else ():
            yield from _walk(entry, seen, depth - 1)
    elif not isinstance(thing, type | types.ModuleType | Tensor) and hasattr(thing, "__dict__"):
        yield from _walk(vars(thing), seen, depth)


def _entries(held: Any, items: Any, seen: set[int], depth: int) -> Iterator[Place]:
    for key, value in items:
        if isinstance(value, Tensor):
            if moves(value):
                yield Place(held, key, value)
        else:
            yield from _walk(value, seen, depth - 1)
