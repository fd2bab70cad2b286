"""A matrix, or a batch of matrices, as a linear part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..schemes.linear import Factor, inverted
from .base import LinearPart
from .eigenvalues import eigenvalues


class Matrix(LinearPart):
    """A dense matrix (n, n) that acts on the last axis of the state; leading axes are a batch, one for each sample."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.tensors = matrix, (matrix,)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Matrix:
        """See :class:`LinearPart`."""
        return Matrix(tensors[0])

    def shape(self) -> torch.Size:
        """See :class:`LinearPart`."""
        return self.matrix.shape[:-1]

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        return product(self.matrix.to(z.dtype), z)

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        return dense_factor(self.matrix, w0, like)

    def top(self) -> float:
        """See :class:`LinearPart`; by the discs of Gershgorin."""
        own = self.matrix.detach().diagonal(dim1=-2, dim2=-1)
        return float((own + self.matrix.detach().abs().sum(-1) - own.abs()).max())

    def spectrum(self) -> Tensor | None:
        """See :class:`LinearPart`."""
        return eigenvalues(self.matrix.detach())


class _Inverse(Factor):
    """An inverse matrix (n, n), or one per sample."""

    def __init__(self, inverse: Tensor) -> None:
        self.inverse, self.singular = inverse, not bool(torch.isfinite(inverse).all())
        count, n = inverse.shape[:-2].numel(), inverse.shape[-1]
        self.why = f"a dense inverse of {n} elements" + (f", {count} samples" if count > 1 else "")

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        return product(self.inverse.mT if transposed else self.inverse, r)


def product(matrix: Tensor, z: Tensor) -> Tensor:
    """``A z`` on the last axis, with one matrix for all samples or one per sample."""
    return z @ matrix.mT if matrix.ndim == 2 else (matrix @ z.unsqueeze(-1)).squeeze(-1)


def dense_factor(matrix: Tensor, w0: Tensor, like: Tensor) -> Factor:
    """The inverse of ``I - w_0 A``, computed in float64: in float32 rounding would dominate if ``w_0 A`` is large."""
    dtype = torch.promote_types(like.dtype, w0.dtype)
    wide = torch.promote_types(dtype, torch.float64)
    one = torch.eye(matrix.shape[-1], dtype=wide, device=matrix.device)
    return _Inverse(inverted(one - w0.to(wide) * matrix.to(wide)).to(dtype))
