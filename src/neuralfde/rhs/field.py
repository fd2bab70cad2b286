"""The right-hand side as the solver sees it: rows in, rows out, the same noise and precision in every evaluation."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..base.structure import Structure, tensors_in
from ..base.torch_private import places, pytree, sequence_number, uncompiled, vectorised, with_parameters
from ..base.transfer import capturing
from ..errors import CapturedTensorError, InputError, InputTypeError, UnsupportedError
from .fingerprint import Watch
from .noise import Noise
from .purity import changed, reachable

#: Functions seen to draw random numbers; while a graph is captured the generators cannot be asked.
_DRAWS: weakref.WeakSet[Any] = weakref.WeakSet()


class Field:
    """``v = f(t_n, z)`` on rows of the shape :attr:`shape`.

    It restores what the caller's context was when ``fdeint`` was called: autocast, and the random numbers of each
    step. The noise of step ``n`` is a function of a seed and ``n`` alone, so that dropout uses one mask for all
    evaluations of a step, in the forward pass and in the vector-Jacobian product.

    Attributes:
        shape: a row as :meth:`__call__` takes it: the state itself where it is one tensor of one order, so that nothing
            needs to be converted; otherwise (groups, width).
        impure: what a call of ``func`` was seen to change, or None.
    """

    def __init__(self, func: Callable[..., Any], structure: Structure, times: Tensor, args: tuple[Any, ...]) -> None:
        self.func = func
        self.structure = structure
        self.times = times
        self.args = args
        self.evaluations = 0
        self.trace: tuple[Hashable, ...] | None = None  # what the first evaluation did, where that was watched
        self.first_slope: Tensor | None = None  # f(t_0, z_0) from the check at the door, where it can be reused
        self.impure: str | None = None
        self.known_by: Hashable = None  # what func can reach and its arguments, as they are now
        self.noise = Noise(structure.device)
        self.autocast = _autocast_state(structure.device.type)
        self.as_it_is = structure.bare and structure.spans is None
        self.shape = structure.shapes[0] if self.as_it_is else torch.Size(structure.row_shape)
        self._plain = self.as_it_is and self.autocast is None
        self._owned = places(func)

    @cached_property
    def instants(self) -> tuple[Tensor, ...]:
        """The time of each grid point, as ``func`` gets it."""
        return self.times.unbind(0)

    @contextlib.contextmanager
    def as_called(self) -> Iterator[None]:
        """Give ``func`` the parameters and buffers it had when ``fdeint`` was called.

        ``torch.func.functional_call`` takes its own away again when the call ends, before a backward pass begins.
        """
        now = places(self.func)
        with with_parameters(self.func, {name: x for name, x in self._owned.items() if now.get(name) is not x}):
            yield

    def __call__(self, n: int, row: Tensor) -> Tensor:
        """Evaluate at grid point ``n``; differentiable in ``row`` and in whatever ``func`` depends on."""
        self.evaluations += 1
        if self.noise.active:
            self.noise.seed_step(n)
        if self._plain:
            v = self.func(self.instants[n], row, *self.args)
            if type(v) is not Tensor or v.shape != row.shape or v.dtype != row.dtype:
                self.check(v)
            return v  # type: ignore[no-any-return]
        return self._convert(self.func, self.instants[n], row)

    def batch(self, times: Tensor, rows: Tensor) -> Tensor:
        """Slopes of rows (steps, …) at these times (steps,), vectorised over them."""
        self.evaluations += times.shape[0]
        if not self._plain:
            return vectorised(lambda t, row: self._convert(self.func, t, row), times, rows)  # type: ignore[no-any-return]
        slopes: Tensor = vectorised(self.func, times, rows, *self.args)
        if slopes.shape != rows.shape or slopes.dtype != rows.dtype:
            self.check(slopes[0])
        return slopes

    def _convert(self, func: Callable[..., Any], t: Tensor, row: Tensor) -> Tensor:
        """``func`` on a row: with the structure of the state and the precision of the caller around it."""
        structure = self.structure
        with torch.autocast(**self.autocast) if self.autocast else contextlib.nullcontext():
            out = func(t, structure.unpack(row) if not self.as_it_is else row, *self.args)
        if self.autocast:
            out = pytree.tree_map(lambda x: x.to(structure.dtype), out)
        self.check(out)
        return out if self.as_it_is else structure.pack(out)  # type: ignore[no-any-return]

    def at(self, times: Tensor, args: tuple[Any, ...]) -> Field:
        """The same right-hand side with other times, counted from 0, and arguments: static ones, for a capture."""
        other = copy.copy(self)
        other.times, other.args, other.evaluations = times, args, 0
        other.__dict__.pop("instants", None)
        return other

    def first_evaluation(self, row: Tensor, known: Sequence[Tensor], watch: bool = False) -> None:
        """Call ``func`` once at the door: check what it returns, what it captures and whether it draws random numbers.

        With gradients enabled the call is traced, so that a captured tensor is found before any work is done.
        """
        if capturing() and self.func in _DRAWS:
            raise UnsupportedError(
                "func draws random numbers (dropout?), which a captured solve would not repeat in its backward pass. "
                "Leave the solve out of the CUDA graph, or pass the noise through args=."
            )
        before = self.noise.peek()
        traced = torch.is_grad_enabled()
        z = row.detach().requires_grad_(traced)
        mark = sequence_number(z) if traced else 0
        start = self.times[0]
        kept = reachable(self.func)
        with contextlib.ExitStack() as around:
            if watch:
                around.enter_context(uncompiled())
                watched = around.enter_context(Watch([z, self.times, *tensors_in(self.args)]))
            if self.autocast:
                around.enter_context(torch.autocast(**self.autocast))
            try:
                out = self.func(start, self.structure.unpack(z), *self.args)
            except Exception as error:
                error.add_note(self._call())
                raise
        after = reachable(self.func)
        self.impure = changed(kept, after)
        self.known_by = (tuple(after.items()), _described(self.args))
        if watch:
            self.trace = tuple(watched.lines)
        self.evaluations += 1
        self.check(out)
        if traced:
            refuse_captured(tensors_in(out), [z, *known, *tensors_in(self.args)], mark)
        self.noise.activate_if_drawn(before)
        if self.noise.active:
            with contextlib.suppress(TypeError):  # a func that cannot be referred to weakly
                _DRAWS.add(self.func)
        else:
            self.first_slope = self.structure.pack(out).detach().to(row.dtype).view(self.shape)

    def _call(self) -> str:
        """How ``func`` is called, for a person whose ``func`` raised."""
        call = "func(t, z, *args)" if self.args else "func(t, z)"
        state = f"{_describe_spec(self.structure)}, {self.structure.dtype} on {self.structure.device}"
        own = next(self.func.parameters(), None) if isinstance(self.func, nn.Module) else None
        has = "" if own is None else f" Its parameters are {own.dtype} on {own.device}."
        return f"This was the first evaluation of func, as {call} with t a 0-d tensor and z {state}.{has}"

    def refuse_late_noise(self, train: bool) -> None:
        """Raise if ``func`` began to draw random numbers after its first evaluation: its masks were not kept."""
        if train and self.noise.drawn_since_first():
            raise InputError(
                "func drew random numbers, but not in its first evaluation, so that its noise cannot be repeated in "
                "the backward pass. Draw in every evaluation (torch.nn.Dropout does), or pass the noise through args=."
            )

    def check(self, out: Any) -> None:
        """Raise unless ``out`` has the structure, shapes, dtype and device of the state."""
        leaves, spec = pytree.tree_flatten(out)
        if spec != self.structure.spec:
            raise InputTypeError(
                f"func returned a structure other than z0's: {_describe(out)} in place of "
                f"{_describe_spec(self.structure)}. Return one derivative for each part of the state."
            )
        for got, shape in zip(leaves, self.structure.shapes, strict=True):
            if not isinstance(got, Tensor):
                raise InputTypeError(f"func must return tensors, got {type(got).__name__}.")
            if got.shape != shape:
                raise InputError(
                    f"func returned shape {tuple(got.shape)} for a state of shape {tuple(shape)}; "
                    "the derivative must have the shape of the state."
                )
            if got.device != self.structure.device:
                raise InputTypeError(
                    f"func returned a tensor on {got.device}, the state is on {self.structure.device}; "
                    "move func and its inputs to the device of z0."
                )
            if got.dtype != self.structure.dtype and self.autocast is None:
                raise InputTypeError(
                    f"func returned {got.dtype}, the state is {self.structure.dtype}; convert func or z0, "
                    "or use torch.autocast if lower precision in func is intended."
                )


def _described(args: tuple[Any, ...]) -> Hashable:
    """What kind of arguments these are: tensors by shape, numbers and names themselves, other objects by identity."""
    if not args:
        return ()
    leaves, spec = pytree.tree_flatten(args)
    return repr(spec), tuple(map(_kind, leaves))


def _kind(x: Any) -> Hashable:
    if isinstance(x, Tensor):
        return (x.shape, x.dtype)
    return (type(x), x if x is None or isinstance(x, bool | int | float | str) else id(x))


def refuse_captured(outputs: Sequence[Tensor], known: Sequence[Tensor], mark: int) -> None:
    """Walk the autograd graph of ``func``'s result; raise if it leads to a tensor outside ``known``.

    ``mark`` is the sequence number at which the trace began: an older node belongs to a tensor computed before.
    """
    allowed = {id(x) for x in known}
    for node, leaf in graph_nodes(outputs, known):
        if leaf is not None and id(leaf) not in allowed:
            _raise_captured(f"a leaf tensor of shape {tuple(leaf.shape)}")
        if leaf is None and node._sequence_nr() < mark:
            _raise_captured(f"a tensor computed earlier by {node.name()}")


def graph_nodes(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor | None]]:
    """The autograd nodes behind ``outputs``, down to those that made ``known``; with its tensor where one is a leaf."""
    stop = {x.grad_fn for x in known if x.grad_fn is not None}
    pending: list[Any] = [x.grad_fn for x in outputs]
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen or node in stop:
            continue
        seen.add(node)
        yield node, getattr(node, "variable", None)
        pending.extend(child for child, _ in node.next_functions)


def _raise_captured(what: str) -> None:
    raise CapturedTensorError(
        f"func uses {what} that requires grad but is neither a parameter of func nor passed in: it would silently get "
        "no gradient. Pass it through args=(...) and take it as an argument of func, list it in params=[...], "
        "make func an nn.Module that owns it, or detach() it if no gradient is wanted."
    )


def _autocast_state(device_type: str) -> dict[str, Any] | None:
    """The caller's autocast settings, to be entered again around every evaluation of ``func``."""
    if not torch.is_autocast_enabled(device_type):
        return None
    # no cache: a cached cast made without grad would cut the parameters off in the traced evaluation
    return {"device_type": device_type, "dtype": torch.get_autocast_dtype(device_type), "cache_enabled": False}


def _describe(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return f"a tensor of shape {tuple(tree.shape)}"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {_describe(v)}" for k, v in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return type(tree).__name__ + "(" + ", ".join(_describe(v) for v in tree) + ")"
    return type(tree).__name__


def _describe_spec(structure: Structure) -> str:
    return _describe(pytree.tree_unflatten([torch.empty(s, device="meta") for s in structure.shapes], structure.spec))
