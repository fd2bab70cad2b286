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
# farther from the origin than this fraction of β, or not all inside: then the parabola is small, and s^{α-β} large on
# it. Nearer to the origin the terms that would be removed grow.
_GOOD_BETA, _FAR = 5.0, 0.5
#: The sheets j of the poles z^{1/α} e^{2πij/α} that can lie on the main sheet.
SHEETS = (0, -1, 1)


@dataclass(frozen=True)
class Contour:
    """s(u) = μ(1 + iu)², u = k·spacing for |k| ≤ nodes; one parabola per element."""

    vertex: Tensor
    spacing: Tensor
    nodes: int
    removed: Tensor  # number of algebraic terms removed from the integrand
    outside: tuple[Tensor, ...]  # for each of SHEETS: its pole is on the main sheet and outside the parabola


def radius_of_poles(z: Tensor, alpha: Tensor) -> Tensor:
    """|z|^{1/α}, the distance of the poles from the origin."""
    return torch.exp((torch.log(z.abs()) / alpha).clamp(max=690.0))


def _few(reach: Tensor, alpha: Tensor) -> Tensor:
    """How many terms of the algebraic expansion to remove from the integrand where β is not large."""
    return torch.nan_to_num(torch.floor(reach / (2.0 * alpha))).clamp(max=_MOST_REMOVED)


def _lowering(alpha: Tensor, beta: Tensor) -> Tensor:
    """How many terms lower a large β to a good one: removing K leaves s^{α-β+αK} in place of s^{α-β}."""
    return torch.ceil((beta - _GOOD_BETA) / alpha)


def _excess(alpha: Tensor, beta: Tensor, removed: Tensor) -> Tensor:
    """The exponent of 1/s that is left, if it is positive."""
    return (beta - (1.0 + removed) * alpha).clamp(min=0.0)


def _fit_inside(high: Tensor, paired: Tensor, excess: Tensor) -> Tensor:
    """Whether a parabola around all poles is no larger than what this exponent allows."""
    limit = (0.6 * (excess - 1.0)).clamp(min=0.5)
    return (high <= limit) | ((high <= 2.0 * limit) & paired)


def _poles(z: Tensor, alpha: Tensor) -> list[Tensor]:
    """Per sheet, the vertex φ = (Re s + |s|)/2 of the parabola through the pole; 0 if the pole is not on the sheet."""
    angle, radius = torch.angle(z), radius_of_poles(z, alpha)
    vertices = []
    for j in SHEETS:
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
    radius, vertices = radius_of_poles(z, alpha), _poles(z, alpha)
    reach = radius.clamp(max=40.0)
    high = vertices[0]
    low = torch.maximum(vertices[1], vertices[2])
    paired = (low > 0) & (low >= torch.where(low > 1.0, 0.0, high / 9.0))
    removed = _few(reach, alpha)
    small = (radius > _FAR * beta) | ~_fit_inside(high, paired, _excess(alpha, beta, removed))
    removed = torch.where(small, torch.maximum(removed, _lowering(alpha, beta)), removed)
    excess = _excess(alpha, beta, removed)
    all_inside = _fit_inside(high, paired, excess)
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
    return Contour(vertex, spacing, nodes, removed, outside)
