"""``func`` with another time than the solver's: that of each sample (``horizon=``), or grid points with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..base.grid import Grid
from ..base.structure import Structure
from ..base.torch_private import pytree


class InOwnTime(nn.Module):
    """``func`` of the times of all samples, from the grid's time; a module, so that those of ``func`` are found."""

    made_anew = True  # in every solve: captured steps could not be reused

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__()
        self.func = func

    def forward(self, s: Tensor, z: Any, factors: Any, *rest: Any) -> Any:
        """The derivative; ``factors`` are the first argument."""
        return self.func(pytree.tree_map(lambda x: x * s, factors), z, *rest)


class InMovingTime(nn.Module):
    """``func`` at grid points with gradients, from the times of these points without."""

    made_anew = True

    def __init__(self, func: Callable[..., Any], fixed: Tensor) -> None:
        super().__init__()
        self.func, self.fixed = func, fixed

    def forward(self, t: Tensor, z: Any, instants: Tensor, *rest: Any) -> Any:
        """The derivative; the ``instants`` of all points are the first argument."""
        place = torch.searchsorted(self.fixed, t.detach()).clamp(max=len(self.fixed) - 1)
        return self.func(instants.index_select(0, place.reshape(1)).reshape(()), z, *rest)


def in_own_time(
    func: Callable[..., Any], horizon: Any, structure: Structure, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` as a function of the grid's time; the factors become its first argument, so that they get gradients."""
    scales = pytree.tree_map(lambda x: torch.as_tensor(x).to(device=structure.device, dtype=structure.dtype), horizon)
    return InOwnTime(func), (scales, *args)


def in_moving_time(
    func: Callable[..., Any], grid: Grid, like: Tensor, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` at times of which some get gradients; the times become its first argument."""
    assert grid.moving is not None
    return InMovingTime(func, grid.times(like)), ((grid.start + grid.moving).to(like), *args)
