"""``func`` of a time of its own: that of each sample, or points of the grid that have gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base.grid import Grid
from ..base.structure import Structure
from ..base.torch_private import pytree


def in_own_time(
    func: Callable[..., Any], horizon: Any, structure: Structure, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` of the grid's time; the factors travel among the arguments, where tensors get gradients."""
    scales = pytree.tree_map(lambda x: torch.as_tensor(x).to(device=structure.device, dtype=structure.dtype), horizon)

    def scaled(s: Tensor, z: Any, factors: Any, *rest: Any) -> Any:
        return func(pytree.tree_map(lambda x: x * s, factors), z, *rest)

    scaled.made_anew = True  # type: ignore[attr-defined]  # at every call: no cache of captured steps would know it
    return scaled, (scales, *args)


def in_moving_time(
    func: Callable[..., Any], grid: Grid, like: Tensor, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` of times some of which have gradients; these travel among the arguments."""
    assert grid.moving is not None
    fixed, instants = grid.times(like), (grid.start + grid.moving).to(like)

    def moved(t: Tensor, z: Any, instants: Tensor, *rest: Any) -> Any:
        place = torch.searchsorted(fixed, t.detach()).clamp(max=len(fixed) - 1)
        return func(instants.index_select(0, place.reshape(1)).reshape(()), z, *rest)

    moved.made_anew = True  # type: ignore[attr-defined]
    return moved, (instants, *args)
