"""Gradients of exact lags and of coefficients of exponentials: products of slopes with earlier rows, two kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....base.policy import KERNEL_PAIRED, KERNEL_PAIRS, KERNEL_REPLAYS, KERNEL_ROWS
from ....history import Modes, Weighed


@dataclass(frozen=True)
class Pairs:
    """The two kernels for rows (count, sums, groups, width) and these exponentials."""

    modes: Modes
    shape: tuple[int, int, int, int]
    dtype: torch.dtype

    @property
    def lags(self) -> int:
        """Exact lags."""
        return int(self.modes.lags.shape[-1]) - 1

    def add(self, weighed: Weighed, mu: Tensor, slopes: Tensor) -> None:
        """Add the gradients from all pairs of a step of a block with an earlier one."""
        from . import functions

        _, sums, groups, width = self.shape
        (grid, options), (far_grid, far_options) = self.options()
        near = mu.new_empty(grid[2], sums, self.lags, groups, width)
        far = mu.new_empty(sums, len(self.modes.losses), groups, width)
        near_given, far_given = self.given(mu, slopes, weighed.previous, weighed.older, near, far)
        with torch.cuda.device_of(mu):
            functions.near_pairs[grid](*near_given, **options)
            functions.far_pairs[far_grid](*far_given, **far_options)
        weighed.lags.add_(near.sum((0, -1)).transpose(1, 2))
        weighed.coefficients.add_(far.sum(-1).transpose(1, 2))

    def compiling(self, like: Tensor) -> list[Callable[[], Any]]:
        """What compiles them, for tensors like this one."""
        from . import functions

        def job(kernel: Any, given: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> Callable[[], Any]:
            return lambda: kernel.warmup(*given, grid=grid, **options)

        kernels = functions.near_pairs, functions.far_pairs
        every = zip(kernels, self.given(*(like,) * 6), self.options(), strict=True)
        return [job(kernel, given, *how) for kernel, given, how in every]

    def given(
        self, mu: Tensor, slopes: Tensor, previous: Tensor, older: Tensor, near: Tensor, far: Tensor
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What the kernels take."""
        count, sums, groups, width = self.shape
        sizes, losses = (count, sums, groups * width, width), self.modes.losses
        return (mu, slopes, previous, near, *sizes), (mu, slopes, previous, older, losses, far, *sizes, len(losses))

    def options(self) -> tuple[tuple[tuple[int, ...], dict[str, Any]], tuple[tuple[int, ...], dict[str, Any]]]:
        """The programs of each, and what it is compiled for."""
        import triton.language as tl

        count, sums, groups, width = self.shape
        lags, terms, tiles = self.lags, len(self.modes.losses), -(-groups * width // KERNEL_PAIRS)
        dtype = tl.float32 if self.dtype == torch.float32 else tl.float64
        fixed = {"DT": dtype, "R": lags, "BLOCK": KERNEL_PAIRS, "num_warps": 1}
        pieces, power = max(1, min(count // lags, KERNEL_REPLAYS // (tiles * sums))), _power(terms)
        if tiles * sums < KERNEL_REPLAYS:
            power = min(power, KERNEL_PAIRED)
        near = (tiles, sums, pieces), {"P": _power(lags), **fixed}
        return near, ((tiles, sums, -(-terms // power)), {"K": power, "AHEAD": KERNEL_ROWS, **fixed})


def _power(count: int) -> int:
    """The power of two that holds so many numbers."""
    return 1 << (count - 1).bit_length()
