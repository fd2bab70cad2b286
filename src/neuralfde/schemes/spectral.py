"""Fourier, cosine and sine transforms, and stage matrices that they make diagonal, as on regular grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import whole
from ..errors import InputError
from .jacobian import Jacobian, agrees, irregular
from .linear import Factor, Linear

TRANSFORMS = ("fft", "dct", "dst")


class Transform:
    """On the last axes: ``'fft'`` (periodic), ``'dct'`` (no flux through the ends) or ``'dst'`` (zero at them)."""

    def __init__(self, kind: str, sizes: Sequence[int], like: Tensor) -> None:
        self.kind, self.axes = kind, tuple(range(-len(sizes), 0))
        self.bases = [_basis(kind, n, like) for n in sizes if kind != "fft"]

    def forth(self, z: Tensor) -> Tensor:
        """``T z``."""
        return torch.fft.fftn(z, dim=self.axes) if self.kind == "fft" else self._along(z, True)

    def back(self, z: Tensor) -> Tensor:
        """``T⁻¹ z``."""
        return torch.fft.ifftn(z, dim=self.axes) if self.kind == "fft" else self._along(z, False)

    def times(self, numbers: Tensor, z: Tensor) -> Tensor:
        """``T⁻¹ diag(numbers) T z``."""
        if self.kind != "fft":
            return self.back(numbers * self.forth(z.to(torch.promote_types(z.dtype, numbers.dtype))))
        found = self.back(numbers * self.forth(z))
        return found if z.is_complex() or numbers.is_complex() else found.real

    def _along(self, z: Tensor, forth: bool) -> Tensor:
        for axis in self.axes:
            basis = self.bases[axis].to(z.dtype)
            z = (z.transpose(axis, -1) @ (basis.mT if forth else basis)).transpose(axis, -1)
        return z


def _basis(transform: str, n: int, like: Tensor) -> Tensor:
    """The orthogonal matrix of a transform; up to some thousand points a product is as fast as a fast transform."""
    k = torch.arange(n, dtype=torch.float64, device=like.device)
    if transform == "dst":
        found = math.sqrt(2 / (n + 1)) * torch.sin(math.pi / (n + 1) * torch.outer(k + 1, k + 1))
    else:
        found = math.sqrt(2 / n) * torch.cos(math.pi / n * torch.outer(k, k + 0.5))
        found[0] /= math.sqrt(2)
    return found.to(like.dtype)


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
        return Divided(by, 1 / (1 - w0.detach() * transposed), jacobian.samples())


class Divided(Factor):
    """Division in the transform, by the eigenvalues of ``Mᵀ`` or their conjugates; ``inverse`` is 1 over them."""

    def __init__(self, by: Transform, inverse: Tensor, samples: int = 1) -> None:
        self.by_transform, self.inverse, self.samples = by, inverse, samples
        self.why = f"diagonal in a transform ({by.kind}), {inverse.numel() // samples} elements"

    @property
    def singular(self) -> bool:  # type: ignore[override]
        """See :class:`Factor`."""
        return not bool(torch.isfinite(self.inverse).all())

    def least_eigenvalue(self) -> float:
        """See :class:`Factor`."""
        return float((1 / self.inverse).real.min())

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """See :class:`Factor`."""
        return self.by_transform.times(self.inverse if transposed else self.inverse.conj(), r).real
