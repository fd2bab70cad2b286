"""The Mittag-Leffler function in mpmath: its series with enough digits, or its expansion at infinity."""

from __future__ import annotations

import mpmath as mp


def mittag_leffler(z, alpha, beta):
    z, alpha, beta = mp.mpmathify(z), mp.mpf(alpha), mp.mpf(beta)
    radius = abs(z) ** (1 / alpha) if z else mp.mpf(0)
    if radius < 120:
        return series(z, alpha, beta, radius)
    with mp.workdps(50):
        return expansion(z, alpha, beta, radius)


def series(z, alpha, beta, radius):
    """Terms reach e^R and may cancel down to e^{-R}: that many digits are added."""
    with mp.workdps(int(70 + 2 * radius / mp.log(10))):
        total, k = mp.mpf(0), 0
        while True:
            term = z**k * mp.rgamma(alpha * k + beta)
            total, k = total + term, k + 1
            if k > 5 and alpha * k + beta > radius + 5 and abs(term) < mp.mpf(10) ** (-45 - radius / mp.log(10)):
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
