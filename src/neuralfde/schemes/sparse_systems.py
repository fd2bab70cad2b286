"""Systems with ``I - B`` for a sparse matrix B: by scipy's SuperLU if possible, otherwise by GMRES, then cuDSS."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import ConvergenceError, InputError
from .krylov import gmres
from .linear import Factor


def sparse_lu(like: Tensor) -> Any:
    """scipy's module with the sparse LU; None if the tensor is not on a CPU, or scipy is not installed."""
    try:
        return importlib.import_module("scipy.sparse.linalg") if like.device.type == "cpu" else None
    except ImportError:
        return None


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """``values[…, k]`` at ``(rows[k], columns[k])`` of an (n, n) matrix, or of one matrix per sample."""

    rows: Tensor
    columns: Tensor
    values: Tensor
    n: int

    @property
    def transposed(self) -> SparseMatrix:
        """The transpose."""
        return replace(self, rows=self.columns, columns=self.rows)

    def matvec(self, z: Tensor) -> Tensor:
        """The product with the last axis; leading axes are samples."""
        return self.row_sums(self.values * z[..., self.columns])

    def row_sums(self, entries: Tensor) -> Tensor:
        """The sum over each row of numbers given for all entries, (…, count)."""
        return entries.new_zeros(*entries.shape[:-1], self.n).index_add(-1, self.rows, entries)

    def dense(self) -> Tensor:
        """The same as dense matrices."""
        found = self.values.new_zeros(*self.values.shape[:-1], self.n * self.n)
        return found.index_add(-1, self.rows * self.n + self.columns, self.values).unflatten(-1, (self.n, self.n))

    def diagonal(self) -> Tensor:
        """The diagonal, (…, n)."""
        return self.row_sums(torch.where(self.rows == self.columns, self.values, 0.0))

    def discs(self) -> tuple[Tensor, Tensor]:
        """Centres and radii of Gershgorin's discs, which contain all eigenvalues, (…, n) each."""
        return self.diagonal(), self.row_sums(torch.where(self.rows == self.columns, 0.0, self.values.abs()))

    def factor(self) -> Factor:
        """A factor of ``I - B``."""
        linalg = sparse_lu(self.values)
        return _Iterated(self) if linalg is None else _SuperLU(self, linalg)


class _SuperLU(Factor):
    """scipy's sparse LU, in double precision; the matrices of all samples are the blocks of one matrix."""

    def __init__(self, matrix: SparseMatrix, linalg: Any) -> None:
        sparse, n = importlib.import_module("scipy.sparse"), matrix.n
        values = matrix.values.detach().reshape(matrix.values.shape[:-1].numel(), len(matrix.rows))
        values = values.to(torch.promote_types(torch.float64, values.dtype))
        first, size = n * torch.arange(len(values))[:, None], n * len(values)
        places = ((matrix.rows + first).reshape(-1).numpy(), (matrix.columns + first).reshape(-1).numpy())
        whole = sparse.csc_matrix((-values.reshape(-1).numpy(), places), shape=(size, size))
        try:
            self.lu = linalg.splu((whole + sparse.identity(size, dtype=whole.dtype, format="csc")).tocsc())
        except RuntimeError:  # exactly singular
            self.singular = True
        self.size, self.complex = size, values.is_complex()
        self.why = f"a sparse LU of {n} elements" + (f", {len(values)} samples" if len(values) > 1 else "")

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        if self.singular:
            return torch.full_like(r, torch.nan)
        columns = r.detach().resolve_conj().reshape(-1, self.size).T
        wide = columns.to(torch.complex128 if self.complex else torch.float64).numpy()
        found = torch.from_numpy(self.lu.solve(wide, "T" if transposed else "N"))
        kept = r.dtype if not found.is_complex() or r.is_complex() else torch.complex128
        return found.T.to(kept).reshape(r.shape)


class _Iterated(Factor):
    """GMRES, preconditioned by the diagonal."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.matrix = replace(matrix, values=matrix.values.detach())
        self.pivots, self.stuck = 1 - self.matrix.diagonal(), False
        self.why = f"GMRES for a sparse matrix of {matrix.n} elements"

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        if self.pivots.is_complex() or r.is_complex():
            raise InputError("complex sparse systems, as with linear= without func, need scipy: pip install scipy.")
        matrix = self.matrix.transposed if transposed else self.matrix
        lead = matrix.values.shape[:-1]
        rows = r.detach().reshape(-1, *lead, matrix.n)
        x, rest, tol = torch.zeros_like(rows), rows, 4 * torch.finfo(r.dtype).eps

        def apply(d: Tensor) -> Tensor:
            d = d.view(rows.shape) / self.pivots
            return (d - matrix.matvec(d)).view(-1, matrix.n)

        for _ in range(0 if self.stuck else 50):
            x = x + gmres(apply, rest.reshape(-1, matrix.n), 1e-6, 40)[0].view(rows.shape) / self.pivots
            rest = rows - x + matrix.matvec(x)
            if bool((rest.abs().amax(-1) <= tol * (rows.abs().amax(-1) + x.abs().amax(-1))).all()):
                return x.view(r.shape)
        self.stuck = True
        try:
            return _factorised_each(matrix, rows).view(r.shape)
        except RuntimeError as error:
            raise ConvergenceError(
                "GMRES did not solve the sparse systems, and torch has no sparse LU here (only a build with cuDSS, on "
                "a GPU). Use a CPU with scipy, an object with solve and solve_transposed, or a smaller step."
            ) from error


def _factorised_each(matrix: SparseMatrix, rows: Tensor) -> Tensor:
    """Solve by torch's sparse solver, the last resort: it factorises the matrix for each right-hand side."""
    own = torch.arange(matrix.n, device=rows.device)
    places = torch.stack([torch.cat([matrix.rows, own]), torch.cat([matrix.columns, own])])
    systems = []
    for values in matrix.values.reshape(-1, len(matrix.rows)):
        entries = torch.cat([-values, torch.ones_like(own, dtype=values.dtype)])
        systems.append(torch.sparse_coo_tensor(places, entries, (matrix.n, matrix.n)).coalesce().to_sparse_csr())
    flat = rows.reshape(-1, len(systems), matrix.n)
    found = [[torch.sparse.spsolve(m, row) for m, row in zip(systems, each, strict=True)] for each in flat]
    return torch.stack([torch.stack(each) for each in found])
