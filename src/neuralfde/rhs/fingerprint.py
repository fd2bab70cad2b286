"""The operations of a call of ``func``, recorded: calls with equal records can share a captured graph or a kernel."""

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
        out = func(*args, **kwargs)
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
