"""A sparse matrix as a linear part."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..base.policy import DENSE_NUMBERS
from ..errors import InputError
from ..schemes.linear import Factor
from ..schemes.sparse_systems import SparseMatrix, sparse_lu
from .base import LinearPart
from .dense import dense_factor
from .eigenvalues import eigenvalues, enclosed, enclosing


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
        self.matrix, self.tensors = SparseMatrix(rows, columns, values, n), (values,)

    @staticmethod
    def of(matrix: Tensor) -> Sparse:
        """From a sparse tensor of any layout; its values get gradients."""
        wide = matrix.to_sparse_coo().coalesce()
        rows, columns = wide.indices()
        return Sparse(rows, columns, wide.values(), wide.shape[-1])

    def with_tensors(self, tensors: Sequence[Tensor]) -> Sparse:
        """See :class:`LinearPart`."""
        found = copy.copy(self)  # rows and columns are already checked
        found.matrix, found.tensors = replace(self.matrix, values=tensors[0]), (tensors[0],)
        return found

    def shape(self) -> torch.Size:
        """See :class:`LinearPart`."""
        return torch.Size([*self.matrix.values.shape[:-1], self.matrix.n])

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        return self.matrix.matvec(z)

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        matrix = self._fixed
        if matrix.n <= DENSE_NUMBERS // 2 or (sparse_lu(like) is None and matrix.n <= 4 * DENSE_NUMBERS):
            return dense_factor(matrix.dense(), w0, like)
        return replace(matrix, values=w0 * matrix.values).factor()

    def top(self) -> float:
        """See :class:`LinearPart`; by Gershgorin's discs."""
        centre, radius = self._fixed.discs()
        return float((centre + radius).max())

    def spectrum(self) -> Tensor | None:
        """See :class:`LinearPart`; bounds for a symmetric matrix, a region for other large ones."""
        matrix = self._fixed
        centre, radius = matrix.discs()
        symmetric = _is_symmetric(matrix)
        found = enclosed((centre - radius).min(), float((centre + radius).max())) if symmetric else None
        if found is None and matrix.n <= DENSE_NUMBERS:
            return eigenvalues(matrix.dense())
        return found if symmetric else enclosing(matrix)

    @property
    def _fixed(self) -> SparseMatrix:
        """The matrix without gradients."""
        return replace(self.matrix, values=self.matrix.values.detach())


def _is_symmetric(matrix: SparseMatrix) -> bool:
    rows, columns, values = matrix.rows, matrix.columns, matrix.values
    (a, one), (b, two) = (rows * matrix.n + columns).sort(), (columns * matrix.n + rows).sort()
    scale = values.abs().max() if len(a) else values.new_zeros(())
    close = (values[..., one] - values[..., two]).abs() <= 1e-12 * scale
    return bool((a == b).all() & close.all()) and len(a.unique()) == len(a)
