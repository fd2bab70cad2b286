"""Scalar equations and linear systems with closed solutions."""

from __future__ import annotations

import torch
from torch import Tensor

from ..special import mittag_leffler, mittag_leffler_matrix
from .base import Problem, gamma, vector


def relaxation(order: float = 0.5, rate: float = -1.0, t: float = 1.0) -> Problem:
    """``D^β z = λz``, z = E_β(λt^β)."""
    return Problem(
        "relaxation",
        lambda t, z: rate * z,
        vector(1.0),
        t,
        order,
        "Mainardi 1996",
        exact=lambda t: mittag_leffler(rate * t**order, order).reshape(1),
        smooth=order == 1,
    )


def diethelm_ford_freed(order: float = 0.25) -> Problem:
    """The example with a published error table for Adams–Bashforth–Moulton; z = t⁸ - 3t^{4+β/2} + 9/4 t^β."""
    b = order

    def func(t: Tensor, z: Tensor) -> Tensor:
        forcing = 40320 / gamma(9 - b) * t ** (8 - b) - 3 * gamma(5 + b / 2) / gamma(5 - b / 2) * t ** (4 - b / 2)
        return forcing + 2.25 * gamma(b + 1) + (1.5 * t ** (b / 2) - t**4) ** 3 - z.abs() ** 1.5

    return Problem(
        "diethelm-ford-freed",
        func,
        vector(0.0),
        1.0,
        order,
        "Diethelm, Ford and Freed 2004",
        exact=lambda t: (t**8 - 3 * t ** (4 + b / 2) + 2.25 * t**b).reshape(1),
        options={"velocity": vector(0.0)} if order > 1 else {},
    )


def smooth(order: float = 0.5) -> Problem:
    """``D^β z = t² - z + 2t^{2-β}/Γ(3-β)``, z = t²: every scheme shows its full order."""
    return Problem(
        "smooth",
        lambda t, z: t**2 - z + 2 * t ** (2 - order) / gamma(3 - order),
        vector(0.0),
        1.0,
        order,
        "of the kind in Diethelm, Ford and Freed 2002; constructed from its solution",
        exact=lambda t: (t**2).reshape(1),
        smooth=True,
    )


def power(order: float = 0.5) -> Problem:
    """``D^β z = Γ(1+β)``, z = t^β: nothing but the singularity."""
    value = gamma(1 + order)
    return Problem(
        "power",
        lambda t, z: value.expand_as(z),
        vector(0.0),
        1.0,
        order,
        "constructed; the singularity is the one Stynes, O'Riordan and Gracia 2017 grade for",
        exact=lambda t: (t**order).reshape(1),
    )


def saturation(order: float = 0.5, t: float = 20.0) -> Problem:
    """``D^β z = 1 - z``, z = t^β E_{β,β+1}(-t^β); for long times, and for β up to 2 from rest."""
    return Problem(
        "saturation",
        lambda t, z: 1 - z,
        vector(0.0),
        t,
        order,
        "relaxation with a constant source; with order 1.8 and T = 20 an example of FractionalDiffEq.jl",
        exact=lambda t: (t**order * mittag_leffler(-(t**order), order, order + 1)).reshape(1),
        options={"velocity": vector(0.0)} if order > 1 else {},
    )


def rotation(order: float = 0.7) -> Problem:
    """``D^β z = A z``, A = [[0, 1], [-1, 0]], z = E_β(A t^β) z_0."""
    matrix = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    start = vector(1.0, 0.5)
    return Problem(
        "rotation",
        lambda t, z: z @ matrix.T,
        start,
        2.0,
        order,
        "constructed from its matrix Mittag-Leffler solution",
        exact=lambda t: mittag_leffler_matrix(matrix * t**order, order) @ start,
    )


def oscillation(order: float = 1.5) -> Problem:
    """``D^β z = -z``, z(0) = 1, z'(0) = 0, 1 < β < 2, z = E_β(-t^β): between relaxation and oscillation."""
    return Problem(
        "oscillation",
        lambda t, z: -z,
        vector(1.0),
        5.0,
        order,
        "Mainardi 1996",
        exact=lambda t: mittag_leffler(-(t**order), order).reshape(1),
        options={"velocity": vector(0.0)},
    )


def xue_bai_system() -> Problem:
    """Three equations of orders 0.5, 0.2 and 0.6; z = (t + 1, t^{1.2} + 0.5, t^{1.8} + 0.3)."""

    def func(t: Tensor, z: Tensor) -> Tensor:
        x, y, w = z.unbind(-1)
        # at t = 0 the product is 0, where a sixth root has no slope; no scheme evaluates to the left of it
        inner = ((y - 0.5) * (w - 0.3)).clamp(min=1e-300)
        first = (inner ** (1 / 6) + t**0.5) / (2 * gamma(1.5))
        return torch.stack([first, gamma(2.2) * (x - 1), gamma(2.8) / gamma(2.2) * (y - 0.5)], dim=-1)

    return Problem(
        "xue-bai-system",
        func,
        vector(1.0, 0.5, 0.3),
        1.0,
        vector(0.5, 0.2, 0.6),
        "Xue and Bai 2017, problem 5, on [0, 1] here",
        exact=lambda t: torch.stack([t + 1, t**1.2 + 0.5, t**1.8 + 0.3]),
    )


def xue_bai_linear() -> Problem:
    """``y''' + D^{2.5}y + y'' + 4y' + D^{0.5}y + 4y = 6 cos t`` as six equations of order 1/2; y = √2 sin(t + π/4)."""

    def func(t: Tensor, z: Tensor) -> Tensor:
        y, half, first, _, second, fifth = z.unbind(-1)
        last = 6 * torch.cos(t) - fifth - second - 4 * first - half - 4 * y
        return torch.cat([z[..., 1:], last[..., None]], dim=-1)

    def exact(t: Tensor) -> Tensor:
        sine, cosine = torch.sin(t), torch.cos(t)
        half_sine = t**0.5 * mittag_leffler(-(t**2), 2.0, 1.5)  # D^{1/2} of both
        half_cosine = -(t**1.5) * mittag_leffler(-(t**2), 2.0, 2.5)
        first, second = half_cosine + half_sine, half_cosine - half_sine
        return torch.stack([cosine + sine, first, cosine - sine, second, -cosine - sine, -first])

    return Problem(
        "xue-bai-linear",
        func,
        vector(1.0, 0.0, 1.0, 0.0, -1.0, 0.0),
        1.0,
        0.5,
        "in the form of Xue and Bai 2017, as systems of one order after Diethelm and Ford 2004; "
        "not confirmed at the source",
        exact=exact,
    )
