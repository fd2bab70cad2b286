"""A sparse matrix as a linear part: scipy's SuperLU where there is one, otherwise GMRES, then cuDSS."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.policy import DENSE_NUMBERS
from ..errors import ConvergenceError, InputError
from ..schemes.krylov import gmres
from ..schemes.linear import Factor
from .base import LinearPart, eigenvalues, enclosed
from .dense import dense_factor


class Sparse(LinearPart):
    """``values[k]`` at ``(rows[k], columns[k])`` of an (n, n) matrix that acts on the last axis of the state.

    Args:
        rows: of each number, integers (count,).
        columns: of each number, integers (count,).
        values: the numbers there (count,); those at one position add up.
        n: the numbers of the last axis.
    """

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor, n: int) -> None:
        given = (rows, columns, values)
        if not all(isinstance(x, Tensor) for x in given) or len({x.shape for x in given}) > 1 or values.ndim != 1:
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
        """From a sparse tensor of any layout; gradients flow to its values."""
        wide = matrix.to_sparse_coo().coalesce()
        rows, columns = wide.indices()
        return Sparse(rows, columns, wide.values(), wide.shape[-1])

    def with_tensors(self, tensors: Sequence[Tensor]) -> Sparse:
        """See :class:`LinearPart`."""
        found = copy.copy(self)  # whose places are checked
        found.values, found.tensors = tensors[0], (tensors[0],)
        return found

    def shape(self) -> torch.Size:
        """See :class:`LinearPart`."""
        return torch.Size([self.n])

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        terms = self.values * z[..., self.columns]
        return torch.zeros_like(z).index_add(-1, self.rows, terms)

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        linalg = _scipy() if like.device.type == "cpu" else None
        if self.n <= DENSE_NUMBERS // 2 or (linalg is None and self.n <= 4 * DENSE_NUMBERS):
            return dense_factor(self._dense(), w0, like)
        return _Iterated(self, w0) if linalg is None else _SuperLU(self, w0, linalg)

    def top(self) -> float:
        """See :class:`LinearPart`; by the discs of Gershgorin."""
        return float(self._discs()[1].max())

    def spectrum(self) -> Tensor | None:
        """See :class:`LinearPart`; those of a symmetric matrix are real."""
        low, high = self._discs()
        found = enclosed(low.min(), float(high.max())) if self._symmetric(self.values.detach()) else None
        return eigenvalues(self._dense()) if found is None and self.n <= DENSE_NUMBERS else found

    def _discs(self) -> tuple[Tensor, Tensor]:
        """The ends of the discs of Gershgorin on the real axis."""
        values, own = self.values.detach(), self.rows == self.columns
        empty = torch.zeros(self.n, dtype=values.dtype, device=values.device)
        centre = empty.index_add(0, self.rows, torch.where(own, values, 0.0))
        reach = empty.index_add(0, self.rows, torch.where(own, 0.0, values.abs()))
        return centre - reach, centre + reach

    def _symmetric(self, values: Tensor) -> bool:
        here, there = self.rows * self.n + self.columns, self.columns * self.n + self.rows
        (a, one), (b, two) = here.sort(), there.sort()
        scale = values.abs().max() if len(values) else values.new_zeros(())
        close = (values[one] - values[two]).abs() <= 1e-12 * scale
        return bool((a == b).all() & close.all()) and len(a.unique()) == len(a)

    def system(self, w0: Tensor) -> Tensor:
        """``I - w_0 A`` as a sparse CSR tensor."""
        own = torch.arange(self.n, device=self.rows.device)
        places = torch.stack([torch.cat([self.rows, own]), torch.cat([self.columns, own])])
        values = torch.cat([-w0 * self.values.detach(), torch.ones_like(own, dtype=self.values.dtype)])
        return torch.sparse_coo_tensor(places, values, (self.n, self.n)).coalesce().to_sparse_csr()

    def _dense(self) -> Tensor:
        found = self.values.new_zeros(self.n, self.n)
        return found.index_put((self.rows, self.columns), self.values, accumulate=True).detach()


def _scipy() -> Any:
    try:
        return importlib.import_module("scipy.sparse.linalg")
    except ImportError:
        return None


class _SuperLU(Factor):
    """scipy's sparse LU of ``I - w_0 A``, in double precision."""

    def __init__(self, part: Sparse, w0: Tensor, linalg: Any) -> None:
        sparse, n = importlib.import_module("scipy.sparse"), part.n
        values = (-w0 * part.values.detach()).to(torch.promote_types(torch.float64, w0.dtype)).numpy()
        matrix = sparse.csc_matrix((values, (part.rows.numpy(), part.columns.numpy())), shape=(n, n))
        try:
            self.lu = linalg.splu((matrix + sparse.identity(n, dtype=values.dtype, format="csc")).tocsc())
        except RuntimeError:  # exactly singular
            self.singular = True
        self.why = f"a sparse LU of {n} numbers"

    def solve(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self._solve(r, "N")

    def solve_transposed(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self._solve(r, "T")

    def _solve(self, r: Tensor, trans: str) -> Tensor:
        columns = r.detach().resolve_conj().reshape(-1, r.shape[-1]).T
        wide = columns.to(torch.complex128 if self.lu.L.dtype.kind == "c" else torch.float64).numpy()
        found = torch.from_numpy(self.lu.solve(wide, trans))
        kept = r.dtype if not found.is_complex() or r.is_complex() else torch.complex128
        return found.T.to(kept).reshape(r.shape)


class _Iterated(Factor):
    """GMRES on products, scaled by the diagonal."""

    def __init__(self, part: Sparse, w0: Tensor) -> None:
        own, values = part.rows == part.columns, part.values.detach()
        self.w0, self.forth, self.back = w0, part, Sparse(part.columns, part.rows, values, part.n)
        self.diagonal = 1 - w0 * values.new_zeros(part.n).index_add(0, part.rows, torch.where(own, values, 0.0))
        self.why, self.stuck = f"GMRES for {part.n} sparse numbers", False

    def solve(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self._solve(self.forth, r)

    def solve_transposed(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self._solve(self.back, r)

    def _solve(self, part: Sparse, r: Tensor) -> Tensor:
        if self.w0.is_complex() or r.is_complex():
            raise InputError("complex sparse systems, as linear= without func has them, need scipy: pip install scipy.")
        rows = r.detach().reshape(-1, part.n)
        x, rest, tol = torch.zeros_like(rows), rows, 4 * torch.finfo(r.dtype).eps

        def apply(d: Tensor) -> Tensor:
            return d / self.diagonal - self.w0 * part.matvec(d / self.diagonal)

        for _ in range(0 if self.stuck else 50):
            x = x + gmres(apply, rest, 1e-6, 40)[0] / self.diagonal
            rest = rows - x + self.w0 * part.matvec(x)
            if bool((rest.abs().amax(1) <= tol * rows.abs().amax(1) + tol * x.abs().amax(1)).all()):
                return x.view(r.shape)
        self.stuck = True
        try:
            matrix = part.system(self.w0)  # torch factorises it for each right-hand side, and so it comes last
            return torch.stack([torch.sparse.spsolve(matrix, row) for row in rows]).view(r.shape)
        except RuntimeError as error:
            raise ConvergenceError(
                "GMRES did not solve the systems of linear=, and torch has no sparse LU here, which a build with cuDSS "
                "has on a GPU. Use a CPU with scipy, an object with solve and solve_transposed, or a smaller step."
            ) from error
