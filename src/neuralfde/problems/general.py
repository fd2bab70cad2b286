"""Equations whose operator is more than one derivative of one constant order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..orders import DistributedOrder, MultiTerm, Tempered, VariableOrder
from ..special import mittag_leffler
from .base import Problem, gamma, vector


def bagley_torvik() -> Problem:
    """``z'' + D^{1.5} z + z = 1 + t``, z(0) = z'(0) = 1, z = 1 + t."""
    return Problem(
        "bagley-torvik",
        lambda t, z: 1 + t - z,
        vector(1.0),
        1.0,
        MultiTerm([2.0, 1.5], [1.0, 1.0]),
        "Torvik and Bagley 1984; this right-hand side after Diethelm and Ford 2002",
        exact=lambda t: (1 + t).reshape(1),
        options={"velocity": vector(1.0), "method": "gl"},
        smooth=True,
    )


def bagley_torvik_cubic() -> Problem:
    """``z'' + D^{1.5} z + z = 6t + Γ(4)/Γ(2.5) t^{1.5} + t³`` from rest, z = t³; ``z`` is a term of order 0 here."""
    return Problem(
        "bagley-torvik-cubic",
        lambda t, z: (6 * t + 6 / gamma(2.5) * t**1.5 + t**3).expand_as(z),
        vector(0.0),
        1.0,
        MultiTerm([2.0, 1.5, 0.0], [1.0, 1.0, 1.0]),
        "Torvik and Bagley 1984; constructed from its solution",
        exact=lambda t: (t**3).reshape(1),
        options={"velocity": vector(0.0), "method": "gl"},
        smooth=True,
    )


def bagley_torvik_low() -> Problem:
    """``z'' + 1/2 D^{1.5} z + 1/2 D^{0.5} z + z = f``, z = (1 + t)²: a low term with z'(0) ≠ 0."""

    def func(t: Tensor, z: Tensor) -> Tensor:
        high = 2 * t**0.5 / gamma(1.5)
        low = 2 * t**0.5 / gamma(1.5) + 2 * t**1.5 / gamma(2.5)
        return 2 + 0.5 * high + 0.5 * low + (1 + t) ** 2 - z

    return Problem(
        "bagley-torvik-low",
        func,
        vector(1.0),
        1.0,
        MultiTerm([2.0, 1.5, 0.5], [1.0, 0.5, 0.5]),
        "Torvik and Bagley 1984 with a further term; constructed from its solution",
        exact=lambda t: ((1 + t) ** 2).reshape(1),
        options={"velocity": vector(2.0), "method": "gl"},
        smooth=True,
    )


def basset() -> Problem:
    """``z' + D^{1/2} z + z = 1``, z(0) = 0: a sphere falls in a fluid; z = 2/√3 √t Im E_{1/2,3/2}(e^{2πi/3} √t)."""

    def exact(t: Tensor) -> Tensor:
        root = torch.sqrt(t)
        angle = torch.polar(root, torch.tensor(2 * math.pi / 3, dtype=torch.float64))
        return (2 / math.sqrt(3) * root * mittag_leffler(angle, 0.5, 1.5).imag).reshape(1)

    return Problem(
        "basset",
        lambda t, z: 1 - z,
        vector(0.0),
        2.0,
        MultiTerm([1.0, 0.5], [1.0, 1.0]),
        "Basset 1888; Mainardi 1997, section 2; the constants are chosen here",
        exact=exact,
        options={"method": "gl"},
    )


def distributed(nodes: int = 12) -> Problem:
    """``∫_0^1 Γ(3-β) D^β z dβ = 2 (t² - t)/log t``, z = t²."""

    def func(t: Tensor, z: Tensor) -> Tensor:
        away = (t - 1).abs() > 1e-6
        inside = away & (t > 0)
        safe = torch.where(inside, t, torch.full_like(t, 0.5))
        near = torch.where(t > 0, 1 + 1.5 * (t - 1), torch.zeros_like(t))
        return 2 * torch.where(inside, (safe**2 - safe) / torch.log(safe), near).expand_as(z)

    return Problem(
        "distributed",
        func,
        vector(0.0),
        1.0,
        DistributedOrder(nodes, density=lambda b: torch.exp(torch.lgamma(3 - b))),
        "the equation of Diethelm and Ford 2009; constructed from its solution",
        exact=lambda t: (t**2).reshape(1),
        options={"method": "gl"},
        smooth=True,
    )


def variable() -> Problem:
    """``D^{β(t)} z = t² + g(t) - z``, β = 0.5 + 0.3t, z = g = 2t^{2+β(t)}/Γ(3+β(t)): the integral of the slope t²."""

    def solution(t: Tensor) -> Tensor:
        b = 0.5 + 0.3 * t
        return 2 * t ** (2 + b) * torch.exp(-torch.lgamma(3 + b))

    return Problem(
        "variable",
        lambda t, z: t**2 + solution(t) - z,
        vector(0.0),
        1.0,
        VariableOrder(lambda t: 0.5 + 0.3 * t),
        "an integral of variable order as in Samko 1995; constructed from its solution",
        exact=lambda t: solution(t).reshape(1),
        smooth=True,
    )


def tempered(order: float = 0.6, rate: float = 0.5) -> Problem:
    """``D^{β,λ} z = -z``, z = e^{-λt} E_β(-t^β)."""
    return Problem(
        "tempered",
        lambda t, z: -z,
        vector(1.0),
        2.0,
        Tempered(order, rate),
        "the derivative of Li, Deng and Zhao 2019; the equation is chosen here",
        exact=lambda t: (torch.exp(-rate * t) * mittag_leffler(-(t**order), order)).reshape(1),
    )
