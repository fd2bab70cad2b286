"""An independent solver: the textbook loop, one multiply-add per term of the history, differentiated by autograd alone.

It shares nothing with the package but the mathematics, so that agreement means something.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gamma(x: Tensor) -> Tensor:
    return torch.exp(torch.lgamma(x))


def matrix(method: str, beta: Tensor, h: float, n_steps: int) -> tuple[list[list[Tensor | None]], ...]:
    """Rows of weights a[n][j], written as in the literature; abm returns the corrector's and the predictor's."""
    b = beta
    rows: list[list[Tensor | None]] = [[None] * (n_steps + 1) for _ in range(n_steps + 1)]
    if method == "abm":
        return matrix("trapezoid", b, h, n_steps)[0], matrix("predictor", b, h, n_steps)[0]
    for n in range(1, n_steps + 1):
        for j in range(n + 1):
            rows[n][j] = _weight(method, b, h, n, j)
    return (rows,)


def _weight(method: str, b: Tensor, h: float, n: int, j: int) -> Tensor | None:
    g = torch.exp(b * math.log(h))
    m = n - j
    if method == "predictor":
        return None if m == 0 else g / gamma(b + 1) * (_p(m, b) - _p(m - 1, b))
    if method == "predictor-implicit":
        return None if j == 0 else g / gamma(b + 1) * (_p(m + 1, b) - _p(m, b))
    if method == "trapezoid":
        a = b + 1
        c = g / gamma(b + 2)
        if j == 0:
            return c * (_p(n - 1, a) - (n - 1 - b) * _p(n, b))
        return c if m == 0 else c * (_p(m + 1, a) - 2 * _p(m, a) + _p(m - 1, a))
    if method in ("gl", "gl-explicit"):
        m = m if method == "gl" else m - 1
        return None if m < 0 or (method == "gl" and j == 0) else g * gamma(m + b) / gamma(b) / float(math.factorial(m))
    raise NotImplementedError(method)


def _p(m: int, a: Tensor) -> Tensor:
    return torch.zeros_like(a) if m == 0 else torch.exp(a * math.log(m))


def solve(f, z0: Tensor, t0: float, h: float, n_steps: int, beta: Tensor, method: str, window: int | None = None):
    """All states z_0 … z_N as a list. Implicit stages by 60 fixed-point iterations inside the graph."""
    if method in ("l1", "l1-explicit"):
        return _solve_l1(f, z0, t0, h, n_steps, beta, method == "l1")
    tables = matrix(method, beta, h, n_steps)
    zs, vs = [z0], [f(t0, z0)]
    for n in range(1, n_steps + 1):
        t = t0 + n * h
        sums = []
        for table in tables:
            c = z0
            for j in range(n):
                w = table[n][j]
                if w is not None and (window is None or n - j <= window):
                    c = c + w * vs[j]
            sums.append(c)
        w0 = tables[0][n][n]
        if method == "abm":
            z = sums[0] + w0 * f(t, sums[1])
        elif w0 is None:
            z = sums[0]
        else:
            z = sums[0]
            for _ in range(60):
                z = sums[0] + w0 * f(t, z)
        zs.append(z)
        vs.append(f(t, z))
    return zs


def _solve_l1(f, z0, t0, h, n_steps, b, implicit):
    """The usual recurrence of L1: sum of a_i times differences of z equals h^β Γ(2-β) f."""
    zs = [z0]
    a = [_p(i + 1, 1 - b) - (_p(i, 1 - b) if i else 0.0) for i in range(n_steps)]
    gain = torch.exp(b * math.log(h)) * gamma(2 - b)
    for n in range(1, n_steps + 1):
        rest = zs[-1]
        for i in range(1, n):
            rest = rest - a[i] * (zs[n - i] - zs[n - i - 1])
        if implicit:
            z = rest
            for _ in range(60):
                z = rest + gain * f(t0 + n * h, z)
        else:
            z = rest + gain * f(t0 + (n - 1) * h, zs[-1])
        zs.append(z)
    return zs
