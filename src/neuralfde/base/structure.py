"""States of any structure as flat rows: inside the solver every state is a tensor of shape (groups, width)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError
from .caches import Cache, capturing, to_host
from .checks import number, valued
from .torch_private import pytree, value_of

_TENSORS: Cache[Structure] = Cache("structures of tensors", 64)


@dataclass(frozen=True)
class Structure:
    """How a tensor, tuple, dict or nesting of tensors becomes one row of shape (groups, width), and back.

    Elements of the state that share an order form a group. ``spans`` has a pair (lo, hi) for each tensor: the order
    varies over its axes ``lo … hi - 1``, so that a tensor of shape (L…, G…, R…) becomes G rows of L·R elements. None
    means that all elements form one group.
    """

    spec: pytree.TreeSpec
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device
    bare: bool = False  # the state is one tensor, not a structure
    spans: tuple[tuple[int, int], ...] | None = None

    def __hash__(self) -> int:
        return hash((self.shapes, self.dtype, self.spans))

    @cached_property
    def numel(self) -> int:
        """The number of elements of a state."""
        return sum(math.prod(s) for s in self.shapes)  # s.numel() would fix a size that an export leaves open

    @property
    def groups(self) -> int:
        """The first axis of a row; the elements of each group share an order."""
        return self.row_shape[0]

    @cached_property
    def row_shape(self) -> tuple[int, int]:
        """The shape (groups, width) of a row; the width divides the elements per order of every tensor."""
        if self.spans is None:
            return (1, self.numel)
        counts = [s.numel() // s[lo:hi].numel() for s, (lo, hi) in zip(self.shapes, self.spans, strict=True)]
        width = math.gcd(*counts)
        return (self.numel // width, width)

    def pack(self, state: Any) -> Tensor:
        """Flatten a state of this structure to one row; differentiable."""
        if self.bare and self.spans is None:
            row: Tensor = state.reshape(self.row_shape)
            return row
        leaves = pytree.tree_leaves(state)
        if self.spans is None:
            return torch.cat([leaf.reshape(-1) for leaf in leaves]).reshape(self.row_shape)
        pairs = zip(leaves, self.shapes, self.spans, strict=True)
        rows = [_split(leaf, shape, *span).reshape(-1, self.row_shape[1]) for leaf, shape, span in pairs]
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def unpack(self, row: Tensor) -> Any:
        """The inverse of :meth:`pack`; leading axes (times) of ``row`` are kept in every leaf."""
        lead = row.shape[:-2]
        if self.bare and self.spans is None:
            return row.view(lead + self.shapes[0])
        parts = row.reshape(*lead, -1).split([s.numel() for s in self.shapes], dim=-1)
        if self.spans is None:
            leaves = [p.reshape(lead + s) for p, s in zip(parts, self.shapes, strict=True)]
        else:
            leaves = [_join(p, lead, s, *span) for p, s, span in zip(parts, self.shapes, self.spans, strict=True)]
        return pytree.tree_unflatten(leaves, self.spec)

    def spread(self, name: str, numbers: Any) -> Tensor:
        """Numbers that broadcast to the state, as one per group: float64 (groups,) on the CPU; differentiable."""
        leaves = _matched(self, name, numbers)
        if self.spans is None:
            return leaves[0].reshape(1)
        rows = []
        for leaf, shape, (lo, hi) in zip(leaves, self.shapes, self.spans, strict=True):
            if leaf.numel() == 1:
                inner = leaf.reshape(1).expand(shape[lo:hi].numel())
            else:
                aligned = leaf.reshape((1,) * (len(shape) - leaf.ndim) + leaf.shape)
                inner = aligned.reshape(aligned.shape[lo:hi]).expand(shape[lo:hi]).reshape(-1)
            rows.append(inner.repeat_interleave(shape.numel() // inner.numel() // self.row_shape[1]))
        return torch.cat(rows)


def grouped(structure: Structure, numbers: dict[str, Any]) -> Structure:
    """The structure with groups so fine that all given numbers (orders, horizons) are constant in each of them."""
    if all(isinstance(given, int | float) for given in numbers.values()):
        return structure
    found: list[list[int]] = [[] for _ in structure.shapes]
    several = False
    for name, given in numbers.items():
        if isinstance(given, Tensor) and given.numel() == 1:  # one group; reading it would take a copy from the GPU
            continue
        leaves = _matched(structure, name, given)
        several |= len({id(leaf) for leaf in leaves}) > 1
        for axes, leaf, shape in zip(found, leaves, structure.shapes, strict=True):
            if leaf.numel() > 1:
                offset = len(shape) - leaf.ndim
                axes.extend(offset + k for k, size in enumerate(leaf.shape) if size > 1)
    if not several and not any(found):
        return structure
    return replace(structure, spans=tuple((min(a), max(a) + 1) if a else (0, 0) for a in found))


def _matched(structure: Structure, name: str, numbers: Any) -> list[Tensor]:
    """One float64 tensor on the CPU for each tensor of the state, which it is checked to broadcast to."""
    if isinstance(numbers, Tensor | int | float):
        leaves = [_number(name, numbers)] * len(structure.shapes)
    else:
        flat, spec = pytree.tree_flatten(numbers)
        if spec != structure.spec:
            raise InputTypeError(
                f"{name} must be a number, a tensor that broadcasts to the state, or one of these for each part of the "
                f"state in the same structure; got {type(numbers).__name__}. For a list of numbers use torch.tensor."
            )
        leaves = [_number(name, x) for x in flat]
    for leaf, shape in zip(leaves, structure.shapes, strict=True):
        aligned = leaf.ndim <= len(shape) and all(
            p in (1, s) for p, s in zip(leaf.shape[::-1], shape[::-1], strict=False)
        )
        if leaf.numel() != 1 and not aligned:
            raise InputError(
                f"{name} has shape {tuple(leaf.shape)}, which does not broadcast to the state of shape {tuple(shape)}. "
                "Give one number, one per channel, or one per sample with trailing axes of length 1: (batch, 1, …). "
                "(Arguments stand as func, z0, t, order.)"
            )
    return leaves


def _number(name: str, value: Any) -> Tensor:
    number(name, value)
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=torch.float64)
    if not capturing():  # which is refused for another reason
        valued(name, value)
    return to_host(value)


def _split(leaf: Tensor, shape: torch.Size, lo: int, hi: int) -> Tensor:
    """(L…, G…, R…) as (G, L, R)."""
    return leaf.reshape(shape[:lo].numel(), shape[lo:hi].numel(), -1).transpose(0, 1)


def _join(rows: Tensor, lead: torch.Size, shape: torch.Size, lo: int, hi: int) -> Tensor:
    """The inverse of :func:`_split`, with leading axes."""
    cut = rows.reshape(*lead, shape[lo:hi].numel(), shape[:lo].numel(), shape[hi:].numel())
    return cut.transpose(-3, -2).reshape(lead + shape)


def structure_of(z0: Any, name: str = "z0") -> Structure:
    """Read the structure of an initial state, or raise an error that says what is wrong with it."""
    leaves, spec = ([z0], None) if isinstance(z0, Tensor) else pytree.tree_flatten(z0)
    if not leaves:
        raise InputError(f"{name} is empty; the state needs at least one tensor.")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputTypeError(
                f"{name} must be a tensor or a nesting of tensors, but it contains {type(leaf).__name__}. "
                "Use torch.as_tensor(...)."
            )
    first = leaves[0]
    for leaf in leaves:
        if leaf.layout != torch.strided or leaf.is_nested:
            raise InputTypeError(
                f"{name} is sparse or nested (layout {leaf.layout}), and a history has dense rows. Use "
                f"{name}.to_dense(), or {name}.to_padded_tensor(0.0)."
            )
        if leaf.dtype not in (torch.float32, torch.float64):
            raise InputTypeError(
                f"{name} has dtype {leaf.dtype}; a fractional history needs sums in float32 or float64 (or their "
                "complex kinds). Use z0.float(), and torch.autocast to run func itself in lower precision."
            )
        if leaf.dtype != first.dtype:
            raise InputTypeError(f"{name} mixes {first.dtype} and {leaf.dtype}; convert all of it to one dtype.")
        if leaf.device != first.device:
            raise InputTypeError(f"{name} lives on {first.device} and {leaf.device}; move all of it to one device.")
        if leaf.numel() == 0:
            raise InputError(
                f"{name} contains a tensor of shape {tuple(leaf.shape)}, which holds no numbers. Leave it out of the "
                "state; for a batch of no samples there is nothing to solve."
            )
    if spec is None:
        key = (first.shape, first.dtype, first.device)
        if torch.compiler.is_exporting():  # sizes may be left open, and are no keys then
            return _of_tensor(*key)
        return _TENSORS.get(key, lambda: _of_tensor(*key))
    return Structure(spec, tuple(leaf.shape for leaf in leaves), first.dtype, first.device)


def as_numbers(tree: Any) -> Any:
    """The same with tensors that every operation takes: float32 where autocast made a state less, as PyTorch does for
    its own sums, a copy of a tensor from inference mode or of one that is only marked as conjugate or negative."""
    tensors = tensors_in(tree)
    found = [_as_numbers(x) for x in tensors]
    return tree if all(x is y for x, y in zip(found, tensors, strict=True)) else replace_tensors(tree, found)


def _as_numbers(x: Tensor) -> Tensor:
    if x.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(x.device.type):
        return x.float()
    if x.is_inference() and not torch.is_inference_mode_enabled():
        return x.clone()
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


def _of_tensor(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Structure:
    return Structure(pytree.tree_structure(0), (shape,), dtype, device, bare=True)


def all_finite(*tensors: Tensor) -> bool:
    """Whether all elements are finite."""
    return math.isfinite(extent(*tensors))


def extent(*tensors: Tensor) -> float:
    """The largest absolute value, with one transfer to the host; if a value is NaN or infinite, so is the result."""
    if any(x.is_meta for x in tensors):
        raise InputTypeError("a tensor on the device meta has no values to solve with. Make all tensors on one device.")
    worst = [torch.maximum(-low, high) for low, high in (torch.aminmax(value_of(x)) for x in tensors if x.numel())]
    found = torch.stack(worst).tolist() if len(worst) > 1 else [float(x) for x in worst]
    return next((x for x in found if not math.isfinite(x)), max(found, default=0.0))


def alike(tree: Any, other: Any) -> bool:
    """Whether two states have the same structure, with tensors of the same shapes, dtypes and devices."""
    (mine, spec), (theirs, given) = pytree.tree_flatten(tree), pytree.tree_flatten(other)
    return bool(spec == given) and all(
        isinstance(a, Tensor) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        for a, b in zip(mine, theirs, strict=True)
    )


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors of a nested structure, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    kind = type(tree)
    if kind is tuple or kind is list:  # ten times faster than pytree; recording a step does this for every operation
        return [x for part in tree for x in tensors_in(part)]
    if kind in (int, float, bool, str, type(None)):
        return []
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def replace_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    """The same structure with its tensors replaced by these, in order; everything else stays."""
    if not tensors:
        return tree
    if isinstance(tree, Tensor):
        return tensors[0]
    leaves, spec = pytree.tree_flatten(tree)
    supply = iter(tensors)
    return pytree.tree_unflatten([next(supply) if isinstance(x, Tensor) else x for x in leaves], spec)


def is_complex(z0: Any) -> bool:
    """Whether the state is complex; mixed states are refused."""
    found = {x.is_complex() for x in tensors_in(z0)}
    if len(found) > 1:
        raise InputTypeError(
            "z0 mixes real and complex tensors; convert all of it to one dtype, for example z.cfloat()."
        )
    return True in found
