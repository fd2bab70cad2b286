"""Diffusion on regular grids as a linear part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..base.checks import real, tensor, whole
from ..errors import InputError, InputTypeError
from .bands import Bands
from .spectral import Spectral

_BOUNDARIES = {"periodic": "fft", "no-flux": "dct", "zero": "dst"}


def laplacian(
    points: int | Sequence[int],
    spacing: float = 1.0,
    diffusivity: float | Tensor = 1.0,
    boundary: str = "periodic",
    like: Tensor | None = None,
) -> Spectral:
    """The Laplacian ``k Δ`` by second differences on a regular grid of one or more axes, solved by a transform.

    Args:
        points: the number of points along each axis.
        spacing: the distance between neighbouring points.
        diffusivity: k, a number, or a tensor that broadcasts to the eigenvalues: (batch, 1) for one per sample.
        boundary: ``'periodic'``, ``'no-flux'`` (cell-centred points), or ``'zero'`` one spacing beyond both ends.
        like: a tensor that determines dtype and device.
    """
    if boundary not in _BOUNDARIES:
        raise InputError(f"boundary={boundary!r} must be one of {tuple(_BOUNDARIES)}.")
    sizes = (points,) if isinstance(points, int) else tuple(points)
    real("spacing", spacing, above=0)
    if isinstance(points, str) or not sizes:
        raise InputTypeError(f"points={points!r} must be a whole number, or one for each axis.")
    total = torch.zeros((), dtype=torch.float64)
    for axis, n in enumerate(sizes):
        whole("points", n)
        k = torch.arange(n, dtype=torch.float64)
        half = {"periodic": k / n, "no-flux": k / (2 * n), "zero": (k + 1) / (2 * (n + 1))}[boundary]
        line = -4 / spacing**2 * torch.sin(math.pi * half) ** 2
        total = total + line.reshape(-1, *[1] * (len(sizes) - 1 - axis))
    like = diffusivity if like is None and isinstance(diffusivity, Tensor) else like
    total = total.to(torch.get_default_dtype()) if like is None else total.to(like)
    return Spectral(diffusivity * total, _BOUNDARIES[boundary], len(sizes))


def diffusion(at_faces: Tensor, spacing: float) -> Bands:
    """Diffusion ``∂/∂x (k ∂z/∂x)`` on n points in one dimension, with a diffusivity for each face, (…, n + 1).

    The state is zero beyond the two outer faces; a diffusivity of 0 there is a no-flux boundary.
    """
    tensor("at_faces", at_faces)
    flow = at_faces / real("spacing", spacing, above=0) ** 2
    left, right = flow[..., :-1], flow[..., 1:]
    return Bands(torch.stack([left, -left - right, right], -1))
