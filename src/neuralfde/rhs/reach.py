"""``func`` as an explicit function of all tensors that it uses, as a transform of the whole solve needs it.

The places where ``func`` holds tensors are found once: parameters and buffers of modules, variables of closures,
entries of dictionaries and lists, attributes of objects. During a call these places, in a replica of ``func``, hold
other tensors. An evaluation checks that ``func`` uses no tensors from elsewhere.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..base.policy import COMMUTING_FLOOR
from ..base.structure import tensors_in
from ..base.torch_private import (
    forward_mode,
    is_constant,
    outside_of_transforms,
    pytree,
    tables,
    value_of,
    without_tangent,
)
from ..base.torch_transforms import Duals
from .field import Field
from .fingerprint import Work
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
        self.field, self.verdict = copy.copy(field), field.verdict
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
        work = Work() if self.verdict.work is None else contextlib.nullcontext()
        with torch.enable_grad(), _Seen() as seen, work:
            start = self.field.times[0]
            out = self(start, *stand)
        if isinstance(work, Work):
            self.verdict.work = work.bytes
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

    def derivatives_commute(self) -> bool:
        """Whether the gradient of ``⟨g, J u⟩``, with ``J u`` from forward mode, is that of ``⟨u, Jᵀ g⟩``.

        A solve computes its second derivatives by the first, autograd those of a loop over all steps by the second.
        They differ where forward mode uses what was saved as a constant (layer norm and batch norm in PyTorch), and
        where ``func`` hides a part of itself from reverse mode alone (``torch.no_grad()``, a Function of its own).
        Evaluates ``func`` a few times. Where the second cannot be computed, there is nothing to differ from.
        """
        row = self.stand[0]
        apart = row + (0.01 + 0.01 * row.abs()) * _pattern(row)  # derivatives at a state of equal numbers may vanish
        for z in (apart, row):
            with outside_of_transforms(), torch.enable_grad():
                x = [y.detach().requires_grad_() for y in (z, *self.stand[1:])]
                u, g = [_pattern(y) for y in x], _pattern(z) + 0.5
                try:
                    expected = self._of_gradients(x, u, g)
                except Exception:
                    return True
                found = self._of_tangent(x, u, g)
            if all(bool(y.isfinite().all()) for y in expected):
                break
        dtype = self.field.autocast["dtype"] if self.field.autocast else row.dtype
        return _agree(found, expected, torch.finfo(dtype).eps)

    def _of_gradients(self, x: list[Tensor], u: list[Tensor], g: Tensor) -> list[Tensor]:
        """The gradient of ``⟨u, Jᵀ g⟩``."""
        with self._same_noise():
            out = self(self.field.times[0], *x)
        first = _gradients([out], x, [g], again=True)
        return _gradients(first, x, u)

    def _of_tangent(self, x: list[Tensor], u: list[Tensor], g: Tensor) -> list[Tensor]:
        """The gradient of ``⟨g, J u⟩``."""
        with self._same_noise(), forward_mode(False), Duals() as duals:
            _, moved = duals.push(self, self.field.times[0], x[0], u[0], (*x[1:], *u[1:]))
            return _gradients([moved], x, [g])

    def _same_noise(self) -> contextlib.AbstractContextManager[None]:
        noise = self.field.noise
        return noise.of_step(0) if noise.active else contextlib.nullcontext()


def moves(x: Tensor) -> bool:
    """Whether a tensor could have a derivative."""
    return x.is_floating_point() or x.is_complex()


def _stand_in(x: Tensor) -> Tensor:
    """A constant of this shape, with the values of ``x`` unless these have an axis of vmap: then with some near 1."""
    plain, shape = without_tangent(value_of(x))[0], x.shape
    if plain.shape == shape:
        return plain
    with outside_of_transforms():
        return 1 + 0.25 * _pattern(torch.ones(shape, dtype=x.dtype, device=x.device))


def _pattern(like: Tensor) -> Tensor:
    """Numbers between -1 and 1 in this shape, each different from its neighbours."""
    angles = torch.arange(like.numel(), dtype=torch.float64, device=like.device)
    return (1.7 * angles + 0.6).cos().reshape(like.shape).to(like.dtype)


def _gradients(outputs: list[Tensor], x: list[Tensor], by: list[Tensor], again: bool = False) -> list[Tensor]:
    """Gradients of ``Σ ⟨by, outputs⟩``, zero for what the outputs do not depend on."""
    pairs = [(y, b) for y, b in zip(outputs, by, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(y) for y in x]
    ends, weights = zip(*pairs, strict=True)
    found = torch.autograd.grad(ends, x, weights, create_graph=again, allow_unused=True)
    return [torch.zeros_like(y) if g is None else g for y, g in zip(x, found, strict=True)]


def _agree(found: list[Tensor], expected: list[Tensor], eps: float) -> bool:
    """Whether numbers agree to half of their digits, up to the rounding of the largest of all."""
    share, floor = eps**0.5, COMMUTING_FLOOR * eps
    most = max((float(y.abs().max()) for y in expected if y.numel()), default=0.0)
    for x, y in zip(found, expected, strict=True):
        if y.numel():
            off, size = float((x - y).abs().max()), max(float(x.abs().max()), float(y.abs().max()))
            if off > share * size + floor * most:  # not so either where both are not finite: nothing is known then
                return False
    return True


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
