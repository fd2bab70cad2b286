"""Reference values of the problems without a closed form, to 12 digits: fractional power series and Padé in mpmath.

The solution of ``D^β z = f(z)``, ``f`` polynomial, is ``z = Σ_k c_k t^{kβ}``, ``c_{k+1} = Γ(kβ+1)/Γ((k+1)β+1) · f_k``
where ``f_k`` are the coefficients of ``f(z)``. Padé approximants in ``t^β`` continue it beyond its circle. Two of
different degree must agree to 1e-12. Run ``python benchmarks/references.py``; the values are in ``neuralfde.problems``.

``python benchmarks/references.py ensembles`` does the same from many initial values, for ``work_precision.py``, and
writes ``references.json`` (a few minutes).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import mpmath as mp

mp.mp.dps = 120


def product(a, b, k):
    return mp.fsum(a[i] * b[k - i] for i in range(k + 1))


def solve(order, start, rhs, terms):
    """The coefficients of every component; ``rhs(c, k)`` gives the k-th coefficients of f."""
    order = mp.mpf(str(order))
    c = [[mp.mpf(str(x))] for x in start]
    for k in range(terms):
        gain = mp.gamma(k * order + 1) / mp.gamma((k + 1) * order + 1)
        for own, value in zip(c, rhs(c, k), strict=True):
            own.append(gain * value)
    return c


def pade(c, degree, x):
    p, q = mp.pade(c[: 2 * degree + 1], degree, degree)
    return mp.polyval(p[::-1], x) / mp.polyval(q[::-1], x)


def continued(c, degree, x):
    """The value of the same Padé approximant by Wynn's epsilon algorithm, which is quicker than its coefficients."""
    before, now, power, total = [mp.mpf(0)] * (2 * degree + 2), [], mp.mpf(1), mp.mpf(0)
    for own in c[: 2 * degree + 1]:
        total += own * power
        power *= x
        now.append(total)
    while len(now) > 1:
        before, now = now, [b + 1 / (n - m) for b, m, n in zip(before[1:], now, now[1:], strict=False)]
    return now[0]


def unit(k):
    return mp.mpf(1 if k == 0 else 0)


class Brusselator:
    name, order, start, end = "brusselator", "0.8", ("1.2", "2.8"), "1.0"

    def __init__(self):
        self.square = []

    def rhs(self, c, k):
        x, y = c
        self.square.append(product(x, x, k))
        cubic = product(self.square, y, k)
        return (unit(k) - 5 * x[k] + cubic, 4 * x[k] - cubic)


class Lorenz:
    name, order, start, end = "lorenz", "0.985", ("1", "1", "1"), "0.25"

    def rhs(self, c, k):
        x, y, z = c
        return (10 * (y[k] - x[k]), 28 * x[k] - y[k] - product(x, z, k), product(x, y, k) - mp.mpf(8) / 3 * z[k])


class Chua:
    name, order, start, end = "chua", "0.9", ("0.2", "-0.1", "0.1"), "0.5"

    def __init__(self):
        self.square = []

    def rhs(self, c, k):
        x, y, z = c
        self.square.append(product(x, x, k))
        cubic = product(self.square, x, k)
        a, b = mp.mpf("12.75"), mp.mpf(100) / 7
        return (a * (y[k] + (x[k] - 2 * cubic) / 7), x[k] - y[k] + z[k], -b * y[k])


class Sir:
    name, order, start, end = "sir", "0.9", ("0.99", "0.01", "0"), "5.0"

    def rhs(self, c, k):
        s, i, _ = c
        new = mp.mpf("1.5") * product(s, i, k)
        return (-new, new - mp.mpf("0.5") * i[k], mp.mpf("0.5") * i[k])


class PredatorPrey:
    name, order, start, end = "predator-prey", "0.8", ("0.8", "0.6"), "2.0"

    def rhs(self, c, k):
        x, y = c
        meet = product(x, y, k)
        return (x[k] - product(x, x, k) - meet, 2 * meet - y[k])


class Riccati:
    name, order, start, end = "riccati", "0.7", ("0",), "1.0"

    def rhs(self, c, k):
        return (unit(k) + 2 * c[0][k] - product(c[0], c[0], k),)


class VanDerPol:
    name, order, start, end = "van-der-pol", "0.9", ("1", "0"), "1.0"

    def __init__(self):
        self.square = []

    def rhs(self, c, k):
        x, y = c
        self.square.append(product(x, x, k))
        return (y[k], -x[k] + y[k] - product(self.square, y, k))


def members(start, count):
    """Initial values within a fifth of the problem's own, spread evenly (Weyl's sequence), to three decimals."""
    roots = (math.sqrt(2), math.sqrt(3))
    return [
        [f"{float(x) * (0.8 + 0.4 * ((k + 1) * r % 1)):.3f}" for x, r in zip(start, roots, strict=True)]
        for k in range(count)
    ]


def ensemble(kind, count, terms=120):
    """End values from each initial value; approximants of two degrees must agree to 1e-10."""
    x = mp.mpf(kind.end) ** mp.mpf(kind.order)
    ends, gap = [], mp.mpf(0)
    starts = members(kind.start, count)
    for start in starts:
        c = solve(kind.order, start, kind().rhs, terms)
        low, high = ([continued(own, d, x) for own in c] for d in (terms // 2 - 8, terms // 2))
        gap = max([gap] + [abs(a - b) for a, b in zip(low, high, strict=True)])
        ends.append([float(v) for v in high])
    print(f"{kind.name:14s} {count} initial values, gap {mp.nstr(gap, 2)}")
    if gap > mp.mpf("1e-10"):
        raise SystemExit(f"{kind.name}: the approximants differ by {mp.nstr(gap, 2)}; take more terms.")
    return {"z0": [[float(v) for v in start] for start in starts], "z": ends}


def ensembles(count: int = 256) -> None:
    found = {kind.name: ensemble(kind, count) for kind in (Brusselator, PredatorPrey)}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(found) + "\n")


def main() -> None:
    for problem in (Brusselator(), Lorenz(), Chua(), Sir(), PredatorPrey(), Riccati(), VanDerPol()):
        c = solve(problem.order, problem.start, problem.rhs, 140)
        x = mp.mpf(problem.end) ** mp.mpf(problem.order)
        low, high = ([pade(own, d, x) for own in c] for d in (50, 66))
        gap = max(abs(a - b) for a, b in zip(low, high, strict=True))
        print(
            f"{problem.name:14s} T={problem.end:4s} [{', '.join(mp.nstr(v, 14) for v in high)}]  gap {mp.nstr(gap, 2)}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("of", nargs="?", choices=["problems", "ensembles"], default="problems")
    ensembles() if parser.parse_args().of == "ensembles" else main()
