"""``func`` with another time than the solver's: that of each sample (``horizon=``), or grid points with gradients."""

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
    """``func`` as a function of the grid's time; the factors become its first argument, so that they get gradients."""
    scales = pytree.tree_map(lambda x: torch.as_tensor(x).to(device=structure.device, dtype=structure.dtype), horizon)

    def scaled(s: Tensor, z: Any, factors: Any, *rest: Any) -> Any:
        return func(pytree.tree_map(lambda x: x * s, factors), z, *rest)

    scaled.made_anew = True  # type: ignore[attr-defined]  # made in every solve: captured steps could not be reused
    return scaled, (scales, *args)


def in_moving_time(
    func: Callable[..., Any], grid: Grid, like: Tensor, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` at times of which some get gradients; the times become its first argument."""
    assert grid.moving is not None
    fixed, instants = grid.times(like), (grid.start + grid.moving).to(like)

    def moved(t: Tensor, z: Any, instants: Tensor, *rest: Any) -> Any:
        place = torch.searchsorted(fixed, t.detach()).clamp(max=len(fixed) - 1)
        return func(instants.index_select(0, place.reshape(1)).reshape(()), z, *rest)

    moved.made_anew = True  # type: ignore[attr-defined]
    return moved, (instants, *args)
