"""What a call of ``func`` does, written down: two calls that read alike can share one captured graph."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ..base.torch_private import Recording, pytree


class Watch(Recording):
    """Records every operation: its name, its numbers, and where each tensor came from.

    A tensor from outside is known by its address, so that one that is replaced between two solves (an attribute, a
    closure) shows up as a different call, as does a number or a branch that has changed. Views of one storage are told
    apart by where they begin and by their strides.

    Attributes:
        taken: the tensors from outside, in the order in which they were met.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.lines: list[Hashable] = []
        self.taken: list[Tensor] = []
        self.made = {_address(x): -1 - k for k, x in enumerate(known)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and write it down."""
        leaves = pytree.tree_leaves((args, kwargs or {}))
        self.lines.append((str(func), *[self._name(x) for x in leaves]))
        out = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(out):
            if isinstance(x, Tensor):
                self.made[_address(x)] = len(self.lines)
        return out

    def _name(self, x: Any) -> Hashable:
        if isinstance(x, Tensor):
            address = _address(x)
            known = address in self.made
            if not known and all(x is not y for y in self.taken):
                self.taken.append(x)
            source = ("made", self.made[address]) if known else ("outside", address)
            return (*source, tuple(x.shape), x.dtype, *_layout(x))
        return x if x is None or isinstance(x, int | float | str | torch.dtype | torch.device) else repr(x)


def _layout(x: Tensor) -> tuple[Hashable, ...]:
    return (x.storage_offset(), x.stride()) if x.layout == torch.strided else (x.layout,)


def _address(x: Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one storage
        return id(x)
