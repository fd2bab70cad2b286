"""``row += Σ_i w_i past_i`` for a few long rows: the product inside a block.

For this product the matrix libraries of a GPU take a few times as long as reading the rows, and hold a workspace for
every stream. If Triton is installed (it comes with CUDA builds of torch), a small kernel reads each row once instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from ..base.policy import AXPY_COLUMNS
from .base import ieee


def add_rows(row: Tensor, weights: Tensor, past: Tensor) -> None:
    """Add the rows of ``past`` (k, width), each times its weight in ``weights`` (1, k), to ``row`` (1, width)."""
    count, width = past.shape
    side_by_side = width == 1 or row.stride(1) == past.stride(1) == 1
    kernel = _kernel() if row.device.type == "cuda" and side_by_side and past.stride(0) * count < 2**31 else None
    if kernel is None:
        with ieee(row):
            row.addmm_(weights, past)
    else:
        grid, options = (-(-width // AXPY_COLUMNS),), {"COLUMNS": AXPY_COLUMNS, "enable_fp_fusion": True}
        kernel[grid](row, weights, past, width, count, weights.stride(1), past.stride(0), **options)


@cache
def _kernel() -> Any:
    """The kernel; None without Triton."""
    try:
        from .kernels import add_rows as kernel
    except ImportError:
        return None
    return kernel
