"""Stage matrices with few nonzeros per row, as on two- and three-dimensional grids and on graphs.

Rows without a common column get the same colour, and one product gives the entries of all rows of a colour (Curtis,
Powell and Reid 1974). The pattern is found by bisection: a product with half of the rows of a block shows the columns
in which these have entries, and blocks without a common column share a product.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..base.checks import whole
from ..base.policy import DENSE_MEMORY, SPARSE_COLOURS, SPARSE_TOGETHER
from ..errors import InputError
from .jacobian import Jacobian, agrees, irregular
from .linear import Factor, Inverse, Linear, weight_of
from .sparse_systems import SparseMatrix, sparse_lu


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where an (n, n) matrix may be nonzero, and colours of its rows; rows of one colour have no common column."""

    rows: Tensor
    columns: Tensor
    n: int
    colours: Tensor

    @staticmethod
    def of(matrix: Tensor) -> Pattern:
        """The pattern of a matrix."""
        rows, columns = matrix.detach().to_sparse_coo().coalesce().indices()
        return Pattern(rows, columns, len(matrix), coloured(rows, columns, len(matrix), len(matrix)))

    def on(self, device: torch.device) -> Pattern:
        """The same pattern on a device."""
        if self.rows.device == device:
            return self
        return Pattern(self.rows.to(device), self.columns.to(device), self.n, self.colours.to(device))


@dataclass(frozen=True)
class Sparse(Linear):
    """A sparse Jacobian, as on two- and three-dimensional grids and on graphs.

    Systems are solved by scipy's SuperLU on a CPU; without it by GMRES with the matrix, and if that fails by cuDSS.

    Args:
        pattern: a matrix (n, n), sparse or not, that is nonzero wherever the Jacobian of a sample may be; by default
            the pattern is found automatically.
        most: the largest number of colours, one product each, in the search for the pattern.
    """

    pattern: Tensor | Pattern | None = field(default=None, repr=False)
    most: int = SPARSE_COLOURS

    def __post_init__(self) -> None:
        whole("Sparse.most", self.most)
        if self.pattern is None or isinstance(self.pattern, Pattern):
            return
        shape = tuple(self.pattern.shape) if isinstance(self.pattern, Tensor) else ()
        if len(shape) != 2 or shape[0] != shape[1]:
            raise InputError(f"Sparse.pattern must be a square matrix, a tensor (n, n), got {self.pattern!r:.60}.")
        object.__setattr__(self, "pattern", Pattern.of(self.pattern))

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor | None:
        """See :class:`Linear`."""
        found, total = self.pattern, jacobian.shape.numel()
        if not isinstance(found, Pattern):
            samples = jacobian.samples()
            found = _probed(jacobian, samples, total // samples, self.most)
        elif total % found.n:
            raise InputError(f"Sparse.pattern is for {found.n} elements, which do not divide the state's {total}.")
        found = None if found is None else found.on(jacobian.z.device)
        values = None if found is None else _values(jacobian, found)
        if found is None or values is None:
            return None
        made = _factor(found, values, w0, jacobian.shape)
        made.by, made.samples = Sparse(found, self.most), len(values)
        return made


def _factor(pattern: Pattern, values: Tensor, w0: Tensor, shape: torch.Size) -> Factor:
    rows, columns, n = pattern.rows, pattern.columns, pattern.n
    if sparse_lu(values) is None and len(values) * n * n <= DENSE_MEMORY:
        return Inverse(SparseMatrix(rows, columns, values, n).dense(), w0, shape)
    own = weight_of(w0, shape).reshape(-1, n)[:, rows]
    return SparseMatrix(rows, columns, own * values, n).factor()


def _values(jacobian: Jacobian, pattern: Pattern) -> Tensor | None:
    """The entries of the Jacobian in this pattern, (samples, count); None if it has others."""
    rows, columns, n, colours = pattern.rows, pattern.columns, pattern.n, pattern.colours
    u = irregular(jacobian.z.detach()).view(-1, n)
    found = _products(jacobian, torch.ones_like(u), colours)
    values = found[colours[rows], :, columns].T
    terms, none = u[:, rows] * values, torch.zeros_like(u)
    product, sizes = (none.index_add(1, columns, x) for x in (terms, terms.abs()))
    return values if agrees(product, jacobian.vjp(u.view(jacobian.shape)).view_as(u), sizes) else None


def _products(jacobian: Jacobian, u: Tensor, colours: Tensor) -> Tensor:
    """``Jᵀ u`` restricted to the rows of each colour, (colours, samples, n)."""
    together = max(1, SPARSE_TOGETHER // u.numel())
    every = torch.arange(int(colours.max()) + 1, device=u.device)[:, None, None].split(together)
    found = [jacobian.rows(((colours == some) * u).view(-1, *jacobian.shape)) for some in every]
    return torch.cat(found).view(-1, *u.shape)


def _probed(jacobian: Jacobian, samples: int, n: int, most: int) -> Pattern | None:
    """The pattern of the Jacobian at this state; None if it has more colours than ``most``."""
    u = irregular(jacobian.z.detach()).view(samples, n)
    place, size = torch.arange(n, device=u.device), 1 << (n - 1).bit_length()
    blocks, columns = torch.zeros_like(place), place  # one block of all rows, which may have entries in every column
    while True:
        count = -(-n // size)
        if count > 8 and 2 * len(blocks) > count * n:  # small blocks have entries in half of the columns: not sparse
            return None
        colours = coloured(blocks, columns, count, n)
        if int(colours.max()) >= most:
            return None
        if size == 1:
            return Pattern(blocks, columns, n, colours)
        met = (_products(jacobian, u, 2 * colours[place // size] + place // (size // 2) % 2) != 0).any(1)
        size, shades = size // 2, 2 * colours[blocks]
        first, second = met[shades, columns], (2 * blocks + 1) * size < n  # the last block may have only one half
        second = second & met[(shades + 1).clamp(max=len(met) - 1), columns]
        blocks = torch.cat([2 * blocks[first], 2 * blocks[second] + 1])
        columns = torch.cat([columns[first], columns[second]])


def coloured(rows: Tensor, columns: Tensor, count: int, n: int) -> Tensor:
    """A colour for each of ``count`` rows with these entries, such that rows of one colour have no common column.

    For each colour in turn, all rows that come first among their neighbours (rows with a common column), in an
    irregular order, get it (Jones and Plassmann 1993), until there is no row left that could get it.
    """
    turn = irregular(torch.empty(count, dtype=torch.float64, device=rows.device)).argsort().argsort() + 1

    def beside(of_rows: Tensor) -> Tensor:
        """The largest value among all neighbours of each row, itself included."""
        above = torch.zeros(n, dtype=of_rows.dtype, device=rows.device)
        above = above.scatter_reduce(0, columns, of_rows[rows], "amax")
        return torch.zeros_like(of_rows).scatter_reduce(0, rows, above[columns], "amax")

    colours, colour = torch.full_like(turn, -1), 0
    while bool((colours < 0).any()):
        left = torch.where(colours < 0, turn, 0)
        while bool(left.any()):
            now = (left > 0) & (beside(left) <= left)
            colours[now] = colour
            left = torch.where(now | (beside(now.long()) > 0), 0, left)
        colour += 1
    return colours
