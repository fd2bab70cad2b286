"""Few diagonals as a linear part: lines of cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..base.checks import tensor
from ..base.policy import BAND_DENSE
from ..errors import InputError
from ..schemes.linear import Factor
from .base import LinearPart, eigenvalues, enclosed
from .dense import dense_factor


class Bands(LinearPart):
    """``(A z)_i = Σ_o bands[…, i, b + o] z_{i+o}``, |o| ≤ b; what would lie outside is left out.

    Args:
        bands: (n, 2b + 1), diagonals as columns from the lowest to the highest; leading axes are a batch.
    """

    def __init__(self, bands: Tensor) -> None:
        tensor("bands", bands, also_complex=True)
        if bands.ndim < 2 or bands.shape[-1] % 2 == 0:
            raise InputError(f"Bands takes (…, n, 2b + 1), an odd number of diagonals, got {tuple(bands.shape)}.")
        self.bands, self.tensors = bands, (bands,)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Bands:
        """See :class:`LinearPart`."""
        return Bands(tensors[0])

    def shape(self) -> torch.Size:
        """See :class:`LinearPart`."""
        return self.bands.shape[:-1]

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        b, n = self.bands.shape[-1] // 2, z.shape[-1]
        around, columns = torch.nn.functional.pad(z, (b, b)), self.bands.unbind(-1)
        found = columns[0] * around[..., :n]
        for k in range(1, 2 * b + 1):
            found = torch.addcmul(found, columns[k], around[..., k : k + n])
        return found

    @cached_property
    def matrix(self) -> Tensor:
        """The same as a dense matrix."""
        n, width = self.bands.shape[-2:]
        bands, b = self.bands.detach(), width // 2
        wide = bands.new_zeros(*bands.shape[:-2], n, n + 2 * b)
        columns = torch.arange(n, device=bands.device)[:, None] + torch.arange(width, device=bands.device)
        return wide.scatter(-1, columns.expand(bands.shape), bands)[..., b : b + n]

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        n, width = self.bands.shape[-2:]
        if width == 3 and self.bands.shape[:-2].numel() * n * n > BAND_DENSE:
            found = _Reduced(self.bands.detach(), w0)
            if found.holds(like):
                return found
        return dense_factor(self.matrix, w0, like)

    def top(self) -> float:
        """See :class:`LinearPart`; by the discs of Gershgorin."""
        bands, b = self.bands.detach(), self.bands.shape[-1] // 2
        n, offsets = bands.shape[-2], torch.arange(-b, b + 1, device=bands.device)
        target = torch.arange(n, device=bands.device)[:, None] + offsets
        size = torch.where((target >= 0) & (target < n), bands.abs(), 0.0)
        return float((bands[..., b] + size.sum(-1) - size[..., b]).max())

    def spectrum(self) -> Tensor | None:
        """See :class:`LinearPart`; neighbours that act on each other with one sign have real eigenvalues."""
        bands = self.bands.detach()
        if bands.shape[-1] == 3 and bool((bands[..., 1:, 0] * bands[..., :-1, 2] >= 0).all()):
            found = enclosed((bands[..., 1] - bands[..., 0].abs() - bands[..., 2].abs()).min(), self.top())
            if found is not None:
                return found
        return eigenvalues(self.matrix)


class _Reduced(Factor):
    """Parallel cyclic reduction of tridiagonal matrices (Hockney 1965), all samples and rows at once, no exchanges."""

    def __init__(self, bands: Tensor, w0: Tensor) -> None:
        lower, middle, upper = (-w0 * bands).unbind(-1)
        n = bands.shape[-2]
        self.given, self.levels = (bands, w0), []
        here, step = middle + 1, 1
        lower, upper = _shifted(lower, 0, 1, 0), _shifted(upper, 0, 0, 1)
        while step < n:
            down, up = -lower / _shifted(here, step, fill=1), -upper / _shifted(here, -step, fill=1)
            here = here + down * _shifted(upper, step) + up * _shifted(lower, -step)
            lower, upper = down * _shifted(lower, step), up * _shifted(upper, -step)
            self.levels.append((step, down[..., step:].contiguous(), up[..., :-step].contiguous()))
            step *= 2
        self.inverse = here.reciprocal()
        count = bands.shape[:-2].numel()
        self.why = f"cyclic reduction of {count} tridiagonal matrices of {n} numbers"

    def solve(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        for step, down, up in self.levels:
            y = r.to(self.inverse.dtype, copy=True)
            y[..., step:].addcmul_(down, r[..., :-step])
            y[..., :-step].addcmul_(up, r[..., step:])
            r = y
        return r * self.inverse

    def solve_transposed(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self._transposed.solve(r)

    @cached_property
    def _transposed(self) -> _Reduced:
        bands, w0 = self.given
        lower, middle, upper = bands.unbind(-1)
        return _Reduced(torch.stack([_shifted(upper, 1), middle, _shifted(lower, -1)], -1), w0)

    def holds(self, like: Tensor) -> bool:
        """Whether a system is solved to rounding, nearly, by this and by the transpose."""
        part, one = Bands(self.given[0]), torch.ones_like(like)
        x = self.solve(one)
        rest = (x - self.given[1] * part.matvec(x) - one).abs().max()
        return bool(rest <= 1e4 * torch.finfo(like.dtype).eps * x.abs().max().clamp(min=1))


def _shifted(x: Tensor, by: int, first: int = 0, last: int = 0, fill: float = 0.0) -> Tensor:
    """``x_{i-by}``, with ``fill`` beyond the ends; so many numbers at the ends are set to zero."""
    if by:
        pad, n = torch.full_like(x[..., : min(abs(by), x.shape[-1])], fill), x.shape[-1]
        x = torch.cat([pad, x[..., : n - by]], -1) if by > 0 else torch.cat([x[..., -by:], pad], -1)
    if first or last:
        x = x.clone()
        x[..., :first], x[..., x.shape[-1] - last :] = 0, 0
    return x
