"""What a pass in blocks works on: rows in a buffer, and blocks of the matrix of weights."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ..base.policy import FLIPPED_NUMBERS
from ..base.torch_private import copy_each
from .axpy import add_rows


class Rows:
    """Consecutive rows in one buffer of shape (capacity, groups, width).

    Times are counted in the order of the pass (0, 1, 2, …). With ``backward`` the buffer is filled from its end, so
    that forward and backward pass can share one buffer. With ``reach`` only that many of the last rows are kept.
    """

    def __init__(self, buffer: Tensor, backward: bool = False, reach: int | None = None) -> None:
        self.buffer = buffer
        self.backward = backward
        self.reach = reach
        self.offset = 0  # the time held by the first slot

    def slice(self, a: int, b: int) -> Tensor:
        """The rows of times [a, b), a view in the order of the buffer: the latest first if ``backward``."""
        low, high = a - self.offset, b - self.offset
        if self.backward:
            low, high = self.buffer.shape[0] - high, self.buffer.shape[0] - low
        return self.buffer[low:high]

    def make_room(self, i: int, count: int) -> None:
        """If there is no room for times i … i+count-1, drop the rows that are out of reach."""
        if i + count - self.offset > self.buffer.shape[0]:
            assert self.reach is not None
            kept = self.slice(i - self.reach, i).clone()
            self.offset = i - self.reach
            self.slice(i - self.reach, i).copy_(kept)

    def write(self, i: int, rows: Tensor) -> None:
        """Copy rows (count, groups, width) of times i, i + 1, … to their places."""
        target = self.slice(i, i + rows.shape[0])
        if not self.backward:
            target.copy_(rows)
        elif rows.numel() <= FLIPPED_NUMBERS:
            target.copy_(rows.flip(0))
        else:
            copy_each(target.unbind(0), rows.unbind(0)[::-1])

    def weighted(self, weights: Tensor, a: int, b: int) -> Tensor:
        """The rows of times [a, b) summed with weights (sums, groups, count, b - a), in the order of the buffer."""
        return product(weights, self.slice(a, b))

    def inner_products(self, slopes: Tensor, a: int, b: int) -> Tensor:
        """Inner products of slopes (own, groups, width) with the rows of times [a, b): (groups, own, b - a)."""
        return slopes.permute(1, 0, 2) @ self.slice(a, b).permute(1, 2, 0)

    @property
    def bytes(self) -> int:
        """The memory that they take on the device where they are summed, in bytes."""
        return self.buffer.numel() * self.buffer.element_size()


def product(weights: Tensor, past: Tensor) -> Tensor:
    """(sums, groups, count, times) × (times, groups, width) → (count, sums, groups, width)."""
    sums, groups, count, times = weights.shape
    stacked = weights.permute(1, 2, 0, 3).reshape(groups, count * sums, times)
    if groups == 1 and count * sums == 1 and past.is_cuda:  # a matrix product takes a few times as long, see axpy.py
        out = past.new_zeros(1, past.shape[2])
        add_rows(out, stacked[0], past[:, 0])
        return out.view(1, 1, 1, -1)
    if groups == 1:
        return (stacked[0] @ past[:, 0]).view(count, sums, 1, -1)
    out = stacked @ past.permute(1, 0, 2)
    return out.view(groups, count, sums, -1).permute(1, 2, 0, 3)


class Toeplitz:
    """The Toeplitz matrix of lag weights (sums, lags, groups), in blocks."""

    def __init__(self, weights: Tensor, pad: int) -> None:
        self.weights, self.groups = weights, weights.shape[2]
        self.pad = pad  # how many zeros on both sides stand for negative lags and for lags without weights
        self._inner: dict[int, Tensor] = {}

    @cached_property
    def lags(self) -> Tensor:
        """The weights as (sums, groups, lag)."""
        lags = self.weights.permute(0, 2, 1).clone(memory_format=torch.contiguous_format)
        lags[..., 0] = 0  # the slope of the step itself belongs to the local stage
        return lags

    @cached_property
    def padded(self) -> Tensor:
        """``lags`` with zeros on both sides."""
        return torch.nn.functional.pad(self.lags, (self.pad, self.pad))

    @cached_property
    def flipped(self) -> Tensor:
        """The same in descending order of lags."""
        return torch.nn.functional.pad(self.lags.flip(-1), (self.pad, self.pad))

    def correlate(self, grad: Tensor, inner: Tensor, own: Tensor, times: Tensor, reach: int) -> None:
        """Add the inner products ⟨v_i, μ_{i'}⟩, (groups, own, times), to the gradient of the weight of lag i - i'."""
        lag = own[:, None] - times
        lag = torch.where(lag > reach, 0, lag).clamp_(min=0).reshape(-1)
        grad.index_add_(-1, lag, inner.flatten(1))
        grad[..., 0] = 0  # discard pairs without a weight, whose lag was set to 0

    def block(self, first: int, count: int, a: int, b: int, latest_first: bool) -> Tensor:
        """Weights of times [a, b) in rows first … first+count-1: (sums, groups, count, b - a), ordered as the rows."""
        if latest_first:  # column q is time b-1-q, hence lag r-b+1+q
            start = self.pad + first - b + 1
            return self.padded.unfold(-1, b - a, 1)[..., start : start + count, :]
        start = self.flipped.shape[-1] - self.pad - first - count + a  # column q is time a+q, hence lag r-a-q
        return self.flipped.unfold(-1, b - a, 1)[..., start : start + count, :].flip(-2)

    def inner(self, first: int, count: int, backward: bool) -> Tensor:
        """The weights inside a block, see :meth:`Memory.inner`."""
        if count not in self._inner:
            self._inner[count] = toeplitz_inner(self.lags, count, backward)
        return self._inner[count]


class Triangular:
    """A lower triangular matrix that is not Toeplitz, with weights (sums, rows, columns, groups), in the same blocks.

    A backward pass counts times from the end; in this order the transposed matrix is lower triangular too.
    """

    def __init__(self, weights: Tensor, backward: bool) -> None:
        lower = weights.movedim(-1, 1).tril(-1)  # the slope of the step itself belongs to the local stage
        self.lags, self.groups = lower.flip(-2, -1).transpose(-2, -1) if backward else lower, lower.shape[1]
        self.backward = backward
        self._latest_first = self.lags.flip(-1)

    def block(self, first: int, count: int, a: int, b: int, latest_first: bool) -> Tensor:
        """See :meth:`Toeplitz.block`."""
        if not latest_first:
            return self.lags[..., first : first + count, a:b]
        size = self.lags.shape[-1]
        return self._latest_first[..., first : first + count, size - b : size - a]

    def correlate(self, grad: Tensor, inner: Tensor, own: Tensor, times: Tensor, reach: int) -> None:
        """Add the inner products ⟨v_i, μ_{i'}⟩ to the gradient of weight (row i', column i) of the forward matrix."""
        size = self.lags.shape[-1] - 1
        inner = torch.where(own[:, None] > times, inner, 0.0)
        grad[:, (size - times)[None, :], (size - own)[:, None]] += inner

    def inner(self, first: int, count: int, backward: bool) -> Tensor:
        """The weights inside a block, see :meth:`Memory.inner`."""
        found = self.lags[..., first : first + count, first : first + count].permute(1, 2, 3, 0)
        return found.unsqueeze(2) if backward else found.permute(0, 1, 3, 2).unsqueeze(-1)


def summed_by_lag(products: Tensor) -> Tensor:
    """Inner products (groups, n, before + n) of n rows with the rows before them and with each other, summed over all
    pairs with the same lag: (groups, before + n), from lag 0 on."""
    groups, n, width = products.shape
    skewed = torch.nn.functional.pad(products.flip(-1), (0, n)).flatten(1)[:, : n * (width + n - 1)]
    return skewed.view(groups, n, width + n - 1).sum(1)[:, n - 1 :]


def toeplitz_inner(lags: Tensor, count: int, backward: bool) -> Tensor:
    """The weights inside a block of a Toeplitz matrix, in the shape of ``Memory.inner``.

    ``lags`` is (sums, groups, lag) with zero at lag 0; forward each sum is an output, backward an input.
    """
    falling = torch.nn.functional.pad(lags[..., :count].flip(-1), (0, count - 1))
    found = falling.unfold(-1, count, 1).flip(-2).permute(1, 2, 3, 0)  # (groups, row, earlier, sums)
    return (found.unsqueeze(2) if backward else found.permute(0, 1, 3, 2).unsqueeze(-1)).contiguous()
