"""Nonlinear systems without closed solutions; reference values come from ``benchmarks/references.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .base import Problem, vector


def _system(
    name: str,
    slopes: Callable[..., Sequence[Tensor]],
    z0: Sequence[float],
    t: float,
    order: float,
    source: str,
    reference: Sequence[float],
) -> Problem:
    """A problem whose right-hand side is given by components: from those of the state to those of its slope."""

    def func(t: Tensor, z: Tensor) -> Tensor:
        return torch.stack([*slopes(*z.unbind(-1))], dim=-1)

    return Problem(name, func, vector(*z0), t, order, source, reference=vector(*reference))


def brusselator() -> Problem:
    """``D^β x = 1 - 5x + x²y``, ``D^β y = 4x - x²y``: an autocatalytic reaction with a limit cycle."""
    return _system(
        "brusselator",
        lambda x, y: (1 - 5 * x + x * x * y, 4 * x - x * x * y),
        (1.2, 2.8),
        1.0,
        0.8,
        "Wang and Li 2007; Ongun, Arslan and Garrappa 2013; initial values and end time are chosen here",
        (0.42737488360899, 3.9447983589572),
    )


def lorenz() -> Problem:
    """Lorenz's equations, σ = 10, ρ = 28, β = 8/3, with derivatives of order 0.985."""
    return _system(
        "lorenz",
        lambda x, y, w: (10 * (y - x), 28 * x - y - x * w, x * y - 8 / 3 * w),
        (1.0, 1.0, 1.0),
        0.25,
        0.985,
        "Grigorenko and Grigorenko 2003; order and end time are chosen here",
        (12.180747806593, 23.362222653974, 13.54099963253),
    )


def chua() -> Problem:
    """Chua's circuit with a cubic nonlinearity, α = 12.75, β = 100/7, derivatives of order 0.9."""
    return _system(
        "chua",
        lambda x, y, w: (12.75 * (y + (x - 2 * x**3) / 7), x - y + w, -100 / 7 * y),
        (0.2, -0.1, 0.1),
        0.5,
        0.9,
        "Hartley, Lorenzo and Qammer 1995, the cubic form; the constants are not confirmed at the source",
        (0.4982696483325, 0.10691538763589, -0.036093062771333),
    )


def sir() -> Problem:
    """An epidemic with memory: susceptible, infected, recovered; rates 1.5 and 0.5. Their sum stays 1."""
    return _system(
        "sir",
        lambda s, i, _: (-1.5 * s * i, 1.5 * s * i - 0.5 * i, 0.5 * i),
        (0.99, 0.01, 0.0),
        5.0,
        0.9,
        "constant population as in Okyere et al. 2016; the rates are chosen here",
        (0.42435315271445, 0.28140263736276, 0.2942442099228),
    )


def predator_prey() -> Problem:
    """``D^β x = x(1 - x - y)``, ``D^β y = y(2x - 1)``."""
    return _system(
        "predator-prey",
        lambda x, y: (x * (1 - x - y), y * (2 * x - 1)),
        (0.8, 0.6),
        2.0,
        0.8,
        "the model of Ahmed, El-Sayed and El-Saka 2007; the constants are chosen here",
        (0.46294184984378, 0.74299055598127),
    )


def riccati() -> Problem:
    """``D^β z = 1 + 2z - z²``, z(0) = 0."""
    return _system(
        "riccati",
        lambda z: (1 + 2 * z - z * z,),
        (0.0,),
        1.0,
        0.7,
        "Odibat and Momani 2008; order and end time are chosen here",
        (1.8227906501752,),
    )


def van_der_pol() -> Problem:
    """``D^β x = y``, ``D^β y = -x + (1 - x²) y``."""
    return _system(
        "van-der-pol",
        lambda x, y: (y, -x + (1 - x * x) * y),
        (1.0, 0.0),
        1.0,
        0.9,
        "van der Pol's equation with fractional derivatives, as in Barbosa et al. 2007; numbers chosen here",
        (0.39393625662051, -1.1146300944918),
    )
