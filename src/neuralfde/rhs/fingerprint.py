"""The operations of a call of ``func``: which they are, and how much they compute.

Calls with equal records can share a captured graph or a kernel. How much a call computes decides whether it pays to
call ``func`` for many steps at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ..base.torch_private import Recording, pytree

_NUMBERS = (int, float, str, torch.dtype, torch.device, type(None))
_SINGLE = (Tensor, *_NUMBERS)


class Watch(Recording):
    """Records every operation: the operation, its numbers, and where each of its tensors comes from.

    A tensor from outside is identified by its address, so that the record differs if an attribute or a closure has got
    another tensor since, or if a number or a branch has changed. Views of one storage differ by offset and strides.

    Attributes:
        lines: the operations.
        taken: the tensors from outside, in the order of their first use.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.lines: list[Hashable] = []
        self.taken: list[Tensor] = []
        self.made = {_address(x): -1 - k for k, x in enumerate(known)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and record it."""
        kwargs = kwargs or {}
        self.lines.append((func, *[self._name(x) for x in _leaves((*args, kwargs) if kwargs else args)]))
        out = self.carry_out(func, args, kwargs)
        for x in (out,) if isinstance(out, Tensor) else _leaves(out):
            if isinstance(x, Tensor):
                self.made[_address(x)] = len(self.lines)
        return out

    def _name(self, x: Any) -> Hashable:
        if not isinstance(x, Tensor):
            return x if isinstance(x, _NUMBERS) else repr(x)
        address = _address(x)
        known = self.made.get(address)
        if known is None and all(x is not y for y in self.taken):
            self.taken.append(x)
        source: tuple[Hashable, Hashable] = ("outside", address) if known is None else ("made", known)
        if x.layout != torch.strided:
            return (*source, x.shape, x.dtype, x.layout)
        return (*source, x.shape, x.dtype, x.storage_offset(), x.stride())


#: Products, with the place of the left matrix, along whose last axis they sum.
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}


class Work(Recording):
    """Adds up what a call computes.

    Attributes:
        bytes: those of all results, where sixteen products of a matrix multiplication count as one result.
    """

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it computes."""
        out = self.carry_out(func, args, kwargs or {})
        if not func.is_view:
            each = 1 + _summed(func.overloadpacket.__name__, args) // 16
            made = (out,) if isinstance(out, Tensor) else _leaves(out)
            self.bytes += each * sum(_bytes(x) for x in made if isinstance(x, Tensor))
        return out


def _bytes(x: Tensor) -> int:
    """The bytes of all its numbers; a sparse tensor does not say how many they are."""
    return x.numel() * x.itemsize


def _summed(name: str, args: Any) -> int:
    """How many products an operation adds up for each number of its result."""
    if name == "convolution":
        return int(args[1][0].numel())
    left = args[_PRODUCTS[name]] if name in _PRODUCTS else None
    return 0 if left is None or left.layout != torch.strided else int(left.shape[-1])


def _leaves(tree: Any) -> list[Any]:
    """The leaves of a nested structure; ten times faster than pytree for the usual tuple of tensors and numbers."""
    found = []
    for x in tree if isinstance(tree, tuple | list) else (tree,):
        if isinstance(x, _SINGLE):
            found.append(x)
        else:
            found += pytree.tree_leaves(x) or [repr(x)]
    return found


def _address(x: Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without a single storage
        return id(x)
