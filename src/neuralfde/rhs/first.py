"""The first evaluation of ``func``: what it returns, which tensors it captures, its side effects, its random numbers.

A function that updates a counter, a list or a buffer gives other results when it is evaluated at many times at once or
replayed as a CUDA graph. So everything that it can reach is compared before and after the call: attributes and buffers
of the module and its submodules, what a closure or a bound object holds, and the globals that its code mentions.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import pickle
import random
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base.caches import capturing
from ..base.checks import misfit
from ..base.policy import COMPARED_ENTRIES
from ..base.structure import tensors_in
from ..base.torch_private import has_hooks, pytree, sequence_number, uncompiled, version_of
from ..errors import CapturedTensorError, InputError, InputTypeError, UnsupportedError
from .field import GENERATORS, Field, describe
from .fingerprint import Watch, Work

#: Attributes of a module that are not compared as such: buffers are compared separately, parameters and hooks are not.
_OWN = frozenset(nn.Module().__dict__) - {"training"}
#: Types that are compared by value.
_PLAIN = (bool, int, float, complex, str, bytes)
_CALLED = (nn.Module, types.FunctionType, types.MethodType, torch.jit.ScriptFunction)
#: What a function calls that puts hooks on tensors.
_HOOKING = frozenset(["register_hook", "register_prehook", "register_multi_grad_hook", "saved_tensors_hooks"])
#: Functions that draw random numbers; during the capture of a CUDA graph this cannot be found out.
DRAWS: weakref.WeakSet[Any] = weakref.WeakSet()


def first_evaluation(
    field: Field,
    row: Tensor,
    known: Sequence[Tensor] | None,
    watch: bool = False,
    keep_graph: bool = False,
    measure: bool = False,
) -> None:
    """Call ``func`` once: check what it returns and captures, and whether it has side effects or draws random numbers.

    ``known`` are the tensors that may get gradients, None inside a transform. With gradients enabled, a captured tensor
    is found in the graph of the call, before any work is done. ``watch``: record the operations, to recognise them in a
    later solve. ``keep_graph``: keep the graph, for the first step. ``measure``: find out how much an evaluation
    computes, unless an earlier solve has.
    """
    if capturing() and field.func in DRAWS:
        raise UnsupportedError(
            "func draws random numbers (dropout?), which a captured solve would not repeat in its backward pass. "
            "Leave the solve out of the CUDA graph, or pass the noise through args=."
        )
    traced = torch.is_grad_enabled() and known is not None
    z = row.detach().view(field.shape)
    mark = sequence_number(z.requires_grad_()) if traced else 0
    start = field.times[0]
    had = held_by(field.func)
    kept, versions, described = marked(had), _versions(field.args), _described(field.args)
    field.known_by = (tuple(kept.items()), described)
    field.work = field.verdict.work if measure else None
    work = Work() if measure and field.work is None else None
    with GENERATORS:
        before, own, called = field.noise.peek(), z.clone(), None
        try:
            out = _first(field, start, own, watch, work)
        except Exception as error:
            if not (watch or work is not None) or not _cannot_be_shown(error):
                raise
            work, own, called = None, z.clone(), "an operation that is given functions, such as torch.cond"
            out = _first(field, start, own)
        field.noise.activate_if_drawn(before)
    held = held_by(field.func)
    after = marked(held)
    field.impure = changed(kept, after) or (None if versions == _versions(field.args) else "its arguments")
    field.overwrites = field.overwrites or version_of(own) > 0
    reached = [x for _, x in held if isinstance(x, _CALLED)]
    field.hooked = field.hooked or any(has_hooks(x) for x in reached if isinstance(x, nn.Module))
    parts = [
        x for thing in (field.func, *reached) for x in (thing.modules() if isinstance(thing, nn.Module) else [thing])
    ]
    field.hooked = field.hooked or any(map(_puts_hooks, {f.__code__ for f in _functions(parts)}))
    field.scripted = any(isinstance(x, torch.jit.ScriptModule | torch.jit.ScriptFunction) for x in parts)
    field.known_by = (tuple(after.items()), described)
    if work is not None:
        field.work = field.verdict.work = work.bytes
    if called is not None:
        field.verdict.called = called
    field.evaluations += 1
    field.check(out)
    if traced and known is not None:
        field.known = [*known, *tensors_in(field.args)]
        mine, stays = {id(x) for x in field.known}, {id(x) for _, x in had}  # others were made by this call
        outside = [x for _, x in held if isinstance(x, Tensor) and x.requires_grad]
        field.outside = [x for x in outside if id(x) in stays and id(x) not in mine]
        refuse_captured(tensors_in(out), [z, *field.known], mark)
    if field.noise.active:
        with contextlib.suppress(TypeError):  # func does not allow weak references
            DRAWS.add(field.func)
    elif known is not None:
        slope = field.structure.pack(out).to(row.dtype).view(field.shape)
        field.first_slope, field.first_graph = slope.detach(), (z, slope) if traced and keep_graph else None


def refuse_state(field: Field, row: Tensor) -> None:
    """Raise if the values of ``func`` depend on something it changes: an implicit stage calls it several times.

    A number or a buffer that changes (a counter, running statistics) need not affect the values: then a second call at
    the same point gives the same.
    """
    changed = dict(held_by(field.func)).get(field.impure or "")
    harmless = isinstance(changed, int | float) or (isinstance(changed, Tensor) and not changed.requires_grad)
    if harmless and not field.noise.active:
        with torch.no_grad():
            again = _first(field, field.times[0], row.detach().clone())
            field.evaluations += 1
            once = field.first_slope
            if once is not None and torch.equal(field.structure.pack(again).view(field.shape), once):
                return
    elif field.noise.active:
        return
    raise InputError(
        f"func changes {field.impure} when it is called, and an implicit method calls it several times per step: the "
        "result would depend on how often. Let func depend on (t, z, *args) alone, or use an explicit method."
    )


def _first(field: Field, start: Tensor, own: Tensor, watch: bool = False, work: Work | None = None) -> Any:
    """Call ``func``; with ``watch``, record its operations, with ``work``, what they compute."""
    with contextlib.ExitStack() as around:
        if work is not None:
            around.enter_context(uncompiled())
            around.enter_context(work)
        if watch:
            around.enter_context(uncompiled())
            watched = around.enter_context(Watch([own, field.times, *tensors_in(field.args)]))
        if field.autocast:
            around.enter_context(torch.autocast(**field.autocast))
        try:
            return field.func(start, field.structure.unpack(own.view(field.structure.row_shape)), *field.args)
        except Exception as error:
            refuse_arguments(field, error)
            error.add_note(_call(field))
            raise
        finally:
            if watch:
                field.trace, field.taken = tuple(watched.lines), watched.taken


def _cannot_be_shown(error: Exception) -> bool:
    """Whether PyTorch cannot show an operation that is given functions to those who watch."""
    return "HigherOrderOperator" in str(error) or type(error).__module__.startswith("torch._dynamo")


def refuse_arguments(field: Field, error: Exception) -> None:
    """Raise if an error comes from a ``func`` that does not take what it is given."""
    why = misfit(field.func, *[None] * (2 + len(field.args))) if isinstance(error, TypeError) else None
    if why is not None:
        call = ", ".join(["t", "z", *["…"] * len(field.args)])
        raise InputTypeError(
            f"func cannot be called as func({call}): {why}. It takes the time first, also if it does not use it, then "
            "the state, with lags= the delayed state, and what is in args=: lambda t, z: net(z), for example."
        ) from error


def _call(field: Field) -> str:
    """How ``func`` was called: a note for the user whose ``func`` raised."""
    call = "func(t, z, *args)" if field.args else "func(t, z)"
    dtype, device = field.structure.dtype, field.structure.device
    state = f"{describe(field.structure)}, {dtype} on {device}"
    own = next(field.func.parameters(), None) if isinstance(field.func, nn.Module) else None
    has = "" if own is None else f" Its parameters are {own.dtype} on {own.device}."
    if own is not None and (own.dtype, own.device) != (dtype, device):
        has += " Convert the state or func, with .to(dtype) or .to(device)."
    return f"This was the first evaluation of func, as {call} with t a 0-d tensor and z {state}.{has}"


def _described(args: tuple[Any, ...]) -> Hashable:
    """What identifies the arguments: tensors by shape and dtype, numbers and strings by value, others by identity."""
    if not args:
        return ()
    leaves, spec = pytree.tree_flatten(args)
    return repr(spec), tuple(map(_kind, leaves))


def _versions(args: tuple[Any, ...]) -> list[int]:
    """How often each tensor among the arguments has been written to."""
    return [version_of(x) for x in tensors_in(args)]


def _kind(x: Any) -> Hashable:
    if isinstance(x, Tensor):
        return (x.shape, x.dtype)
    return (type(x), x if x is None or isinstance(x, bool | int | float | str) else id(x))


def refuse_captured(outputs: Sequence[Tensor], known: Sequence[Tensor], mark: int = 0) -> None:
    """Walk the autograd graph of ``func``'s result; raise if it leads to a tensor that is not in ``known``.

    ``mark`` is the sequence number of autograd when the call began: an older node belongs to a tensor computed before.
    """
    allowed = {id(x) for x in known}
    for node, leaf in graph_nodes(outputs, known):
        if leaf is not None and id(leaf) not in allowed:
            raise captured_error(f"a leaf tensor of shape {tuple(leaf.shape)}")
        if leaf is None and node._sequence_nr() < mark:
            raise captured_error(f"a tensor computed earlier by {node.name()}")


def refuse_computed(params: Sequence[Tensor]) -> None:
    """Raise if one of these tensors that ``func`` uses was computed from another: both gradients would include it."""
    made, leaves = {x.grad_fn for x in params if x.grad_fn is not None}, {id(x) for x in params if x.is_leaf}
    if not made or len(params) < 2:
        return
    pending: list[Any] = [child for node in made for child, _ in node.next_functions]
    seen: set[Any] = {None}
    while pending:
        node = pending.pop()
        if node in made or id(getattr(node, "variable", None)) in leaves:
            raise InputError(
                "params= has a tensor that is computed from another one of params=, and what flows through it would be "
                "in the gradients of both. Pass one of them through args=, or let func use a copy, x.view_as(x)."
            )
        if node not in seen:
            seen.add(node)
            pending += [child for child, _ in node.next_functions]


def graph_nodes(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor | None]]:
    """The autograd nodes behind ``outputs``, down to those that made ``known``; leaf nodes come with their tensors."""
    pending: list[Any] = [x.grad_fn for x in outputs]
    seen = {None, *[x.grad_fn for x in known]}
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node, getattr(node, "variable", None)
            pending += [child for child, _ in node.next_functions]


def captured_error(what: str) -> CapturedTensorError:
    """The error for a tensor that ``func`` uses and that would get no gradient."""
    return CapturedTensorError(
        f"func uses {what} that requires grad but is neither a parameter of func nor passed in: it would silently get "
        "no gradient. Pass it through args=(...) and take it as an argument of func, list it in params=[...], "
        "make func an nn.Module that owns it, or detach() it if no gradient is wanted."
    )


def held_by(func: Any) -> list[tuple[str, Any]]:
    """Everything that ``func`` can reach and a call could change, by name: not the parameters of modules."""
    return list(_walk(func, "func", 2))


def marked(held: list[tuple[str, Any]]) -> dict[str, Hashable]:
    """A fingerprint of each thing; if two of these are equal, nothing was seen to change."""
    return {name: _mark(value) for name, value in held}


def changed(before: dict[str, Hashable], after: dict[str, Hashable]) -> str | None:
    """The name of something that has changed, or None."""
    if before == after:
        return None
    return next((name for name in (*after, *before) if before.get(name) != after.get(name)), None)


def _walk(thing: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, nn.Module):
        yield from _module(thing, name, depth)
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, name, depth)
    elif isinstance(thing, types.MethodType):
        yield from _walk(thing.__self__, name, depth)
        yield from _function(thing.__func__, name, depth)  # type: ignore[arg-type]
    elif isinstance(thing, functools.partial):
        for key, value in (("func", thing.func), *enumerate(thing.args), *thing.keywords.items()):
            yield from _held(value, f"{name}.{key}", depth)
    elif isinstance(thing, dict | list | tuple | collections.deque):
        entries = list(thing.items() if isinstance(thing, dict) else enumerate(thing))
        for key, value in (*entries[:COMPARED_ENTRIES], *entries[-COMPARED_ENTRIES:]):
            if not isinstance(value, _PLAIN):
                yield from _held(value, f"{name}[{key}]", depth - 1)
    elif "__module__" in vars(type(thing)) and type(thing).__module__ != "torch" and hasattr(thing, "__dict__"):
        for key, value in list(vars(thing).items()):
            yield from _held(value, f"{name}.{key}", depth)
        for function in _methods("__call__", [type(thing)]):
            yield from _function(function, name, depth, classes=False)


def _held(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """A value, and everything that can be reached from it."""
    yield name, value
    if depth > 0 and not isinstance(value, Tensor):
        yield from _walk(value, name, depth - 1)


def _module(module: nn.Module, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    for path, part in module.named_modules():
        where = f"{name}.{path}" if path else name
        for key, value in part.__dict__.items():
            if key in _OWN or isinstance(value, nn.Module):
                continue
            if isinstance(value, _PLAIN):  # a short cut for most attributes
                yield f"{where}.{key}", value
            else:
                yield from _held(value, f"{where}.{key}", depth)
        for key, buffer in part._buffers.items():
            if buffer is not None:
                yield f"{where}.{key}", buffer
    for function in _methods("forward", map(type, module.modules())):
        yield from _function(function, name, depth, classes=False)


def _methods(name: str, kinds: Iterable[type]) -> list[types.FunctionType]:
    """The functions of this name that classes have, each once, but for those of PyTorch."""
    found = dict.fromkeys(getattr(kind, name, None) for kind in dict.fromkeys(kinds))
    return [x for x in found if isinstance(x, types.FunctionType) and not _is_torch(x)]


def _is_torch(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


def _function(function: types.FunctionType, name: str, depth: int, classes: bool = True) -> Iterator[tuple[str, Any]]:
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
        if value is not function and (classes or not isinstance(value, type)):  # super() closes over the class
            yield from _held(value, key, depth)
    for k, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield from _held(value, f"{name}.default {k}", depth)
    for key, value in function.__dict__.items():
        if key != "__wrapped__":
            yield from _held(value, f"{name}.{key}", depth)
    for key in global_names(function):
        yield from _held(function.__globals__[key], key, depth)
    yield from _random_sources(function)


def _random_sources(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What ``random``, ``numpy.random`` and their functions draw from, where a function mentions them."""
    names = [] if _is_torch(function) else list(_names(function.__code__))
    for key in names:
        thing = function.__globals__.get(key)
        for _ in range(2):  # numpy.random.random, random.random
            if isinstance(thing, types.ModuleType):
                named = "random" in names or thing.__name__.endswith("random")
                thing = vars(thing).get("random") if named else None
        if isinstance(thing, types.BuiltinFunctionType | types.MethodType) and _is_random(thing.__self__):
            yield key, thing.__self__


def _is_random(thing: Any) -> bool:
    """Whether random numbers are drawn from it."""
    return isinstance(thing, random.Random) or type(thing).__module__.startswith("numpy.random")


def global_names(function: types.FunctionType) -> Iterator[str]:
    """The global variables that a function mentions."""
    if _is_torch(function):
        return  # globals of PyTorch's own functions are not state of the caller
    for key in _globals_of(function.__code__):
        value = function.__globals__.get(key, function)
        if value is not function and not isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            yield key


@functools.lru_cache(256)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The names that a function, its comprehensions and its lambdas look up as global variables, each once."""
    own = [x.argval for x in dis.get_instructions(code) if "GLOBAL" in x.opname or x.opname == "LOAD_NAME"]
    inner = [name for x in code.co_consts if isinstance(x, types.CodeType) for name in _globals_of(x)]
    return tuple(dict.fromkeys([*own, *inner]))


def _functions(parts: Iterable[Any]) -> Iterator[types.FunctionType]:
    """The functions that a call runs, of functions, bound methods and modules; but for those of PyTorch."""
    parts = list(parts)
    yield from _methods("forward", [type(x) for x in parts if isinstance(x, nn.Module)])
    for x in parts:
        function = x.__func__ if isinstance(x, types.MethodType) else x
        if isinstance(function, types.FunctionType) and not _is_torch(function):
            yield function


@functools.lru_cache(256)
def _puts_hooks(code: types.CodeType) -> bool:
    return not _HOOKING.isdisjoint(_names(code))


def _names(code: types.CodeType) -> Iterator[str]:
    """All names in the code of a function, of its comprehensions and of its lambdas."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _mark(value: Any) -> Hashable:
    """The fingerprint of a value: numbers by value, tensors by version, containers by length and some entries.

    That of a source of random numbers is where it is in their sequence.
    """
    if isinstance(value, Tensor):
        return (id(value), version_of(value))
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple | set | dict | collections.deque):
        first = list(value.values() if isinstance(value, dict) else value)
        entries = [*first[:COMPARED_ENTRIES], *first[-COMPARED_ENTRIES:]]
        return (id(value), len(value), tuple(x if isinstance(x, int | float | str) else id(x) for x in entries))
    if isinstance(value, torch.Generator):
        return (id(value), bytes(value.get_state().tolist()))
    if _is_random(value):
        try:
            return (id(value), pickle.dumps(value))
        except Exception:  # random.SystemRandom does not say where it is
            return object()
    if hasattr(value, "__next__"):
        return object()  # an iterator cannot be compared without changing it: it counts as changed
    if hasattr(value, "__array_interface__"):
        ends = value.flat[:COMPARED_ENTRIES], value.flat[-COMPARED_ENTRIES:]
        return (id(value), value.size, *[end.tobytes() for end in ends])
    try:
        return (id(value), len(value))
    except Exception:  # it has no length, or does not say it: scripted modules raise
        return id(value)
