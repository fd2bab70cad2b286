"""Stage matrices that a transform makes diagonal: regular grids with a constant coefficient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import whole
from ..errors import InputError
from .jacobian import Jacobian, agrees, irregular
from .linear import Factor, Linear
from .transforms import TRANSFORMS, Transform


@dataclass(frozen=True)
class Spectral(Linear):
    """A Jacobian that a transform of the last axes diagonalises; one product gives all of its eigenvalues.

    Args:
        transform: ``'fft'`` (periodic), ``'dct'`` (no flux through the boundary, cell-centred points) or ``'dst'``
            (zero at the boundary, which is not among the points).
        axes: the number of transformed axes; leading axes are samples, each with its own eigenvalues.
        nearly: the Jacobian may have further terms, such as a reaction, which are ignored: for use as a preconditioner
            of ``Krylov``.
    """

    transform: str = "fft"
    axes: int = 1
    nearly: bool = False

    def __post_init__(self) -> None:
        whole("Spectral.axes", self.axes)
        if self.transform not in TRANSFORMS:
            raise InputError(f"Spectral.transform={self.transform!r} must be one of {TRANSFORMS}.")

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor | None:
        """See :class:`Linear`; None if elements of the state have different weights."""
        z = jacobian.z.detach()
        if w0.numel() > 1 or z.ndim < self.axes:
            return None
        by = Transform(self.transform, z.shape[z.ndim - self.axes :], z)
        one = by.back(torch.ones_like(z)).real  # its transform is all ones, so that products are eigenvalues
        transposed, u = by.forth(jacobian.vjp(one.contiguous())), irregular(z)
        if not self.nearly and not agrees(by.times(transposed, u).real, jacobian.vjp(u)):
            return None
        return _Divided(by, 1 / (1 - w0.detach() * transposed), jacobian.samples())


class _Divided(Factor):
    """Division in the transform, by the eigenvalues of ``Mᵀ`` or their conjugates."""

    def __init__(self, by: Transform, inverse: Tensor, samples: int) -> None:
        self.by_transform, self.inverse, self.samples = by, inverse, samples
        self.why = f"diagonal in a transform ({by.kind}), {inverse.numel() // samples} elements"

    @property
    def singular(self) -> bool:  # type: ignore[override]
        """See :class:`Factor`."""
        return not bool(torch.isfinite(self.inverse).all())

    def least_eigenvalue(self) -> float:
        """See :class:`Factor`."""
        return float((1 / self.inverse).real.min())

    def solve(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self.by_transform.times(self.inverse.conj(), r).real

    def solve_transposed(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return self.by_transform.times(self.inverse, r).real
