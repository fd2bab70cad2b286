"""The Mittag-Leffler function against mpmath, inside the range that is promised and far outside of it."""

from __future__ import annotations

import math
import random

import torch

from ..case import Case, Failed, Part

RANDOM = random.Random(0)
#: What its documentation promises: relative to the function, next to its zeros to the exponentials that cancel.
PROMISED = 1e-12
#: For β beyond [-4, 6], where errors of 7e-11 were measured up to 10; and far away, where a number may be refused too.
BETA_BEYOND, FAR = 1e-10, 1e-6
SETTINGS = {
    "alpha": (0.5, 1.0, 0.9, 0.3, 1.5, 2.0, 0.05, 0.1, 0.99, 1.2, 1.99, 1 - 1e-10, 1 + 1e-6,
              *[round(RANDOM.uniform(0.05, 2.0), 6) for _ in range(60)]),
    "beta": (1.0, 1.0, 2.0, 0.5, 0.0, -1.0, -3.7, 5.9, 8.0, 10.0, 40.0, -40.0,
             *[round(RANDOM.uniform(0.1, 3.0), 6) for _ in range(40)]),
    "radius": (1.0, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1e3, 1e5, 1e16,
               *[round(10 ** RANDOM.uniform(-2, 2.5), 6) for _ in range(90)]),
    "turn": (-1.0, 1.0, *[round(RANDOM.uniform(-1.0, 1.0), 3) for _ in range(5)]),
    "slope": (False, False, True),
}  # fmt: skip


def _argument(case: Case) -> float | complex:
    """``z`` of modulus ``radius^α``, at ``turn`` half turns from the positive axis."""
    modulus = case["radius"] ** case["alpha"]
    if case["turn"] in (-1.0, 1.0):
        return -modulus if case["turn"] == -1 else modulus
    return modulus * complex(math.cos(math.pi * case["turn"]), math.sin(math.pi * case["turn"]))


def allowed(case: Case) -> float:
    """Rounding, times the conditioning of the phase beyond a radius of 1000."""
    beta, radius = case["beta"], case["radius"]
    found = PROMISED if -4 <= beta <= 6 else BETA_BEYOND if abs(beta) <= 10 else FAR
    if radius > 1e3:
        found += 8 * torch.finfo(torch.float64).eps * radius * max(1.0, math.log(radius ** case["alpha"]))
    return min(found, 1e-3)


def check(case: Case) -> float:
    """The value, or its derivative ``(E_{α,β-1} - (β-1) E_{α,β}) / (αz)``."""
    import mpmath as mp

    from neuralfde import mittag_leffler
    from tests.special import reference

    z, alpha, beta = _argument(case), case["alpha"], case["beta"]
    s = mp.power(mp.mpmathify(z), 1 / mp.mpf(alpha))
    if mp.re(s) > 690 or (alpha < 0.2 and 0.9 < abs(z) < 1) or (abs(alpha - 1) < 1e-5 and mp.re(s) < -600):
        return 0.0  # it overflows, or the series takes too many terms, or it is e^z below the smallest number
    argument = torch.tensor(z, dtype=torch.complex128 if isinstance(z, complex) else torch.float64)
    argument.requires_grad_(case["slope"] and not isinstance(z, complex))
    found = mittag_leffler(argument, alpha, beta)
    right, size = reference.mittag_leffler(z, alpha, beta), reference.size(z, alpha, beta)
    tolerance = allowed(case)
    if argument.requires_grad:
        (found,) = torch.autograd.grad(found, argument)
        lower = reference.mittag_leffler(z, alpha, beta - 1)
        right = (lower - (beta - 1) * right) / (mp.mpf(alpha) * z)
        size = (reference.size(z, alpha, beta - 1) + abs(beta - 1) * size) / (alpha * abs(z))
        tolerance *= 10
    error = float(abs(mp.mpmathify(found.item()) - right) / max(size, abs(right), mp.mpf(10) ** -300))
    if not error <= tolerance:
        raise Failed(f"differ: E by {error:.1e}, allowed {tolerance:.1e}; {found.item()} for {mp.nstr(right, 8)}")
    return error / tolerance


def script(case: Case) -> str:
    z = _argument(case)
    dtype = "complex128" if isinstance(z, complex) else "float64"
    return (
        "import torch\n\nfrom neuralfde import mittag_leffler\n\n"
        f"z = torch.tensor({z!r}, dtype=torch.{dtype}, requires_grad=True)\n"
        f"value = mittag_leffler(z, {case['alpha']!r}, {case['beta']!r})\n"
        "print(value, torch.autograd.grad(value.real, z))\n"
    )


PART = Part("special", SETTINGS, check, script)
