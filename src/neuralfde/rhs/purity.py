"""What ``func`` holds and draws: whether a call changes any of it, and what it was when ``fdeint`` was called.

A function that keeps a counter, a list of states or a buffer gives other results when a solver evaluates it at many
times at once, or replays it as a CUDA graph. What it can reach is written down before and after a call: attributes of
the module and its submodules, buffers, what a closure or a bound object holds, and the global names that its code
mentions. A backward pass may come after anything, and finds ``func`` as it was.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base.caches import capturing
from ..base.policy import COMPARED_ENTRIES
from ..base.torch_private import hooks_at_rest, places, value_of, version_of, with_parameters
from ..errors import ChangedFunctionError

#: Dictionaries of a module that are looked at by themselves (parameters, buffers), or never changed by a call (hooks).
_OWN = frozenset(nn.Module().__dict__) - {"training"}
#: What is compared by its value.
_PLAIN = (bool, int, float, complex, str, bytes)


#: The generators that ``func`` draws from belong to the process: one solve at a time may set them. A ``func`` may
#: contain a solve of its own.
GENERATORS = threading.RLock()
#: Functions seen to draw random numbers; while a graph is captured the generators cannot be asked.
DRAWS: weakref.WeakSet[Any] = weakref.WeakSet()


def held_by(func: Any) -> list[tuple[str, Any]]:
    """What ``func`` can reach and a call could change, by name: all but parameters of modules."""
    return list(_walk(func, "func", 2))


def marked(held: list[tuple[str, Any]]) -> dict[str, Hashable]:
    """Each thing as it is now; two of these are equal unless something was changed."""
    return {name: _mark(value) for name, value in held}


def changed(before: dict[str, Hashable], after: dict[str, Hashable]) -> str | None:
    """The name of something that is not as it was, or None."""
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


def _held(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """A value that something holds, and what it holds itself."""
    yield name, value
    if depth > 0 and not isinstance(value, Tensor):
        yield from _walk(value, name, depth - 1)


def _module(module: nn.Module, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    for path, part in module.named_modules():
        where = f"{name}.{path}" if path else name
        for key, value in part.__dict__.items():
            if key in _OWN or isinstance(value, nn.Module):
                continue
            if isinstance(value, _PLAIN):  # most of them
                yield f"{where}.{key}", value
            else:
                yield from _held(value, f"{where}.{key}", depth)
        for key, buffer in part._buffers.items():
            if buffer is not None:
                yield f"{where}.{key}", buffer


def _function(function: types.FunctionType, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
        if value is not function:
            yield from _held(value, key, depth)
    for k, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield from _held(value, f"{name}.default {k}", depth)
    for key, value in function.__dict__.items():
        if key != "__wrapped__":
            yield from _held(value, f"{name}.{key}", depth)
    for key in global_names(function):
        yield from _held(function.__globals__[key], key, depth)


def global_names(function: types.FunctionType) -> Iterator[str]:
    """The global variables that a function mentions."""
    if function.__module__ is not None and function.__module__.partition(".")[0] == "torch":
        return  # what PyTorch's own functions use by name is no state of the caller's
    for key in _names(function.__code__):
        value = function.__globals__.get(key, function)
        if value is not function and not isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            yield key


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names that a function mentions, also inside its comprehensions and lambdas."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _mark(value: Any) -> Hashable:
    """A value as it is now: numbers themselves, tensors by version, containers by length and some entries."""
    if isinstance(value, Tensor):
        return (id(value), version_of(value))
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple | set | dict | collections.deque):
        first = list(value.values() if isinstance(value, dict) else value)
        entries = [*first[:COMPARED_ENTRIES], *first[-COMPARED_ENTRIES:]]
        return (id(value), len(value), tuple(x if isinstance(x, int | float | str) else id(x) for x in entries))
    if hasattr(value, "__next__"):
        return object()  # asking an iterator for its state would change it: none is like the one before
    if hasattr(value, "__array_interface__"):
        ends = value.flat[:COMPARED_ENTRIES], value.flat[-COMPARED_ENTRIES:]
        return (id(value), value.size, *[end.tobytes() for end in ends])
    return (id(value), len(value)) if hasattr(value, "__len__") else id(value)


class Called:
    """What a backward pass needs to evaluate the same ``func`` again.

    Args:
        func: the right-hand side.
        leaves: the tensors it depends on; those that require grad now get a gradient, whatever becomes of them.
    """

    def __init__(self, func: Callable[..., Any], leaves: Sequence[Tensor] = ()) -> None:
        self.func = func
        self.wanted = [x for x in leaves if x.requires_grad]
        modules = func.modules() if isinstance(func, nn.Module) else ()
        self.modes = [(module, module.training) for module in modules]
        self.owned = places(func)
        self.versions = {name: version_of(x) for name, x in self.owned.items()}

    def _refuse_changes(self) -> None:
        """Raise if somebody has written to a buffer or a parameter since; what ``func`` itself writes is its own."""
        for name, x in self.owned.items():
            if version_of(x) != self.versions[name]:
                raise ChangedFunctionError(
                    f"{name} of func was changed in place between the forward and the backward pass, which evaluates "
                    "func again. Call backward() before such changes, or use adjoint='direct', which keeps the graphs "
                    "of the forward pass."
                )

    @contextlib.contextmanager
    def restored(self, keeps_state: bool) -> Iterator[None]:
        """Within, parameters, buffers and modes of modules are as they were, and what required grad does.

        ``torch.func.functional_call`` takes its own away again when the call ends, before a backward pass begins. A
        func that ``keeps_state`` writes to copies of its buffers, so that they are updated once, in the forward pass.
        Hooks on tensors stay aside: autograd calls them with the total.
        """
        if not keeps_state:
            self._refuse_changes()
        now, frozen = places(self.func), [x for x in self.wanted if not x.requires_grad]
        swapped = {name: x for name, x in self.owned.items() if now.get(name) is not x}
        if keeps_state:
            swapped |= {name: x.clone() for name, x in self.owned.items() if not x.requires_grad}
        changed = [module for module, mode in self.modes if module.training != mode]
        try:
            for module in changed:
                module.training = not module.training
            for x in frozen:
                x.requires_grad_()
            with with_parameters(self.func, swapped), hooks_at_rest(self.wanted):
                yield
        finally:
            for module in changed:
                module.training = not module.training
            for x in frozen:
                x.requires_grad_(False)


class Noise:
    """Random numbers of a step as a function of (seed, step); inactive until ``func`` is seen to draw any."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.active = False
        self.seed = 0
        self._after_first: list[Tensor] = []

    def peek(self) -> list[Tensor]:
        """The states of the generators that ``func`` can draw from."""
        states = [torch.get_rng_state()]
        if self.device.type == "cuda" and not capturing():
            states.append(torch.cuda.get_rng_state(self.device))
        return states

    def activate_if_drawn(self, before: list[Tensor]) -> None:
        """If the generators moved, fix a seed for this solve; it is drawn from the caller's own generator."""
        self._after_first = self.peek()
        if all(map(torch.equal, before, self._after_first)):
            return
        self.active = True
        self.seed = int(value_of(torch.randint(2**62, (1,))).flatten()[0])

    def drawn_since_first(self) -> bool:
        """Whether an inactive generator has moved since the first evaluation, and no other thread can have moved it."""
        if self.active or threading.active_count() > 1:
            return False
        return not all(map(torch.equal, self._after_first, self.peek()))

    @contextlib.contextmanager
    def of_step(self, n: int) -> Iterator[None]:
        """Within, the generators give the noise of step ``n``; then they are as they were."""
        with GENERATORS:
            before = self.peek()
            torch.manual_seed((self.seed + n) % 2**63)
            try:
                yield
            finally:
                torch.set_rng_state(before[0])
                if len(before) > 1:
                    torch.cuda.set_rng_state(before[1], self.device)
