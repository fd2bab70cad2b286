"""Linear parts that a transform makes diagonal."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ..base.torch_private import derivatives_are_watched
from ..errors import InputError
from ..schemes.linear import Factor
from .base import LinearPart

TRANSFORMS = ("fft", "dct", "dst")


class Spectral(LinearPart):
    """``A = T⁻¹ diag(eigenvalues) T`` on the last axes of the state.

    Args:
        eigenvalues: one for each number of these axes, real; leading axes are a batch.
        transform: ``'fft'`` (periodic), ``'dct'`` (no flux through the ends, points in the middle of cells) or
            ``'dst'`` (zero at the ends, which are not among the points).
        axes: how many.
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
        self._bases: dict[Hashable, Tensor] = {}

    def with_tensors(self, tensors: Sequence[Tensor]) -> Spectral:
        """See :class:`LinearPart`."""
        other = Spectral(tensors[0], self.transform, self.axes)
        other._bases = self._bases
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

    def _times(self, numbers: Tensor, z: Tensor) -> Tensor:
        if self.transform == "fft":
            axes = tuple(range(-self.axes, 0))
            found = torch.fft.ifftn(numbers * torch.fft.fftn(z, dim=axes), dim=axes)
            return found if z.is_complex() or numbers.is_complex() else found.real
        found = numbers * self._along(z.to(torch.promote_types(z.dtype, numbers.dtype)), forth=True)
        return self._along(found, forth=False)

    def _along(self, z: Tensor, forth: bool) -> Tensor:
        for axis in range(-self.axes, 0):
            basis = self._basis(z.shape[axis], z)
            z = (z.transpose(axis, -1) @ (basis.mT if forth else basis)).transpose(axis, -1)
        return z

    def _basis(self, n: int, like: Tensor) -> Tensor:
        """The orthogonal matrix of a transform, made once for each length."""
        key = (n, like.dtype, like.device, torch.is_inference_mode_enabled())
        if key in self._bases:
            return self._bases[key]
        found = _basis(self.transform, n, like)
        if not derivatives_are_watched():  # one that is made inside a transform must not outlive it
            self._bases[key] = found
        return found


class _Divided(Factor):
    """Division in the transform; these matrices are symmetric."""

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


def _basis(transform: str, n: int, like: Tensor) -> Tensor:
    """An orthogonal matrix; a product with it takes no longer than a fast transform for up to some thousand points."""
    k = torch.arange(n, dtype=torch.float64, device=like.device)
    if transform == "dst":
        found = math.sqrt(2 / (n + 1)) * torch.sin(math.pi / (n + 1) * torch.outer(k + 1, k + 1))
    else:
        found = math.sqrt(2 / n) * torch.cos(math.pi / n * torch.outer(k, k + 0.5))
        found[0] /= math.sqrt(2)
    return found.to(like.dtype)
