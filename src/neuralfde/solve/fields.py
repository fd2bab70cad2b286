"""The right-hand sides of doubled and mapped solves: functions of time, state and tensors.

Dual numbers cannot be made inside vmap, so that derivatives are always taken outside of it: the mapped field of a
doubled system is the doubled field of a mapped one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..base.torch_private import mapped, transforms_are_active, vectorised, versions_of
from ..base.torch_transforms import Duals, refuse_written

Rhs = Callable[..., Tensor]


class PushedField:
    """``(f, ∂f/∂z ż + ∂f/∂θ θ̇)`` of states ``(z, ż)``, or ``(f, …, f)`` of ``(z, y, e)``, where ``ż = y + e``.

    Tensors are those of ``f``, then their tangents. The parts of a state lie along its first axis, or behind ``lead``
    axes of a mapped one. Of a field that is itself made in this way the derivative is ``torch.func.jvp``: dual numbers
    have one level.
    """

    def __init__(self, func: Rhs, shape: Sequence[int], parts: int, lead: tuple[int, ...] = ()) -> None:
        self.func, self.shape, self.parts, self.lead = func, tuple(shape), parts, lead
        self.nested = isinstance(func, PushedField) or (isinstance(func, MappedField) and _is_pushed(func.func))
        self.duals = Duals(timeless=getattr(func, "timeless", False))

    def during_pass(self) -> contextlib.AbstractContextManager[Any]:
        """Within, one pass over all steps is made."""
        return contextlib.nullcontext() if self.nested else self.duals

    def __call__(self, t: Tensor, state: Tensor, *tensors: Tensor) -> Tensor:
        """The slope of a state."""
        return self._pushed(self.func, t, state, tensors, self.lead)

    def over_times(self, times: Tensor, states: Tensor, *tensors: Tensor) -> Tensor:
        """The slopes of many states at many times."""
        func = getattr(self.func, "over_times", partial(vectorised, self.func))
        return self._pushed(func, times, states, tensors, (*times.shape, *self.lead))

    def _pushed(self, func: Rhs, t: Tensor, state: Tensor, tensors: tuple[Tensor, ...], lead: Sequence[int]) -> Tensor:
        axis, shape = len(lead), (*lead, self.parts, *self.shape)
        z, y, *e = (state if state.shape == shape else state.reshape(shape)).unbind(axis)
        tangent = y + e[0] if e else y
        if self.nested or transforms_are_active():
            half = len(tensors) // 2
            values = [x.clone() for x in (z, *tensors[:half])]  # a view would hand its tangent on to what it is part of
            tangents = (tangent, *tensors[half:])
            versions = versions_of(tangents)
            found = torch.func.jvp(partial(func, t), tuple(values), tangents)
            refuse_written(versions, tangents)
            v, d = found[0], found[1]
        else:
            v, d = self.duals.push(func, t, z, tangent, tensors)
        slopes = torch.stack([v, d, v][: self.parts], axis)
        return slopes if slopes.shape == state.shape else slopes.reshape(state.shape)


class MappedField:
    """A field mapped over the first axis of its state and of those tensors that lie ``along`` it."""

    def __init__(self, func: Rhs, shape: Sequence[int], along: Sequence[bool], count: int, randomness: str) -> None:
        self.func, self.shape, self.count, self.randomness = func, tuple(shape), count, randomness
        self.along, self.timeless = (False, True, *along), getattr(func, "timeless", False)

    def __call__(self, t: Tensor, state: Tensor, *tensors: Tensor) -> Tensor:
        """The slope of a state."""
        given = zip((t, state.reshape(self.count, *self.shape), *tensors), self.along, strict=True)
        return mapped(self.func, given, self.count, self.randomness).reshape(state.shape)

    def over_times(self, times: Tensor, states: Tensor, *tensors: Tensor) -> Tensor:
        """The slopes of many states at many times: these inside, so that matrices of each solve meet all its states."""
        each = states.reshape(len(times), self.count, *self.shape).transpose(0, 1).contiguous()  # or bmm is slow
        given = zip((times, each, *tensors), self.along, strict=True)
        found = mapped(partial(vectorised, self.func), given, self.count, self.randomness)
        return found.transpose(0, 1).reshape(states.shape)


def mapped_field(
    func: Rhs, shape: Sequence[int], along: Sequence[bool], count: int, randomness: str
) -> tuple[Rhs, Sequence[bool]]:
    """The field of so many solves, and which of its tensors lie along them: a tangent does if its value does."""
    if not isinstance(func, PushedField) or func.nested:
        return MappedField(func, shape, along, count, randomness), along
    half = len(along) // 2
    both = [a or b for a, b in zip(along[:half], along[half:], strict=True)]
    inner = MappedField(func.func, (*func.lead, *func.shape), both, count, randomness)
    return PushedField(inner, func.shape, func.parts, (count, *func.lead)), both * 2


def _is_pushed(func: Any) -> bool:
    return isinstance(func, PushedField) or (isinstance(func, MappedField) and _is_pushed(func.func))
