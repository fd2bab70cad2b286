"""The contribution of an observed window to all later times.

A state φ known on [-a, 0] has slopes ``D^β φ``, and the equation continues as
``z(t) = φ(-a) + ∫_{-a}^0 k(t-s) (D^β φ)(s) ds + ∫_0^t k(t-s) f ds``. For φ linear between its samples the second
term has a closed form: as ``D^β φ = I^{1-β} φ'``, it is ``∫ φ'(-r) G(r/t) dr`` with
``G(x) = sin(πβ)/π ∫_0^x y^{-β}/(1+y) dy``, which is 1 at t = 0, so that z(0) = φ(0), and fades as t grows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..special.gamma import sinc

# Terms of a series with a ratio of at most 1/2, for float64.
_TERMS = 54


def observed(order: Tensor, back: Tensor, ahead: Tensor) -> Tensor:
    """The weights of the samples of a window in its contribution to later times, (samples, times, groups).

    Args:
        order: (groups,), up to 1.
        back: (samples,), how long before the start they were taken, descending to 0.
        ahead: (times,), the times since the start.
    """
    whole = _integral(order, back[:, None, None], ahead[:, None])
    share = (whole[:-1] - whole[1:]) / (back[:-1] - back[1:])[:, None, None]  # the weight of the change over each cell
    end = torch.zeros_like(share[:1])
    return torch.cat([1 - share[:1], -(share[1:]), end]) + torch.cat([end, share[:-1], share[-1:]])


def _integral(order: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """``∫_0^r G(s/t) ds`` without cancellation: a series in r/(r+t) or in t/(r+t), whichever is smaller."""
    later, before, rest = t > 0, r > 0, 1 - order
    t, r = torch.where(later, t, 1.0), torch.where(before, r, 1.0)
    late = r <= t
    ratio = torch.where(late, r / t, t / torch.where(late, 1.0, r))
    scale = r * (t / r) ** order
    part = ratio / (1 + ratio)
    recent, old = _series(rest, part), _series(order, part)
    first = sinc(rest) * scale * recent
    second = r + t - scale * (sinc(order) * (1 + old) + sinc(rest))
    return torch.where(before, torch.where(later, torch.where(late, first, second), r), 0.0)


def _series(a: Tensor, z: Tensor) -> Tensor:
    """``2F1(1, 1; a+1; z) - 1 = Σ_{n≥1} n!/(a+1)_n z^n`` for z ≤ 1/2."""
    found = torch.zeros_like(a * z)
    for n in range(_TERMS, 0, -1):
        found = n / (a + n) * z * (1 + found)
    return found
