"""The past of a wide state in half the memory: rows rounded to bfloat16, their sums in the state's own precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._triton import has_triton_package

from ..errors import InputError
from ..history import Blocked, Engine, Full, add_thin
from ..history.blocked import Rows, Toeplitz

CHUNK = 1 << 16
"""Numbers of a row that are widened at once where there is no kernel for it."""


@dataclass(frozen=True)
class HalfRows(Full):
    """As :class:`neuralfde.Full` with rows in bfloat16: slopes are good to three digits, gradients to about two.

    For one order that is not learned, on a uniform grid, with a method of one sum.
    """

    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Blocked:
        """See :class:`neuralfde.history.base.History`."""
        if weights.ndim > 3 or weights.shape[0] * weights.shape[2] > 1:
            raise InputError("HalfRows is for one order, a uniform grid and a method of one sum. Use history='full'.")
        buffer = row.new_empty(steps + 1, *row.shape, dtype=torch.bfloat16)
        return _HalfSums(Toeplitz(weights, 1), [Rows(buffer)], steps, (1,))

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Engine | None, weigh: bool) -> Blocked:
        """See :class:`neuralfde.history.base.History`."""
        if weigh:
            raise InputError("HalfRows cannot tell the gradient of the order. Use history='full' where it is learned.")
        kept = spare if isinstance(spare, Blocked) else self.forward(weights, steps, row)
        return _HalfSums(Toeplitz(weights, 1), [Rows(kept.inputs[0].buffer, True)], steps, (1,), True)


class _HalfSums(Blocked):
    def _apply(self, blocks: Tensor, past: Sequence[Tensor]) -> Tensor:
        weights, rows = blocks.reshape(1, -1), past[0][:, 0]
        out = weights.new_zeros(1, rows.shape[1])
        if has_triton_package() and out.is_cuda and rows.stride(0) * rows.shape[0] < 2**31:
            add_thin(out, weights.contiguous(), rows)
        else:
            for part, narrow in zip(out.split(CHUNK, 1), rows.split(CHUNK, 1), strict=True):
                torch.mm(weights, narrow.to(out.dtype), out=part)
        return out.view(1, 1, 1, -1)
