"""Replicas of functions and modules: the same code and the same tensors, in containers of their own.

So a tensor in a replica can be exchanged without affecting the original, which another thread may be using.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from torch import Tensor, nn

from .first import global_names


def replica(thing: Any) -> Any:
    """A replica of a function, module or container; objects that cannot be replicated are shared."""
    return _Replicas().of(thing, 4)


class _Replicas:
    """Makes one replica of each object, however often it occurs."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.alive: list[Any] = []  # keeps the originals alive, so that no id is reused

    def of(self, thing: Any, depth: int) -> Any:
        """The replica of an object; nested objects are replicated down to this depth."""
        if id(thing) in self.made:
            return self.made[id(thing)]
        if (
            depth < 0
            or thing is None
            or isinstance(thing, Tensor | type | types.ModuleType | str | bytes | int | float)
        ):
            return thing
        self.alive.append(thing)
        if isinstance(thing, nn.Module):
            return self._module(thing, depth)
        if isinstance(thing, types.FunctionType):
            return self._function(thing, depth)
        if isinstance(thing, types.MethodType):
            return types.MethodType(self.of(thing.__func__, depth), self.of(thing.__self__, depth))
        if type(thing) is functools.partial:
            given = [self.of(x, depth - 1) for x in thing.args]
            named = {k: self.of(x, depth - 1) for k, x in thing.keywords.items()}
            return functools.partial(self.of(thing.func, depth), *given, **named)
        if type(thing) in (dict, list, tuple):
            return self._container(thing, depth)
        if type(thing).__new__ is object.__new__ and hasattr(thing, "__dict__"):
            return self._object(thing, depth)
        return thing

    def _module(self, module: nn.Module, depth: int) -> nn.Module:
        new = self._object(module, depth - 1)
        for name in ("_parameters", "_buffers"):
            new.__dict__[name] = dict(module.__dict__[name])
        new.__dict__["_modules"] = {k: self.of(x, depth) for k, x in module.__dict__["_modules"].items()}
        return new  # type: ignore[no-any-return]

    def _object(self, thing: Any, depth: int) -> Any:
        self.made[id(thing)] = new = object.__new__(type(thing))
        own = _OWN if isinstance(thing, nn.Module) else frozenset()
        new.__dict__.update({k: x if k in own else self.of(x, depth - 1) for k, x in vars(thing).items()})
        return new

    def _container(self, thing: Any, depth: int) -> Any:
        if isinstance(thing, tuple):
            return tuple(self.of(x, depth - 1) for x in thing)
        self.made[id(thing)] = new = type(thing)(thing)
        for key, x in new.items() if isinstance(new, dict) else enumerate(new):
            new[key] = self.of(x, depth - 1)
        return new

    def _function(self, function: types.FunctionType, depth: int) -> types.FunctionType:
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        mentioned = {k: function.__globals__[k] for k in global_names(function)}
        new = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells or None)
        self.made[id(function)] = new
        anew = {k: self.of(x, depth - 1) for k, x in mentioned.items()}
        if any(anew[k] is not x for k, x in mentioned.items()):
            new = types.FunctionType(
                function.__code__, {**function.__globals__, **anew}, function.__name__, None, cells or None
            )
            self.made[id(function)] = new
        new.__defaults__, new.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        new.__dict__.update(function.__dict__)
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            if old != types.CellType():
                cell.cell_contents = self.of(old.cell_contents, depth - 1)
        return new


#: Dictionaries of a module that are replicated separately, or shared.
_OWN = frozenset(nn.Module().__dict__)
