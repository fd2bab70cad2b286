"""A banded matrix as a linear part, as on one-dimensional grids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..base.checks import tensor
from ..base.policy import BAND_DENSE, DENSE_NUMBERS
from ..errors import InputError
from ..schemes.banded import Reduced
from ..schemes.linear import Factor
from ..schemes.sparse_systems import SparseMatrix
from .base import LinearPart
from .dense import dense_factor
from .eigenvalues import eigenvalues, enclosed


class Bands(LinearPart):
    """A banded matrix: ``(A z)_i = Σ_o bands[…, i, b + o] z_{i+o}``, |o| ≤ b; entries outside the matrix are ignored.

    Args:
        bands: (n, 2b + 1), the diagonals as columns from the lowest to the highest; leading axes are a batch.
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

    @property
    def entries(self) -> SparseMatrix:
        """The same as a sparse matrix, with its gradient."""
        n, width = self.bands.shape[-2:]
        rows = torch.arange(n, device=self.bands.device)[:, None].expand(n, width)
        columns = rows + torch.arange(width, device=rows.device) - width // 2
        inside = (columns >= 0) & (columns < n)
        return SparseMatrix(rows[inside], columns[inside], self.bands[..., inside], n)

    @cached_property
    def _fixed(self) -> SparseMatrix:
        return Bands(self.bands.detach()).entries

    @cached_property
    def matrix(self) -> Tensor:
        """The same as a dense matrix, without gradient."""
        return self._fixed.dense()

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        n, width = self.bands.shape[-2:]
        if width == 3 and self.bands.shape[:-2].numel() * n * n > BAND_DENSE:
            found = Reduced(w0 * self.bands.detach())
            if found.holds(like):
                return found
        return dense_factor(self.matrix, w0, like)

    def top(self) -> float:
        """See :class:`LinearPart`; by Gershgorin's discs."""
        centre, radius = self._fixed.discs()
        return float((centre + radius).max())

    def spectrum(self) -> Tensor | None:
        """See :class:`LinearPart`; if neighbours act on each other with equal signs, all eigenvalues are real."""
        bands = self.bands.detach()
        if bands.shape[-1] == 3 and bool((bands[..., 1:, 0] * bands[..., :-1, 2] >= 0).all()):
            found = enclosed((bands[..., 1] - bands[..., 0].abs() - bands[..., 2].abs()).min(), self.top())
            if found is not None:
                return found
        return eigenvalues(self.matrix) if bands.shape[-2] <= DENSE_NUMBERS else None
