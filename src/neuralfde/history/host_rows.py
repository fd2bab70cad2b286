"""Rows in host memory; for a sum they are copied to the device of the weights in parts."""

from __future__ import annotations

from torch import Tensor

from ..base.policy import FETCH_CHUNK
from .matrices import Rows, product


class HostRows(Rows):
    """:class:`Rows` with a buffer in host memory; they take no device memory."""

    bytes = 0

    def weighted(self, weights: Tensor, a: int, b: int) -> Tensor:
        """See :class:`Rows`."""
        rows = self.slice(a, b)
        out = weights.new_empty(weights.shape[-2], len(weights), *rows.shape[1:])
        for low, high in _parts(rows):
            out[..., low:high] = product(weights, _fetched(rows, low, high, weights))
        return out

    def inner_products(self, slopes: Tensor, a: int, b: int) -> Tensor:
        """See :class:`Rows`."""
        rows = self.slice(a, b)
        out = slopes.new_zeros(slopes.shape[1], slopes.shape[0], rows.shape[0])
        for low, high in _parts(rows):
            out += slopes[..., low:high].permute(1, 0, 2) @ _fetched(rows, low, high, slopes).permute(1, 2, 0)
        return out


def _parts(rows: Tensor) -> list[tuple[int, int]]:
    """The ranges of columns [low, high) that are fetched one after the other."""
    width, times = rows.shape[-1], rows[..., 0].numel()
    size = max(1, FETCH_CHUNK // max(1, times))
    return [(a, min(a + size, width)) for a in range(0, width, size)]


def _fetched(rows: Tensor, a: int, b: int, like: Tensor) -> Tensor:
    """Columns [a, b) of the rows on the device of ``like``, copied row by row: each piece of a row is contiguous."""
    if rows.device == like.device:
        return rows[..., a:b]
    out = like.new_empty(*rows.shape[:-1], b - a)
    for there, here in zip(out.flatten(0, 1), rows.flatten(0, 1), strict=True):
        there.copy_(here[a:b], non_blocking=True)
    return out
