"""The inverse of a sum of derivatives, with thirty digits: in float64 such a sum is too ill-conditioned for a judge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import mpmath
import torch
from torch import Tensor

Series = list[mpmath.mpf]


def inverse(orders: Sequence[Tensor], factors: Sequence[Tensor], h: float, count: int) -> Tensor:
    """The first coefficients of ``1 / Σ_i c_i h^{-β_i} (1-ξ)^{β_i}``, differentiable in orders and factors."""
    terms = tuple((float(b.detach()), float(c.detach())) for b, c in zip(orders, factors, strict=True))
    w, slopes = _inverse(terms, h, count)
    numbers = [x for pair in zip(orders, factors, strict=True) for x in pair]
    # the tangent plane: the value is that of w, and autograd finds the slopes
    return w + sum(slope * (x - x.detach()).reshape(()) for slope, x in zip(slopes, numbers, strict=True))


@lru_cache(maxsize=64)
def _inverse(terms: tuple[tuple[float, float], ...], h: float, count: int) -> tuple[Tensor, list[Tensor]]:
    """The coefficients, and their derivatives in β_0, c_0, β_1, c_1, …: ``-s' / s²`` of the sum ``s``."""
    with mpmath.workdps(30):
        total, changes = [mpmath.mpf(0)] * count, []
        for b, c in terms:
            g, slope = _differences(mpmath.mpf(b), count)
            gain, log = mpmath.power(h, -b), mpmath.log(h)
            total = [t + c * gain * x for t, x in zip(total, g, strict=True)]
            changes.append([c * gain * (y - log * x) for x, y in zip(g, slope, strict=True)])
            changes.append([gain * x for x in g])
        w = [1 / total[0]]
        for m in range(1, count):
            w.append(-mpmath.fdot(total[1 : m + 1], w[::-1]) / total[0])
        square = _product(w, w)
        return _tensor(w), [-_tensor(_product(square, change)) for change in changes]


def _differences(b: mpmath.mpf, count: int) -> tuple[Series, Series]:
    """``(1-ξ)^b``, ``g_m = g_{m-1} (m-1-b)/m``, and its derivative in ``b``."""
    g, slope = [mpmath.mpf(1)], [mpmath.mpf(0)]
    for m in range(1, count):
        slope.append((slope[-1] * (m - 1 - b) - g[-1]) / m)
        g.append(g[-1] * (m - 1 - b) / m)
    return g, slope


def _product(a: Series, b: Series) -> Series:
    return [mpmath.fdot(a[: m + 1], b[m::-1]) for m in range(len(a))]


def _tensor(values: Series) -> Tensor:
    return torch.tensor([float(x) for x in values], dtype=torch.float64)
