"""What an observed past contributes: ``φ(-a) + ∫_{-a}^0 k(t-s) (D^β φ)(s) ds`` for φ linear between its samples."""

from __future__ import annotations

import torch
from torch import Tensor

from .series import gamma

#: Nodes of a rule of double exponentials on [0, 1]: how far from both ends, and weights.
_TAU = torch.arange(-4.6, 4.6, 1 / 40, dtype=torch.float64)
_LOW, _HIGH = (torch.sigmoid(s * torch.pi * torch.sinh(_TAU)) for s in (1, -1))
_WEIGHT = torch.pi * torch.cosh(_TAU) * _LOW * _HIGH / 40


def observed(order: Tensor, times: Tensor, states: Tensor, t: Tensor) -> Tensor:
    """At a time ``t`` from 0 on; times increase up to 0, states are stacked first, orders broadcast to them."""
    slopes = (states[1:] - states[:-1]) / (times[1:] - times[:-1]).reshape(-1, *[1] * (states.ndim - 1))
    parts = torch.stack([(t - a) * _share(order, t, a) for a in times])
    found = states[0]
    for slope, early, late in zip(slopes, parts, parts[1:], strict=False):
        found = found + slope * (early - late)
    return found


def _share(b: Tensor, t: Tensor, a: Tensor) -> Tensor:
    """``∫_0^x u^{1-β} (1-u)^{β-1} du / (Γ(β)Γ(2-β))``, the incomplete beta function, up to ``x = -a/(t-a)``."""
    if float(t) == 0 or float(a) == 0:
        return torch.ones_like(b) * (float(a) != 0)
    x, rest = -a / (t - a), t / (t - a)
    u, other = x * _LOW[:, None], rest + x * _HIGH[:, None]
    return x * (_WEIGHT[:, None] * u ** (1 - b) * other ** (b - 1)).sum(0) / (gamma(b) * gamma(2 - b))
