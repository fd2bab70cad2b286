"""The weights of the L1 scheme in mpmath: by their recurrence, and far out by an integral."""

from __future__ import annotations

import mpmath as mp


def l1_by_recurrence(order: float, count: int) -> list[mp.mpf]:
    b = mp.mpf(order)
    a = [mp.mpf(1)] + [mp.mpf(i + 1) ** (1 - b) - mp.mpf(i) ** (1 - b) for i in range(1, count)]
    d = [a[0]] + [a[i] - a[i - 1] for i in range(1, count)]
    w = [mp.mpf(1)]
    for m in range(1, count):
        w.append(-mp.fdot(d[1 : m + 1], w[::-1]))
    return w


def l1_by_branch_cut(order: float, m: int) -> mp.mpf:
    """The m-th coefficient of 1/δ as an integral along the cut ξ > 1, with δ = (1-ξ)²/ξ · Li_{β-1}(ξ)."""
    b = mp.mpf(order)
    zetas = [mp.zeta(b - 1 - k) / mp.factorial(k) for k in range(25)]

    def integrand(y: mp.mpf) -> mp.mpf:
        v = y ** (1 / (1 - b))  # takes the factor v^{-β} out
        u = v / m
        li = mp.gamma(2 - b) * u ** (b - 2) * mp.expjpi(b - 2) + sum(z * u**k for k, z in enumerate(zetas))
        return mp.im(mp.exp(u) / (mp.expm1(u) ** 2 * li)) * mp.exp(-v) * v**b / (1 - b)

    points = [mp.mpf(p) ** (1 - b) for p in (0, 0.1, 1, 3, 8, 20, 60)]
    return abs(mp.quad(integrand, points)) / m / mp.pi
