"""States of any structure as flat rows: the solver only ever sees tensors of shape (groups, width)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .errors import InputError, InputTypeError


@dataclass(frozen=True)
class Structure:
    """How a tensor, tuple, dict or nesting of them becomes one row of shape (groups, width), and back."""

    spec: pytree.TreeSpec
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device
    groups: int = 1
    bare: bool = False  # the state is one tensor, not a structure

    @property
    def numel(self) -> int:
        """Numbers in one state."""
        return sum(s.numel() for s in self.shapes)

    @property
    def row_shape(self) -> tuple[int, int]:
        """The shape of a flat row."""
        return (self.groups, self.numel // self.groups)

    def pack(self, state: Any) -> Tensor:
        """Flatten a state of this structure to one row; differentiable."""
        if self.bare:
            row: Tensor = state.reshape(self.row_shape)
            return row
        return torch.cat([leaf.reshape(-1) for leaf in pytree.tree_leaves(state)]).reshape(self.row_shape)

    def unpack(self, row: Tensor) -> Any:
        """The inverse of :meth:`pack`; leading axes (times) of ``row`` are kept in every leaf."""
        lead = row.shape[:-2]
        if self.bare:
            return row.view(lead + self.shapes[0])
        parts = row.reshape(*lead, -1).split([s.numel() for s in self.shapes], dim=-1)
        leaves = [p.reshape(lead + s) for p, s in zip(parts, self.shapes, strict=True)]
        return pytree.tree_unflatten(leaves, self.spec)


def structure_of(z0: Any) -> Structure:
    """Read the structure of an initial state, or say what is wrong with it."""
    leaves, spec = pytree.tree_flatten(z0)
    if not leaves:
        raise InputError("z0 is empty; the state needs at least one tensor.")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputTypeError(
                f"z0 must be a tensor or a nesting of tensors, but it contains {type(leaf).__name__}. "
                "Wrap numbers in torch.tensor(...)."
            )
    first = leaves[0]
    for leaf in leaves:
        if leaf.dtype not in (torch.float32, torch.float64):
            raise InputTypeError(
                f"z0 has dtype {leaf.dtype}; a fractional history needs float32 or float64 sums. "
                "Use z0.float(), and torch.autocast to run func itself in lower precision."
            )
        if leaf.dtype != first.dtype:
            raise InputTypeError(f"z0 mixes {first.dtype} and {leaf.dtype}; convert all of it to one dtype.")
        if leaf.device != first.device:
            raise InputTypeError(f"z0 lives on {first.device} and {leaf.device}; move all of it to one device.")
        if leaf.numel() == 0:
            raise InputError(f"z0 contains a tensor of shape {tuple(leaf.shape)}, which holds no numbers.")
    return Structure(spec, tuple(leaf.shape for leaf in leaves), first.dtype, first.device, bare=isinstance(z0, Tensor))


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors of a nested structure, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def replace_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    """The same structure with its tensors replaced, in order; everything else is kept."""
    leaves, spec = pytree.tree_flatten(tree)
    supply = iter(tensors)
    return pytree.tree_unflatten([next(supply) if isinstance(x, Tensor) else x for x in leaves], spec)
