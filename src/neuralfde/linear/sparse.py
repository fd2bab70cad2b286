"""A sparse matrix as a linear part."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..base.policy import DENSE_NUMBERS
from ..errors import InputError
from ..schemes.linear import Factor
from ..schemes.sparse_systems import SparseMatrix, sparse_lu
from .base import LinearPart, eigenvalues, enclosed
from .dense import dense_factor
from .region import enclosing


class Sparse(LinearPart):
    """A sparse (n, n) matrix with ``values[k]`` at ``(rows[k], columns[k])``; it acts on the last axis of the state.

    Args:
        rows: the row of each entry, integers (count,).
        columns: the column of each entry, integers (count,).
        values: the entries, (count,), or (…, count) for one matrix per sample; entries at the same position add up.
        n: the size of the last axis.
    """

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor, n: int) -> None:
        given = (rows, columns, values)
        if not all(isinstance(x, Tensor) and x.ndim for x in given) or len({x.shape[-1:] for x in given}) > 1:
            raise InputError("Sparse takes rows, columns and values as three vectors of one length.")
        for name, x in (("rows", rows), ("columns", columns)):
            if x.device.type == "cpu" and len(x) and not 0 <= int(x.min()) <= int(x.max()) < n:
                raise InputError(
                    f"the {name} of Sparse must lie between 0 and {n - 1}, got {int(x.min())} to {int(x.max())}."
                )
        self.rows, self.columns, self.values, self.n = rows, columns, values, n
        self.tensors = (values,)

    @staticmethod
    def of(matrix: Tensor) -> Sparse:
        """From a sparse tensor of any layout; its values get gradients."""
        wide = matrix.to_sparse_coo().coalesce()
        rows, columns = wide.indices()
        return Sparse(rows, columns, wide.values(), wide.shape[-1])

    def with_tensors(self, tensors: Sequence[Tensor]) -> Sparse:
        """See :class:`LinearPart`."""
        found = copy.copy(self)  # rows and columns are already checked
        found.values, found.tensors = tensors[0], (tensors[0],)
        return found

    def shape(self) -> torch.Size:
        """See :class:`LinearPart`."""
        return torch.Size([*self.values.shape[:-1], self.n])

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        return self._matrix(self.values).matvec(z)

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        if self.n <= DENSE_NUMBERS // 2 or (sparse_lu(like) is None and self.n <= 4 * DENSE_NUMBERS):
            return dense_factor(self._dense(), w0, like)
        return self._matrix(w0 * self.values.detach()).factor()

    def top(self) -> float:
        """See :class:`LinearPart`; by Gershgorin's discs."""
        return float(self._discs()[1].max())

    def spectrum(self) -> Tensor | None:
        """See :class:`LinearPart`; bounds for a symmetric matrix, a region for other large ones."""
        low, high = self._discs()
        symmetric = self._symmetric(self.values.detach())
        found = enclosed(low.min(), float(high.max())) if symmetric else None
        if found is None and self.n <= DENSE_NUMBERS:
            return eigenvalues(self._dense())
        return found if symmetric else enclosing(self.rows, self.columns, self.values.detach(), self.n)

    def _matrix(self, values: Tensor) -> SparseMatrix:
        return SparseMatrix(self.rows, self.columns, values, self.n)

    def _discs(self) -> tuple[Tensor, Tensor]:
        """The ends of Gershgorin's discs on the real axis."""
        values = self.values.detach()
        centre, beside = self._matrix(values).diagonal(), torch.where(self.rows == self.columns, 0.0, values.abs())
        reach = torch.zeros_like(centre).index_add(-1, self.rows, beside)
        return centre - reach, centre + reach

    def _symmetric(self, values: Tensor) -> bool:
        here, there = self.rows * self.n + self.columns, self.columns * self.n + self.rows
        (a, one), (b, two) = here.sort(), there.sort()
        scale = values.abs().max() if len(a) else values.new_zeros(())
        close = (values[..., one] - values[..., two]).abs() <= 1e-12 * scale
        return bool((a == b).all() & close.all()) and len(a.unique()) == len(a)

    def _dense(self) -> Tensor:
        return self._matrix(self.values.detach()).dense()
