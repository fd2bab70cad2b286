"""Contours for the inverse Laplace transform of a linear equation's solution: hyperbolas around its singularities."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import CONTOUR_LOSS, CONTOUR_NODES, CONTOUR_WINDOW


class Contour(NamedTuple):
    """``z(t_i) = Re Σ_k gains[i, k] s_k Z(s_k)`` with nodes ``s_k``, where ``Z`` is the Laplace transform of ``z``."""

    nodes: Tensor
    gains: Tensor


def contour_for(poles: Tensor, times: list[float], digits: float) -> Contour | None:
    """Nodes and gains with an error of about ``exp(-digits)``, a hyperbola per window of times; None if too many.

    ``poles`` are one of each conjugate pair; between a pole and 0 there may be others. The negative axis is a cut.
    """
    nodes: list[Tensor] = []
    blocks: list[Tensor] = []
    done = 0
    while done < len(times):
        window = torch.tensor([t for t in times[done:] if t <= CONTOUR_WINDOW * times[done]], dtype=torch.float64)
        found = _hyperbola(poles, float(window[0]), float(window[-1]), digits)
        if found is None:
            return None
        s, weights = found
        nodes.append(s)
        blocks.append(torch.exp(s * window[:, None]) * weights)
        done += len(window)
    return Contour(torch.cat(nodes), torch.block_diag(*blocks))


def _hyperbola(poles: Tensor, first: float, last: float, digits: float) -> tuple[Tensor, Tensor] | None:
    """``s = shift + μ (1 + sin(iu - a))`` at midpoints, and ``s'(u) h / (π i s)`` (Weideman and Trefethen 2007).

    Among some angles ``a`` and vertices ``μ``, the pair with the fewest nodes is taken. Their spacing follows from the
    distance in ``u`` to the poles and to where ``exp(s t)`` is large, their range from the decay of ``exp(s t)``.
    """
    shift = max(0.0, float(poles.real.max())) if len(poles) else 0.0
    # poles farther to the left do not matter: they are moved to this distance along their ray
    near = poles * (digits / (first * (-poles.real).clamp(min=1e-300))).clamp(max=1.0)
    a = torch.linspace(0.04, 1.24, 25, dtype=torch.float64)[:, None]
    vertex = torch.logspace(-0.5, 2, 26, dtype=torch.float64) / last
    gap = (math.pi / 2 - a).expand(25, 26)
    if len(poles):
        at = (near.to(torch.complex128) - shift) / vertex[:, None] - 1
        gap = torch.minimum(gap, -a - torch.asin(at).real.amax(-1))
    beyond = a[..., None] * torch.linspace(0.05, 1, 20, dtype=torch.float64)  # the last gives a straight line
    grown = vertex[:, None] * last * (1 - torch.sin(a[..., None] - beyond))
    spacing = 2 * math.pi * torch.minimum(gap / digits, (beyond / (digits + grown)).amax(-1))
    counts = torch.acosh((1 + digits / (vertex * first)) / torch.sin(a)) / spacing
    fits = (gap > 0) & (vertex * last * (1 - torch.sin(a)) <= CONTOUR_LOSS) & (counts <= CONTOUR_NODES)
    if not bool(fits.any()):
        return None
    i, j = divmod(int(torch.where(fits, counts, math.inf).argmin()), 26)
    u = (torch.arange(math.ceil(float(counts[i, j])), dtype=torch.float64) + 0.5) * spacing[i, j]
    turned = torch.complex(-a[i].expand_as(u), u)
    s = shift + vertex[j] * (1 + torch.sin(turned))
    return s, vertex[j] * torch.cos(turned) * spacing[i, j] / (math.pi * s)
