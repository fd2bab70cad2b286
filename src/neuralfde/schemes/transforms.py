"""Fourier, cosine and sine transforms of the last axes of a state."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

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
