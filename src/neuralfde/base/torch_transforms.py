"""Private names of PyTorch for transforms: dual numbers, vmap and what is active around a call.

Like :mod:`.torch_private`, of which it is the second half.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack, temporarily_pop_interpreter_stack
from torch.autograd import forward_ad

from ..errors import UnsupportedError
from .torch_private import DUAL_THREAD, derivatives_are_watched

__all__ = [
    "Duals",
    "dual",
    "follows_gradients",
    "is_followed",
    "mapped",
    "outside_of_transforms",
    "refuse_many",
    "refuse_mapped",
    "solved",
    "tangents_apart",
    "tangents_of",
    "transform_level",
    "transforms_are_active",
    "without_tangent",
]

#: Held by the one thread that has dual numbers: forward mode has one level for all threads of a process.
_ONE_THREAD = threading.RLock()
#: Context: within, no transform of ``torch.func`` is active, as it is where a custom Function runs in the end.
outside_of_transforms = temporarily_clear_interpreter_stack


def transforms_are_active() -> bool:
    """Whether a transform of ``torch.func`` is active around this call."""
    return torch._C._are_functorch_transforms_active()


def mapped(func: Callable[..., Tensor], given: Iterable[tuple[Any, bool]], count: int, randomness: str) -> Tensor:
    """``func`` of tensors, those that say so mapped along their first axis, as :func:`torch.func.vmap` has it."""
    level = _functorch._vmap_increment_nesting(count, randomness)
    try:
        out = func(*[_functorch._add_batch_dim(x, 0, level) if along else x for x, along in given])
        return _functorch._remove_batch_dim(out, level, count, 0)
    finally:
        _functorch._vmap_decrement_nesting()


class Duals:
    """Dual numbers for one pass: ``torch.func.jvp`` again and again, with tensors that stay the same.

    As a context it opens forward mode, unless it is open already. A ``timeless`` function makes no use of the time.
    Measured with a network of two layers: 84 µs a call,
    150 µs where every call opens forward mode and makes all dual numbers, 230 µs by ``torch.func.jvp``.
    """

    def __init__(self, timeless: bool = False) -> None:
        self._own, self._timeless = False, timeless
        self._calls = 0
        self._of: tuple[Tensor, ...] = ()
        self._followed = False
        self._made: list[Tensor] = []
        self._still: Tensor | None = None

    def __enter__(self) -> Duals:
        _ONE_THREAD.acquire()
        self._own = forward_ad._current_level < 0
        if self._own:
            DUAL_THREAD.add(threading.get_ident())
            forward_ad.enter_dual_level()
        return self

    def __exit__(self, *error: object) -> None:
        self._of, self._made = (), []
        if self._own:
            forward_ad.exit_dual_level()
            DUAL_THREAD.clear()
        _ONE_THREAD.release()

    def _renew(self) -> None:
        """Forward mode keeps the graphs of tangents alive until it is closed: begin anew after some of them."""
        self._calls += 1
        if self._own and self._calls % 16 == 0:
            self.__exit__()
            self.__enter__()

    def push(
        self, func: Callable[..., Tensor], t: Tensor, z: Tensor, tangent: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """``func(t, z, *values)`` and its derivative; ``tensors`` are the values, then their tangents."""
        followed = torch.is_grad_enabled()
        if followed:
            self._renew()
        level = forward_ad._current_level
        before = torch._C._is_fwd_grad_enabled()
        torch._C._set_fwd_grad_enabled(True)  # here alone: a backward pass would carry tangents along
        try:
            if followed != self._followed or len(tensors) != len(self._of) or not all(map(is_, tensors, self._of)):
                half = len(tensors) // 2
                pairs = zip(tensors[:half], tensors[half:], strict=True)
                self._made = [torch._make_dual(x.clone(), d, level=level) for x, d in pairs]
                self._of, self._followed = tensors, followed
            # copies: a view hands its tangent on to all that it is a view of, here a block of rows
            if not self._timeless:  # PyTorch takes 0.25 ms to multiply by a tensor that has no tangent
                if self._still is None or self._still.shape != t.shape:
                    self._still = torch.zeros_like(t)
                t = torch._make_dual(t.clone(), self._still, level=level)
            z, tangent = z.clone(), tangent if tangent._base is None else tangent.clone()
            out = func(t, torch._make_dual(z, tangent, level=level), *self._made)
            value, moved = torch._unpack_dual(out, level=level)
        finally:
            torch._C._set_fwd_grad_enabled(before)
        return value, torch.zeros_like(value) if moved is None else moved


@contextlib.contextmanager
def tangents_apart(tensors: Iterable[Tensor | None]) -> Iterator[list[Any]]:
    """For the ``jvp`` of a Function: these tensors without their tangents, and within, forward mode as it was around.

    PyTorch turns it off there, and with it that of all transforms further out: their tangents would be lost.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        yield [None if x is None else without_tangent(x)[0] for x in tensors]


def dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A tensor with its tangent in the innermost forward mode."""
    return forward_ad.make_dual(value, tangent)  # type: ignore[no-any-return]


def follows_gradients(x: Tensor | None) -> bool:
    """Whether a tensor may be asked for a gradient, by autograd or by a transform around this call."""
    if x is None or not torch.is_grad_enabled():
        return False
    while _functorch.is_functorch_wrapped_tensor(x):
        if x.requires_grad:
            return True
        x = _functorch.get_unwrapped(x)
    return x.requires_grad


def is_followed(x: Tensor) -> bool:
    """Whether any transform around this call has a gradient, a tangent or an axis of vmap of this very tensor."""
    if x.requires_grad or _functorch.is_batchedtensor(x) or without_tangent(x)[1] is not None:
        return True
    level = transform_level()
    if level == 0:
        return False
    inner = _functorch.get_unwrapped(x) if _functorch.maybe_get_level(x) == level else x
    with temporarily_pop_interpreter_stack():
        return is_followed(inner)


def refuse_mapped(what: str, *tensors: Tensor) -> None:
    """Raise where vmap hides values that have to be looked at."""
    for x in tensors:
        while _functorch.is_functorch_wrapped_tensor(x):
            if _functorch.is_batchedtensor(x):
                raise UnsupportedError(
                    f"{what} cannot be mapped by vmap: what is done depends on the values. Leave "
                    "them out of it and map the rest, or loop over them."
                )
            x = _functorch.get_unwrapped(x)


def tangents_of(tensors: Iterable[Tensor | None]) -> list[Tensor | None]:
    """The tangents of tensors in the innermost forward mode."""
    return [None if x is None else without_tangent(x)[1] for x in tensors]


def refuse_many(derivatives: Iterable[Tensor | None]) -> None:
    """Raise where these are several at once, as ``is_grads_batched=True`` has them without ``torch.func``."""
    if any(x is not None and _functorch.is_legacy_batchedtensor(x) for x in derivatives):
        raise UnsupportedError(
            "these derivatives of a solve cannot be taken several at once by vectorize=True or is_grads_batched=True. "
            "Use torch.func.hessian, or vectorize=False."
        )


def solved(matrix: Tensor, right: Tensor) -> Tensor:
    """``torch.linalg.solve``, whose own derivatives are wrong where forward mode is nested or inside vmap."""
    return torch.linalg.inv(matrix) @ right if derivatives_are_watched() else torch.linalg.solve(matrix, right)


def transform_level() -> int:
    """How many transforms of ``torch.func`` are active."""
    top = _functorch.peek_interpreter_stack()
    return 0 if top is None else int(top.level())


def without_tangent(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The value and the tangent of a tensor in the innermost forward mode, if that is where one is active."""
    if forward_ad._current_level < 0:
        return x, None
    value, tangent = forward_ad.unpack_dual(x)
    return (x, None) if tangent is None else (value, tangent)
