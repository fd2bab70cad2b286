"""Whether ``func`` changes anything when it is called.

A function that keeps a counter, a list of states or a buffer gives other results when a solver evaluates it at many
times at once, or replays it as a CUDA graph. What it can reach is written down before and after a call: attributes of
the module and its submodules, buffers, what a closure or a bound object holds, and the global names that its code
mentions.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

#: Dictionaries of a module that hold parameters, buffers and hooks: looked at by themselves, or never changed by a
#: call.
_OWN = frozenset(nn.Module().__dict__) - {"training"}
# Containers are compared by length and by the identity of their first entries: a change in a call shows there.
_ENTRIES = 8
_CHANGING = (int, float, list, dict, set, Tensor)
# Globals that are code: what they hold is not followed.
_STILL = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def reachable(func: Any) -> dict[str, Hashable]:
    """What a call of ``func`` could change, by name; two calls compare equal unless something was changed."""
    found: dict[str, Hashable] = {}
    _walk(func, "func", 2, found)
    return found


def changed(before: dict[str, Hashable], after: dict[str, Hashable]) -> str | None:
    """The name of something that is not as it was, or None."""
    if before == after:
        return None
    return next((name for name in (*after, *before) if before.get(name) != after.get(name)), None)


def _walk(thing: Any, name: str, depth: int, found: dict[str, Hashable]) -> None:
    """Write down what this can reach."""
    if isinstance(thing, types.FunctionType):
        _function(thing, depth, found)
    elif isinstance(thing, nn.Module):
        _module(thing, name, found)
    elif isinstance(thing, functools.partial):
        _walk(thing.func, name, depth, found)
        for k, value in enumerate((*thing.args, *thing.keywords.values())):
            found[f"an argument of {name}"] = (found.get(f"an argument of {name}"), k, _mark(value))
    elif isinstance(thing, types.MethodType):
        _walk(thing.__self__, name, depth, found)
        _function(thing.__func__, depth, found)  # type: ignore[arg-type]
    elif depth > 0 and type(thing).__module__ not in ("builtins", "torch") and hasattr(thing, "__dict__"):
        found |= {f"{name}.{key}": _mark(value) for key, value in list(vars(thing).items())}


def _module(module: nn.Module, name: str, found: dict[str, Hashable]) -> None:
    for path, part in module.named_modules():
        where = f"{name}.{path}" if path else name
        found |= {f"{where}.{key}": _mark(value) for key, value in part.__dict__.items() if key not in _OWN}
        found |= {f"{where}.{key}": _mark(buffer) for key, buffer in part._buffers.items() if buffer is not None}


def _function(function: types.FunctionType, depth: int, found: dict[str, Hashable]) -> None:
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
        found[key] = _mark(value)
        if depth > 0:
            _walk(value, key, depth - 1, found)
    known = function.__globals__
    for key in function.__code__.co_names:
        value = known.get(key)
        if isinstance(value, _CHANGING):
            found[key] = _mark(value)
        elif depth > 0 and value is not None and not isinstance(value, _STILL):
            _walk(value, key, 1, found)


def _length(x: Any) -> int:
    return len(x) if isinstance(x, list | tuple | set | dict | collections.deque) else 0


def _entry(x: Any) -> Hashable:
    if isinstance(x, int | float | str):
        return x
    return (id(x), x._version if isinstance(x, Tensor) and not x.is_inference() else _length(x))


def _mark(value: Any) -> Hashable:
    """A value as it is now: numbers themselves, tensors by version, containers by length and some entries."""
    if isinstance(value, Tensor):
        return (id(value), 0 if value.is_inference() else value._version)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, list | tuple | set | dict):
        first = list(value.values() if isinstance(value, dict) else value)
        entries = [*first[:_ENTRIES], *first[-_ENTRIES:]]
        return (id(value), len(value), tuple(map(_entry, entries)))
    return (id(value), _length(value))
