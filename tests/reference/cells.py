"""Product integration by its definition: ``1/Γ(β) ∫ (t_n - s)^{β-1} φ_j(s) ds`` of the basis function of each slope.

Next to the row the integrals are written in closed form; farther away the integrand is smooth and a Gauss rule of 24
points has it to rounding, where a difference of powers would lose half of its digits. A cell that is longer than four
times its distance from the row (a point just before a jump) is close enough for the closed form.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .series import gamma

_X, _W = np.polynomial.legendre.leggauss(24)
GAUSS = [((x + 1) / 2, w / 2) for x, w in zip(_X.tolist(), _W.tolist(), strict=True)]


def hats(b: Tensor, h: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Uniform grid: the weight of a whole hat ``m`` steps back, and of the half one at ``v_0`` in row ``n``.

    Both are (steps + 1, ...). Diethelm, Ford and Freed (2004) have them integrated: ``h^β/Γ(β+2)`` times
    ``(m+1)^{β+1} - 2m^{β+1} + (m-1)^{β+1}`` and ``(n-1)^{β+1} - (n-1-β) n^β``.
    """
    m = torch.arange(2, steps + 1, dtype=b.dtype).reshape(-1, *[1] * b.ndim)
    rising, falling = torch.zeros_like(m * b), torch.zeros_like(m * b)
    for x, w in GAUSS:
        rising = rising + w * (1 - x) * (m + x) ** (b - 1) * b * (b + 1)
        falling = falling + w * (1 - x) * (m - x) ** (b - 1) * b * (b + 1)
    inner = torch.cat([torch.stack([torch.ones_like(b), 2 ** (b + 1) - 2]), rising + falling])
    half = torch.cat([torch.stack([0 * b, b]), falling])
    gain = h**b / gamma(b + 2)
    return gain * inner, gain * half


def cells(q: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """``q ∫ (t_n - s)^{q-1} ds`` over the cell after ``t_j``, and with the factor that rises from 0 to 1 in it.

    Times are (steps + 1, ...), powers (1 or steps + 1, ...), one for each row; results (steps + 1, steps, ...).
    """
    n = torch.arange(times.shape[0])
    shape = (-1, len(n) - 1, *[1] * (times.ndim - 1))
    length, gap = (times[1:] - times[:-1])[None], times[:, None] - times[None, 1:]
    q = q[:, None]
    last = (n[:, None] == n[None, 1:]).reshape(shape)
    older = (n[:, None] > n[None, 1:]).reshape(shape)
    near = torch.where(older, gap, 1.0)
    whole, rising = torch.zeros_like(q * near), torch.zeros_like(q * near)
    for x, w in GAUSS:
        value = w * q * length * (near + (1 - x) * length) ** (q - 1)
        whole, rising = whole + value, rising + x * value
    beside = older & (4 * near < length)
    small, far = torch.where(beside, near, 0.5), torch.where(beside, near + length, 1.0)
    whole = torch.where(beside, far**q - small**q, whole)
    rising = torch.where(beside, (far ** (q + 1) - small ** (q + 1)) / (q + 1) / length - small**q, rising)
    whole = torch.where(older, whole, torch.where(last, length**q, 0.0))
    return whole, torch.where(older, rising, torch.where(last, length**q / (q + 1), 0.0))


def rectangle_on(b: Tensor, times: Tensor, right: bool) -> Tensor:
    """The slope at the left (or right) end of each cell stands for the whole of it; (steps + 1, steps + 1, ...)."""
    found = cells(b, times)[0] / gamma(b + 1)[:, None]
    return _beside(found, right)


def trapezoid_on(b: Tensor, times: Tensor) -> Tensor:
    whole, rising = (x / gamma(b + 1)[:, None] for x in cells(b, times))
    return _beside(whole - rising, False) + _beside(rising, True)


def l1_on(b: Tensor, times: Tensor, explicit: bool) -> Tensor:
    """The L1 formula as a matrix on the differences of states, inverted: ``z - z_0 = L^{-1} f``.

    Where each row has an order of its own, it is row ``n`` of the inverse for that order, which approximates the
    integral of order ``β(t_n)`` up to ``t_n``.
    """
    if b.shape[0] == 1:
        below = _inverted(b, times)
    else:
        # one inverse for each row: computed again in the backward pass, so that no more than one is held
        rows = [checkpoint(_last_row, b[n : n + 1], times, n, use_reentrant=False) for n in range(1, len(b))]
        below = torch.stack([torch.zeros_like(rows[0]), *rows])
    return _beside(below, not explicit)


def _inverted(b: Tensor, times: Tensor) -> Tensor:
    found = cells(1 - b, times)[0] / gamma(2 - b)[:, None] / (times[1:] - times[:-1])[None]
    found = found[1:]
    matrix = found - torch.cat([found[:, 1:], torch.zeros_like(found[:, :1])], 1)
    inverse = torch.linalg.inv(matrix.movedim((0, 1), (-2, -1))).movedim((-2, -1), (0, 1))
    return torch.cat([torch.zeros_like(inverse[:1]), inverse])


def _last_row(b: Tensor, times: Tensor, n: int) -> Tensor:
    row = _inverted(b, times[: n + 1])[n]
    return torch.cat([row, row.new_zeros(len(times) - 1 - n, *row.shape[1:])])


def _beside(found: Tensor, right: bool) -> Tensor:
    empty = torch.zeros_like(found[:, :1])
    return torch.cat([empty, found] if right else [found, empty], 1)
