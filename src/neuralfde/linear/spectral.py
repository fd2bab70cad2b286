"""Linear parts that a transform diagonalises."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from ..schemes.linear import Factor
from ..schemes.transforms import TRANSFORMS, Transform
from .base import LinearPart


class Spectral(LinearPart):
    """A matrix that a transform diagonalises, ``A = T⁻¹ diag(eigenvalues) T``, on the last axes of the state.

    Args:
        eigenvalues: real, one for each element of these axes; leading axes are a batch.
        transform: ``'fft'`` (periodic), ``'dct'`` (no flux through the boundary, cell-centred points) or ``'dst'``
            (zero at the boundary, which is not among the points).
        axes: the number of axes.
    """

    plain = True

    def __init__(self, eigenvalues: Tensor, transform: str = "fft", axes: int = 1) -> None:
        if transform not in TRANSFORMS or eigenvalues.ndim < axes or axes < 1:
            raise InputError(
                f"Spectral takes eigenvalues with at least {axes} axes and a transform among {TRANSFORMS}, "
                f"got {tuple(eigenvalues.shape)} and {transform!r}."
            )
        self.eigenvalues, self.transform, self.axes = eigenvalues, transform, axes
        self.tensors = (eigenvalues,)
        self._times = Transform(transform, eigenvalues.shape[-axes:], eigenvalues).times

    def with_tensors(self, tensors: Sequence[Tensor]) -> Spectral:
        """See :class:`LinearPart`."""
        (new,) = tensors
        if new.dtype != self.eigenvalues.dtype or new.device != self.eigenvalues.device:
            return Spectral(new, self.transform, self.axes)
        other = copy.copy(self)  # shares the transform
        other.eigenvalues, other.tensors = new, (new,)
        return other

    def shape(self) -> torch.Size:
        """See :class:`LinearPart`."""
        return self.eigenvalues.shape

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        return self._times(self.eigenvalues, z)

    def solve_plainly(self, w0: Tensor, r: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        return self._times(1 / (1 - w0 * self.eigenvalues), r)

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        return _Divided(self.with_tensors([self.eigenvalues.detach()]), w0)

    def top(self) -> float:
        """See :class:`LinearPart`."""
        return float(self.eigenvalues.detach().max())

    def spectrum(self) -> Tensor:
        """See :class:`LinearPart`."""
        return self.eigenvalues.detach()


class _Divided(Factor):
    """Division in the transform; the matrices are symmetric."""

    why = "division in a transform"

    def __init__(self, part: Spectral, w0: Tensor) -> None:
        self.part, self.divided = part, 1 / (1 - w0 * part.eigenvalues)
        self.singular = not bool(torch.isfinite(self.divided).all())

    def solve(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self.part._times(self.divided, r)

    def solve_transposed(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self.solve(r)
