"""Weights on any increasing grid: a matrix with one row and one column per point, differentiable in the order.

``times`` are (steps + 1, groups); orders are (1 or steps + 1, groups), so that each row may have its own. All results
are (rows, columns, groups), lower triangular; the diagonal is the weight of the slope at the new point.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ..base.policy import AHEAD_SHORTEST
from .kernel import Kernel
from .uniform import power_or_zero

# Gauss-Legendre points for a cell at least its own length away from the new point: the error is below 6^{-2·points}.
_POINTS = 10


def kernel_on(cells: tuple[str, ...], order: Tensor, times: Tensor) -> Kernel:
    """A kernel of full matrices, one for the rule of each sum; with continuous output if all rows have one order."""
    linear = cache(partial(trapezoid, order, times))
    rules: dict[str, Callable[[], Tensor]] = {
        "linear": linear,
        "ahead": lambda: ahead(linear(), times),
        "left": partial(rectangle, order, times, implicit=False),
        "right": partial(rectangle, order, times, implicit=True),
    }
    matrices = [rules[cell]() for cell in cells]
    dense = between(cells[0], order[0], times) if order.shape[0] == 1 else None
    return kernel_of(*matrices, first=int(cells[0] == "right"), dense=dense)


def kernel_of(*matrices: Tensor, first: int = 0, dense: Callable[[Tensor], Tensor] | None = None) -> Kernel:
    """A kernel of full matrices, one for each sum; the diagonal of the first is the local weight."""
    local = matrices[0].diagonal(dim1=0, dim2=1).T
    return Kernel(torch.stack(matrices), local, first=first, dense=dense)


def between(cell: str, order: Tensor, times: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from positions between grid points to weights of the slopes, (positions, steps + 1, groups).

    They integrate over all cells up to the position, the last in part. The slope in a cell is that of its left or right
    end, or linear between them.
    """

    def rows(positions: Tensor) -> Tensor:
        steps = times.shape[0] - 1
        low = positions.long().clamp(max=steps - 1)
        start, part = times.take_along_dim(low, 0), positions - low
        here = torch.lerp(start, times.take_along_dim(low + 1, 0), part)
        j, newest, share = torch.arange(steps)[:, None], low[:, None], part[:, None]
        past = (j < newest) | ((j == newest) & (share > 0))
        length = torch.where(j < newest, times[1:] - times[:-1], (here - start)[:, None])
        gap = here[:, None] - times
        whole, left = _integrals(order, past, gap[:, :-1], gap[:, 1:].clamp(min=0), length)
        empty = torch.zeros_like(whole[:, :1])
        if cell == "linear":
            # at the position, the slope is interpolated: only this share of it is that of the right end
            right = (whole - left) * torch.where(j == newest, share, 1.0)
            found = torch.cat([whole - right, empty], dim=1) + torch.cat([empty, right], dim=1)
        else:
            found = torch.cat([whole, empty] if cell == "left" else [empty, whole], dim=1)
        return torch.exp(-torch.lgamma(order + 1)) * found

    return rows


def one_cell(order: Tensor, here: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The integral of ``(here - s)^{β-1}/Γ(β)`` over the cell [start, end], at most up to ``here``, and the share of
    its left end: (times, groups) each, for one cell per time."""
    near, far = (here - end).clamp(min=0)[:, None], (here - start)[:, None]
    length = torch.minimum(end, here)[:, None] - start[:, None]
    whole, left = _integrals(order, length > 0, far, near, length)
    gain = torch.exp(-torch.lgamma(order + 1))
    return gain * whole, gain * left


def rectangle(order: Tensor, times: Tensor, implicit: bool) -> Tensor:
    """``[(t_n - t_j)^β - (t_n - t_{j+1})^β] / Γ(β+1)`` for the slope at the left or (implicit) right end of a cell."""
    cells = _on_points(order, times)[0] / torch.exp(torch.lgamma(order + 1))[:, None]
    empty = torch.zeros_like(cells[:, :1])
    return torch.cat([empty, cells] if implicit else [cells, empty], dim=1)


def trapezoid(order: Tensor, times: Tensor) -> Tensor:
    """The integral of ``(t_n - s)^{β-1}/Γ(β)`` against the piecewise linear hat function of each point."""
    whole, left = _on_points(order, times)
    gain = torch.exp(-torch.lgamma(order + 1))[:, None]
    empty = torch.zeros_like(whole[:, :1])
    return gain * (torch.cat([left, empty], dim=1) + torch.cat([empty, whole - left], dim=1))


def ahead(matrix: Tensor, times: Tensor) -> Tensor:
    """The trapezoid rule with the slope at the new point extrapolated: by the straight line through the two slopes
    before, or, in the first step, equal to the first slope."""
    length = times[1:] - times[:-1]
    own = matrix.diagonal(dim1=0, dim2=1).T[1:]
    share = torch.cat([torch.zeros_like(length[:1]), share_ahead(length[1:], length[:-1])])
    last, before = ((1 + share) * own).T, (-share * own).T[:, 1:]
    extra = torch.diag_embed(last, -1) + torch.diag_embed(before, -2)
    return matrix.permute(2, 0, 1).tril(-1).add(extra).permute(1, 2, 0)


def share_ahead(length: Any, before: Any) -> Any:
    """The ratio of the lengths of a cell and the cell before: extrapolation adds this share of the last change.

    It is 0 after a cell that is tiny compared with the new one, such as the short cell before a jump.
    """
    meant = before > AHEAD_SHORTEST * length
    if isinstance(meant, bool):
        return length / before if meant else 0.0
    return torch.where(meant, length / torch.where(meant, before, 1.0), 0.0)


def extrapolated(matrix: Tensor, times: Tensor) -> Tensor:
    """From the rows of all states, those of the states extrapolated from the two before; the first is kept."""
    length = times[1:] - times[:-1]
    share = torch.cat([torch.zeros_like(length[:1]), length[1:] / length[:-1]])[:, None]
    before = torch.cat([torch.zeros_like(matrix[:1]), matrix[:-2]])
    return torch.cat([torch.zeros_like(matrix[:1]), (1 + share) * matrix[:-1] - share * before])


def l1(order: Tensor, times: Tensor) -> Tensor:
    """The inverse of the L1 matrix ``Σ_j (z_{j+1}-z_j)/τ_j · [(t_n-t_j)^{1-β} - (t_n-t_{j+1})^{1-β}]/Γ(2-β)``."""
    cells = _on_points(1 - order, times)[0][1:] * torch.exp(-torch.lgamma(2 - order))[-times.shape[0] + 1 :, None]
    slopes = cells / (times[1:] - times[:-1])
    matrix = slopes - torch.cat([slopes[:, 1:], torch.zeros_like(slopes[:, :1])], dim=1)
    lower = matrix.permute(2, 0, 1)
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype).expand_as(lower)
    inverse = torch.linalg.solve_triangular(lower, eye, upper=False)
    return torch.nn.functional.pad(inverse, (1, 0, 1, 0)).permute(1, 2, 0)


def _on_points(power: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`_integrals` over the cells before each point, zero elsewhere: (points, cells, groups) each."""
    points = times.shape[0]
    n, j = torch.tril_indices(points, points - 1, -1)
    here, start, end = times[n], times[j], times[j + 1]
    # lengths are computed from the times, not as far - near: a tiny first cell would vanish
    q = power if len(power) == 1 else power[n]
    found = _integrals(q, torch.tensor(True), here - start, here - end, end - start)
    whole, left = (x.new_zeros(points, points - 1, *x.shape[1:]).index_put((n, j), x) for x in found)
    return whole, left


def _integrals(q: Tensor, past: Tensor, far_end: Tensor, near_end: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """``q ∫ x^{q-1} dx`` and ``q ∫ x^{q-1} (x-B)/(A-B) dx`` over [B, A] = [near_end, far_end], zero unless ``past``.

    Close to the new point the powers are subtracted directly. Farther away this would cancel, but there the integrand
    is so smooth that a few Gauss points integrate it to rounding.
    """
    far_end, near_end = torch.where(past, far_end, 2.0), torch.where(past, near_end, 1.0)
    length = torch.where(past, length, 1.0)
    close = near_end < length
    low = torch.where(close, near_end, 0.0)
    high = torch.where(close, far_end, 1.0)
    # x^q as x^{q+1} / x: PyTorch's derivative of x^p in x is a constant where p = 0, and that of it in p is lost
    above, below = high ** (q + 1), power_or_zero(low, q + 1)
    whole = above / high - below / torch.where(low > 0, low, 1.0)
    left = (q / (q + 1) * (above - below) - low * whole) / torch.where(close, length, 1.0)
    safe = torch.where(close, 1.0, near_end)
    quad, quad_left = _quadrature(q, safe, torch.where(close, 1.0, length))
    whole = torch.where(close, whole, quad)
    left = torch.where(close, left, quad_left)
    return torch.where(past, whole, 0.0), torch.where(past, left, 0.0)


def _quadrature(q: Tensor, start: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    nodes, weights = gauss_legendre(_POINTS)
    whole, left = torch.zeros_like(q * start), torch.zeros_like(q * start)
    for x, w in zip(nodes.tolist(), weights.tolist(), strict=True):
        here = start + x * length
        value = w * q * length * (here**q / here)  # not here^{q-1}, whose derivatives are incomplete at q = 1
        whole = whole + value
        left = left + x * value
    return whole, left


def gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1] (Golub and Welsch 1969)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / torch.sqrt(4 * k**2 - 1)
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (nodes + 1) / 2, vectors[0] ** 2
