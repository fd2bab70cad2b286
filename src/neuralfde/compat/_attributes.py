"""Tensors with gradients that a module keeps as plain attributes, such as attention computed before a solve.

Autograd reaches them wherever ``func`` is called; an adjoint gives gradients only to what it knows. They become
arguments of the solve: at every call copies of them stand in their places, so that what made them is differentiated
once, behind the solve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..base.structure import tensors_in
from ..rhs.first import graph_nodes

#: What every module has: parameters and submodules are found there by themselves.
_OWN = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Attributes:
    """Where they are: the dictionaries of the modules, or lists and dictionaries there, the keys, and the tensors."""

    owners: tuple[Any, ...] = ()
    keys: tuple[Any, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @classmethod
    def used_by(cls, func: Callable[..., Any], y0: Any) -> Attributes:
        """Those that the value of ``func`` at the start depends on."""
        if not torch.is_grad_enabled():
            return cls()
        found = [place for part in _modules(func) for place in _in(vars(part))]
        if not found:
            return cls()
        every = cls(*map(tuple, zip(*found, strict=True)))
        copies = [x.detach().requires_grad_() for x in every.tensors]
        start = tensors_in(y0)[0]
        out = every.wrap(func)(torch.zeros((), dtype=start.dtype, device=start.device), y0, *copies)
        seen = {id(leaf) for _, leaf in graph_nodes(tensors_in(out), tensors_in(y0))}
        used = [place for place, copy in zip(found, copies, strict=True) if id(copy) in seen]
        return cls(*map(tuple, zip(*used, strict=True))) if used else cls()

    @property
    def names(self) -> str:
        """Their names, for a message."""
        return ", ".join(repr(key) for key in self.keys)

    def __bool__(self) -> bool:
        return bool(self.tensors)

    def wrap(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """``func`` with these tensors as further arguments."""
        return _With(func, self) if self else func


class _With(nn.Module):
    """``func(t, y)`` as a function of ``(t, y, *tensors)``; a module, so that the parameters of one stay its own."""

    made_anew = True  # at every call: no cache of captured steps would know it

    def __init__(self, func: Callable[..., Any], places: Attributes) -> None:
        super().__init__()
        self.func, self.places = func, places

    def forward(self, t: Tensor, y: Any, *tensors: Tensor) -> Any:
        """Call ``func`` with these tensors in their places."""
        owners, keys = self.places.owners, self.places.keys
        before = [owner[key] for owner, key in zip(owners, keys, strict=True)]
        try:
            for owner, key, x in zip(owners, keys, tensors, strict=True):
                owner[key] = x
            return self.func(t, y)
        finally:
            for owner, key, x in zip(owners, keys, before, strict=True):
                owner[key] = x


def _in(owner: Any) -> Iterator[tuple[Any, Any, Tensor]]:
    """Tensors with gradients in a dictionary or list, and in the lists and dictionaries of a module."""
    for key, value in owner.items() if isinstance(owner, dict) else enumerate(owner):
        if isinstance(value, Tensor) and value.requires_grad:
            yield owner, key, value
        elif isinstance(value, list | dict) and not (isinstance(key, str) and key in _OWN):
            yield from _in(value)


def _modules(func: Any) -> Iterator[nn.Module]:
    """The modules behind ``func``: itself and its parts, or those that a function mentions or belongs to."""
    if isinstance(func, nn.Module):
        yield from func.modules()
    elif isinstance(func, MethodType):
        yield from _modules(func.__self__)
    elif isinstance(func, FunctionType):
        mentioned = [func.__globals__.get(name) for name in func.__code__.co_names]
        for value in (*map(_content, func.__closure__ or ()), *mentioned):
            if isinstance(value, nn.Module):
                yield from value.modules()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None
