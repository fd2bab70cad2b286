"""Transforms of PyTorch around a solve and inside it: dual numbers, and what cannot be transformed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import UnsupportedError
from .torch_private import (
    DUAL_THREAD,
    derivatives_are_watched,
    derivatives_around,
    forward_mode,
    forward_mode_level,
    is_mapped,
    is_one_of_many,
    is_view,
    layers,
    make_dual,
    unpack_dual,
    versions_of,
    without_tangent,
)

#: Held by the one thread that has dual numbers: forward mode has one level for all threads of a process.
_ONE_THREAD = threading.RLock()


class Duals:
    """Dual numbers for one pass: ``torch.func.jvp`` again and again, with tensors that stay the same.

    As a context it opens forward mode, unless it is open already. A ``timeless`` function makes no use of the time.
    Measured with a network of two layers: 84 µs a call, 150 µs where every call opens forward mode and makes all dual
    numbers, 230 µs by ``torch.func.jvp``.
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
        self._own = forward_mode_level() < 0
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
        level = forward_mode_level()
        with forward_mode(True):  # here alone: a backward pass would carry tangents along
            if followed != self._followed or len(tensors) != len(self._of) or not all(map(is_, tensors, self._of)):
                half = len(tensors) // 2
                pairs = zip(tensors[:half], tensors[half:], strict=True)
                self._made = [make_dual(x.clone(), d, level=level) for x, d in pairs]
                self._of, self._followed = tensors, followed
            # copies: a view hands its tangent on to all that it is a view of, here a block of rows
            if not self._timeless:  # PyTorch takes 0.25 ms to multiply by a tensor that has no tangent
                if self._still is None or self._still.shape != t.shape:
                    self._still = torch.zeros_like(t)
                t = make_dual(t.clone(), self._still, level=level)
            z, tangent = z.clone(), tangent.clone() if is_view(tangent) else tangent
            given = (tangent, *tensors[len(tensors) // 2 :])
            versions = versions_of(given)
            out = func(t, make_dual(z, tangent, level=level), *self._made)
            refuse_written(versions, given)
            value, moved = unpack_dual(out, level=level)
        return value, torch.zeros_like(value) if moved is None else moved


def refuse_written(versions: list[int], tangents: Iterable[Tensor | None]) -> None:
    """Raise if ``func`` has written to one of these tangents, which had these versions before it was called.

    ``empty_like(z).copy_(w)``, where PyTorch expands ``w``, has no tangent of its own but shares that of ``w``. A later
    operation in place changes both.
    """
    if versions_of(tangents) != versions:
        raise UnsupportedError(
            "func writes in place to a tensor whose tangent PyTorch shares with an argument of func, as it does after "
            "copy_() of an argument with fewer dimensions; forward mode and second derivatives would be wrong. "
            "Compute that tensor without writing to it, or begin with argument.expand_as(z).clone()."
        )


@contextlib.contextmanager
def tangents_apart(tensors: Iterable[Tensor | None]) -> Iterator[list[Any]]:
    """For the ``jvp`` of a Function: these tensors without their tangents, and within, forward mode as it was around.

    PyTorch turns it off there, and with it that of all transforms further out: their tangents would be lost.
    """
    with forward_mode(True):
        yield [None if x is None else without_tangent(x)[0] for x in tensors]


def dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A tensor with its tangent in the innermost forward mode."""
    return forward_ad.make_dual(value, tangent)  # type: ignore[no-any-return]


def follows_gradients(x: Tensor | None) -> bool:
    """Whether a tensor may be asked for a gradient, by autograd or by a transform around this call."""
    return x is not None and torch.is_grad_enabled() and any(layer.requires_grad for layer in layers(x))


def gradients_are_differentiated(tensors: Iterable[Tensor | None]) -> bool:
    """Whether derivatives of gradients may be asked for: gradients by a transform, inside of another or of autograd."""
    around = derivatives_around()
    if "grad" in around[1:]:
        return True
    others = forward_mode_level() >= 0 and "jvp" not in around
    return "grad" in around and (others or any(x is not None and [*layers(x)][-1].requires_grad for x in tensors))


def tangents_are_around() -> bool:
    """Whether forward mode or ``torch.func.jvp`` is active around this call."""
    return forward_mode_level() >= 0 or "jvp" in derivatives_around()


def refuse_mapped(what: str, *tensors: Tensor) -> None:
    """Raise where vmap hides values that have to be looked at."""
    if any(is_mapped(layer) for x in tensors for layer in layers(x)):
        raise UnsupportedError(
            f"{what} cannot be mapped by vmap: what is done depends on the values. Leave them out of it and map the "
            "rest, or loop over them."
        )


def tangents_of(tensors: Iterable[Tensor | None]) -> list[Tensor | None]:
    """The tangents of tensors in the innermost forward mode."""
    return [None if x is None else without_tangent(x)[1] for x in tensors]


def refuse_many(derivatives: Iterable[Tensor | None]) -> None:
    """Raise where these are several at once, as ``is_grads_batched=True`` has them without ``torch.func``."""
    if any(x is not None and is_one_of_many(x) for x in derivatives):
        raise UnsupportedError(
            "these derivatives of a solve cannot be taken several at once by vectorize=True or is_grads_batched=True. "
            "Use torch.func.hessian, or vectorize=False."
        )


def solved(matrix: Tensor, right: Tensor) -> Tensor:
    """``torch.linalg.solve``, whose own derivatives are wrong where forward mode is nested or inside vmap."""
    return torch.linalg.inv(matrix) @ right if derivatives_are_watched() else torch.linalg.solve(matrix, right)
