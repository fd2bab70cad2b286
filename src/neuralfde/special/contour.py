"""The choice of the parabola along which the Mittag-Leffler function is integrated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# The errors of quadrature and truncation are about exp(-_DIGITS).
_DIGITS = 42.0
_MOST_REMOVED = 40.0
# Up to this β the contour is good as it is, since the factor s^{α-β} is mild. A larger β is lowered if the poles are
# farther from the origin than this fraction of β; nearer to it, the terms that would be removed grow.
_GOOD_BETA, _FAR = 5.0, 0.5


@dataclass(frozen=True)
class Contour:
    """s(u) = μ(1 + iu)², u = k·spacing for |k| ≤ nodes; one parabola per element."""

    vertex: Tensor
    spacing: Tensor
    nodes: int
    removed: Tensor  # number of algebraic terms removed from the integrand
    shifts: tuple[int, ...]  # sheets j of the poles z^{1/α} e^{2πij/α}
    outside: tuple[Tensor, ...]  # per sheet: the pole is on the main sheet and outside the parabola


def radius_of_poles(z: Tensor, alpha: Tensor) -> Tensor:
    """|z|^{1/α}, the distance of the poles from the origin."""
    return torch.exp((torch.log(z.abs()) / alpha).clamp(max=690.0))


def _removed(z: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The radius of the poles, at most 40, and how many terms of the algebraic expansion to remove from the integrand.

    Removing K terms leaves s^{α-β+αK} in place of s^{α-β}, so that enough of them lower a large β to a good one.
    """
    radius = radius_of_poles(z, alpha)
    reach = radius.clamp(max=40.0)
    removed = torch.nan_to_num(torch.floor(reach / (2.0 * alpha))).clamp(max=_MOST_REMOVED)
    lowering = torch.where(radius > _FAR * beta, torch.ceil((beta - _GOOD_BETA) / alpha), 0.0)
    return reach, torch.maximum(removed, lowering)


def _poles(z: Tensor, alpha: Tensor, shifts: tuple[int, ...]) -> list[Tensor]:
    """Per sheet, the vertex φ = (Re s + |s|)/2 of the parabola through the pole; 0 if the pole is not on the sheet."""
    angle, radius = torch.angle(z), radius_of_poles(z, alpha)
    vertices = []
    for j in shifts:
        argument = (angle + 2.0 * math.pi * j) / alpha
        vertices.append(torch.where(argument.abs() < math.pi, radius * torch.cos(argument / 2.0) ** 2, 0.0))
    return vertices


def choose_contour(z: Tensor, alpha: Tensor, beta: Tensor) -> Contour:
    """A parabola far (in u) from the branch point 0 and from every pole, with a small vertex μ.

    In the variable u the branch point lies at distance 1 from the real axis and a pole with vertex φ at distance
    |1 - √(φ/μ)|; rounding is amplified by e^μ. So: all poles inside when they are small; otherwise between the origin
    and the smallest one, or between two well separated ones. For large β the factor s^{α-β} favours larger parabolas
    (the saddle of e^s s^{-β} is at β) and makes the branch point stronger, which costs digits of the quadrature.
    """
    reach, removed = _removed(z, alpha, beta)
    excess = (beta - (1.0 + removed) * alpha).clamp(min=0.0)
    limit = (0.6 * (excess - 1.0)).clamp(min=0.5)
    shifts = (0, -1, 1)
    vertices = _poles(z, alpha, shifts)
    high = vertices[0]
    low = torch.maximum(vertices[1], vertices[2])
    paired = low >= torch.where(low > 1.0, 0.0, high / 9.0)
    paired = paired & (low > 0)
    all_inside = (high <= limit) | ((high <= 2.0 * limit) & paired)
    none_inside = ~all_inside & paired
    nearest = torch.where(none_inside, low, high)
    farthest_inside = torch.where(all_inside, high, torch.where(none_inside, 0.0, low))
    vertex = torch.where(
        all_inside,
        torch.maximum(4.0 * high, (0.5 * excess).clamp(min=1.0)),
        torch.maximum((nearest / 4.0).clamp(max=1.0), 4.0 * farthest_inside),
    )
    gap_left = 1.0 - torch.sqrt(farthest_inside / vertex)
    gap_right = torch.where(all_inside, 1.0, torch.sqrt(nearest / vertex) - 1.0).clamp(max=1.0)
    digits = _DIGITS + 3.0 * vertex + 2.0 * excess * torch.log1p(60.0 / (excess + 0.5))
    spacing = 2.0 * math.pi * torch.minimum(gap_left, gap_right) / digits
    span = torch.sqrt(1.0 + (_DIGITS + 1.5 * reach) / vertex)
    # A NaN among the arguments must give NaN there, and not affect the other elements.
    nodes = int(torch.ceil(torch.nan_to_num(span / spacing).max()))
    outside = tuple(v > vertex for v in vertices)
    return Contour(vertex, spacing, nodes, removed, shifts, outside)
