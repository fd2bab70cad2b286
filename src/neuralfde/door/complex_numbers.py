"""Complex states as pairs of real numbers: an equation in ℂ is one in ℝ², with the same order for both parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..base.checks import function
from ..base.torch_private import pytree
from ..errors import InputError
from ..orders import Caputo, Operator
from ..time import Event
from .validation import Options


class InRealNumbers(nn.Module):
    """``func`` of a complex state as a function of pairs; a module, so that parameters of ``func`` are found."""

    made_anew = True  # at every call: no cache of captured steps would know it
    only_converts = property(lambda self: self.func)  # what is seen of func holds for this as well

    def __init__(self, func: Callable[..., Any], lagged: bool = False) -> None:
        super().__init__()
        self.func, self.lagged = func, lagged

    def forward(self, t: Any, z: Any, *args: Any) -> Any:
        """The derivative as pairs."""
        t = _each(lambda x: x.squeeze(-1) if x.ndim else x, t)
        args = (again_complex(args[0]), *args[1:]) if self.lagged else args
        out = self.func(t, again_complex(z), *args)
        return _each(lambda x: _as_pairs(x if x.is_complex() else torch.complex(x, 0 * x)), out)


def in_real_numbers(
    func: Callable[..., Any], z0: Any, order: Any, given: Options
) -> tuple[Callable[..., Any], Any, Any, Options]:
    """The same problem for pairs of real numbers."""
    if given.linear is not None:
        raise InputError("linear= acts on real states. Put it into func, or write z as its real and imaginary parts.")
    function("func", func, "func(t, z, *args)")
    order = order.order if isinstance(order, Caputo) else order
    order = _operator_beside_pairs(order) if isinstance(order, Operator) else pytree.tree_map(_beside_pairs, order)
    velocity = None if given.velocity is None else pytree.tree_map(_as_pairs, given.velocity)
    horizon, jumps, event = pytree.tree_map(_beside_pairs, given.horizon), given.jumps, given.event
    if isinstance(jumps, tuple | list) and len(jumps) == 2:
        jumps = (jumps[0], _pairwise(jumps[1]) if callable(jumps[1]) else pytree.tree_map(_as_pairs, jumps[1]))
    if event is not None:
        event = event if isinstance(event, Event) else Event(event)
        reset = None if event.reset is None else _pairwise(event.reset)
        event = replace(event, fn=_of_pairs(event.fn), reset=reset)
    past = given.past
    if isinstance(past, tuple | list):
        past = (past[0], pytree.tree_map(_as_pairs, past[1]))
    given = given._replace(velocity=velocity, horizon=horizon, jumps=jumps, event=event, past=past)
    return InRealNumbers(func, given.lags is not None), pytree.tree_map(_as_pairs, z0), order, given


def _of_pairs(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a time and a complex state as one of pairs."""
    return lambda t, z, *args: fn(t, again_complex(z), *args)


def _pairwise(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function from complex states to complex states as one of pairs."""
    return lambda z: pytree.tree_map(_as_pairs, fn(again_complex(z)))


def _as_pairs(x: Any) -> Any:
    """Complex numbers as pairs; what is none is left for the door to refuse. A conjugate is only marked as such."""
    if not (isinstance(x, Tensor) and x.is_complex() and x.layout == torch.strided):
        return x
    return torch.view_as_real(x.resolve_conj())


def _beside_pairs(x: Any) -> Any:
    """Numbers that broadcast to a complex state as ones that broadcast to its pairs."""
    return x.unsqueeze(-1) if isinstance(x, Tensor) and x.ndim else x


def _operator_beside_pairs(operator: Operator) -> Operator:
    """The operator, whose numbers broadcast to a complex state, with ones that broadcast to its pairs."""
    found = copy.copy(operator)
    numbers = lambda: pytree.tree_map(_beside_pairs, operator.numbers())  # noqa: E731
    object.__setattr__(found, "numbers", numbers)  # operators are frozen
    return found


def again_complex(tree: Any) -> Any:
    """Pairs as complex numbers."""
    return _each(lambda x: torch.view_as_complex(x.contiguous()), tree)


def _each(of: Callable[[Any], Any], tree: Any) -> Any:
    """``of`` each tensor; walking through a tree takes as long as a small func, and most states are none."""
    return of(tree) if isinstance(tree, Tensor) else pytree.tree_map(of, tree)
