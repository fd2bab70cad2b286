"""Linear parts that a transform diagonalises."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError
from ..schemes.linear import Factor
from ..schemes.spectral import TRANSFORMS, Divided, Transform
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
        self._by = Transform(transform, eigenvalues.shape[-axes:], eigenvalues)

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
        return self._by.times(self.eigenvalues, z)

    def solve_plainly(self, w0: Tensor, r: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        return self._by.times(1 / (1 - w0 * self.eigenvalues), r)

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        return Divided(self._by, 1 / (1 - w0 * self.eigenvalues.detach()))

    def top(self) -> float:
        """See :class:`LinearPart`."""
        return float(self.eigenvalues.detach().max())

    def spectrum(self) -> Tensor:
        """See :class:`LinearPart`."""
        return self.eigenvalues.detach()
