"""``linear=`` in a fit: a linear part that depends on the unknowns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from ..errors import InputError
from ..linear import LinearPart, Sparse, read_linear


class Unknown:
    """A linear part made of the unknowns that a function names: ``linear(k)`` of ``params={"k": ...}``."""

    def __init__(self, made: Callable[..., Any], names: Sequence[str]) -> None:
        self.made, self.names = made, tuple(names)

    def at(self, named: Mapping[str, Tensor]) -> LinearPart:
        """The linear part of these unknowns."""
        return read_linear(self.made(**{n: named[n] for n in self.names}))

    def copies(self, named: Mapping[str, Tensor]) -> LinearPart | None:
        """One linear part for many copies of the unknowns along their first axes; None where each needs its own."""
        first = self.at({n: x[0] for n, x in named.items()})
        if first.own or isinstance(first, Sparse):
            return None
        values = [named[n] for n in self.names]
        tensors = vmap(lambda *v: self.at(dict(zip(self.names, v, strict=True))).tensors)(*values)
        return first.with_tensors([x.unsqueeze(1) for x in tensors])  # the axis of the trajectories


def parted(model: Any, params: Mapping[str, Any] | None, linear: Any) -> tuple[Any, Any]:
    """Model and linear part, each called with the parameters that it names; without a model there is no other part."""
    if not inspect.isfunction(linear):
        return (nothing if model is None else model), linear
    if isinstance(model, nn.Module) or not params:
        raise InputError(
            "linear= as a function of unknowns goes with params= and a model that is a function, or None: the unknowns "
            "of both are params. Write the module as a function of its parameters."
        )
    own, rest = _named(linear, params), params if model is None else _named(model, params)
    unused = set(params) - set(own) - (set() if model is None else set(rest))
    if unused:
        raise InputError(f"params name {sorted(unused)}, which neither the model nor linear= takes.")

    def others(t: Tensor, z: Tensor, **named: Tensor) -> Tensor:
        if model is None:
            return torch.zeros_like(z)
        found: Tensor = model(t, z, **{n: named[n] for n in rest})
        return found

    return others, Unknown(linear, own)


def nothing(t: Tensor, z: Tensor) -> Tensor:
    """No part beside the linear one."""
    return torch.zeros_like(z)


def _named(func: Callable[..., Any], params: Mapping[str, Any]) -> list[str]:
    taken = inspect.signature(func).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return [n for n in params if every or n in taken]
