"""The Mittag-Leffler function in mpmath: its series with enough digits, or its expansion at infinity.

``python tests/special/reference.py`` (some minutes) writes ``mittag_leffler.json``: random arguments, the function and
its derivatives there.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import mpmath as mp


def mittag_leffler(z, alpha, beta):
    z, alpha, beta = mp.mpmathify(z), mp.mpf(alpha), mp.mpf(beta)
    radius = abs(z) ** (1 / alpha) if z else mp.mpf(0)
    if radius < 120:
        return series(z, alpha, beta, radius)
    with mp.workdps(50):
        return expansion(z, alpha, beta, radius)


def series(z, alpha, beta, radius):
    """Terms reach e^R and may cancel down to e^{-R}: that many digits are added, relative to the largest term."""
    lost = int(2 * radius / mp.log(10))
    with mp.workdps(70 + lost):
        total, largest, k = mp.mpf(0), mp.mpf(0), 0
        while True:
            term = z**k * mp.rgamma(alpha * k + beta)
            total, largest, k = total + term, max(largest, abs(term)), k + 1
            beyond = k > 5 and alpha * k + beta > radius + 5
            if beyond and abs(term) <= mp.mpf(10) ** (-45 - lost) * largest:
                return +total


def expansion(z, alpha, beta, radius):
    total = mp.mpf(0)
    for k in range(1, min(int(radius / alpha), int(60 / alpha) + 5, 400)):
        term = z ** (-k) * mp.rgamma(beta - alpha * k)
        total -= term
        if k > 8 and term and abs(term) < mp.mpf(10) ** -60 * abs(total):
            break
    total += sum(residue for residue in residues(z, alpha, beta, radius))
    return total if isinstance(z, mp.mpc) else mp.re(total)


def residues(z, alpha, beta, radius):
    """s^{1-β} e^s / α at the poles s = z^{1/α} e^{2πij/α} of the main sheet."""
    for j in (-1, 0, 1):
        angle = (mp.arg(z) + 2 * mp.pi * j) / alpha
        if -mp.pi < angle <= mp.pi:
            s = radius * mp.expj(angle)
            yield mp.power(s, 1 - beta) * mp.exp(s) / alpha


def size(z, alpha, beta):
    """|E| plus the exponentials in it: what an error near a zero of E is measured against."""
    z, alpha, beta = mp.mpmathify(z), mp.mpf(alpha), mp.mpf(beta)
    value = abs(mittag_leffler(z, alpha, beta))
    if not z:
        return value
    return value + sum(abs(r) for r in residues(z, alpha, beta, abs(z) ** (1 / alpha)))


def derivatives(z, alpha, beta):
    """∂E/∂z, ∂E/∂α, ∂E/∂β by central differences that are far finer than a float64."""
    point = [mp.mpmathify(z), mp.mpf(alpha), mp.mpf(beta)]
    found = []
    for i in range(3):
        with mp.workdps(90):
            h = mp.mpf(10) ** -20 * max(1, abs(point[i]))
            up, down = ([v + s * h * (j == i) for j, v in enumerate(point)] for s in (1, -1))
            found.append((mittag_leffler(*up) - mittag_leffler(*down)) / (2 * h))
    return found


EDGES = [0.05, 0.1, 0.3, 0.5, 0.99, 0.999999, 1 - 1e-10, 1.0, 1 + 1e-10, 1.000001, 1.5, 1.99, 1.999999, 2.0]


def campaign(count, seed):
    """Random arguments over all that is promised, with its corners: (z, alpha, beta), real and complex z."""
    rng = random.Random(seed)
    while count:
        alpha = rng.choice(EDGES) if rng.random() < 0.5 else rng.uniform(0.05, 2.0)
        alpha = rng.choice([0.005, 0.01, 0.02]) if rng.random() < 0.05 else alpha
        corner = rng.choice([-4.0, -3.0, 0.0, 0.5, 1.0, 1.0, 1.0, alpha, 1.0 + alpha, 2.0, 10.0, 16.0])
        beta = corner if rng.random() < 0.5 else rng.uniform(-4.0, 16.0)
        kind = rng.random()
        if kind < 0.1:
            modulus = 0.0 if kind < 0.02 else 10 ** rng.uniform(-300, -2)
        else:
            decades = (-2, 2) if kind < 0.8 else (2, 3) if kind < 0.9 else (3, 9)
            modulus = (10 ** rng.uniform(*decades)) ** alpha
        turn = complex(mp.expj(rng.uniform(-3.14, 3.14))) if rng.random() < 0.5 else rng.choice([-1, -1, 1])
        z = modulus * turn
        radius = abs(z) ** (1 / alpha) if z else 0.0
        if (alpha < 0.05 and radius > 10) or (z and mp.re(mp.power(mp.mpmathify(z), 1 / mp.mpf(alpha))) > 650):
            continue
        count -= 1
        yield z, alpha, beta


def pair(number):
    """A number of mpmath as two floats."""
    return [float(mp.re(number)), float(mp.im(number))]


if __name__ == "__main__":
    rows = []
    for z, alpha, beta in campaign(660, 0):
        values = [mittag_leffler(z, alpha, beta), *derivatives(z, alpha, beta)]
        argument = [z.real, z.imag] if isinstance(z, complex) else z
        rows.append(json.dumps([argument, alpha, beta, float(size(z, alpha, beta)), *map(pair, values)]))
    Path(__file__).with_name("mittag_leffler.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
