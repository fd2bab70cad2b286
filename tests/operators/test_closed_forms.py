"""Powers, exponentials and sines have closed forms; each rule must reach its stated order on them."""

from __future__ import annotations

import math

import pytest
import torch

from neuralfde.operators import (
    caputo_derivative,
    fractional_integral,
    grunwald_letnikov_derivative,
    riemann_liouville_derivative,
)
from neuralfde.special import mittag_leffler, reciprocal_gamma

F64 = torch.float64


def rgamma(x):
    return reciprocal_gamma(torch.tensor(float(x), dtype=F64)).item()


def power(p):
    """t^p: D^α t^p = Γ(p+1)/Γ(p+1-α) t^{p-α}; a negative order integrates."""
    return lambda t: t**p, lambda t, a: math.gamma(p + 1) * rgamma(p + 1 - a) * t ** (p - a)


def exponential():
    """e^t - 1 (zero at 0): D^α = t^{1-α} E_{1,2-α}(t) for every kind of derivative of order below 1, and integrals."""
    return torch.expm1, lambda t, a: t ** (1 - a) * mittag_leffler(t, 1.0, 2.0 - a)


def sine():
    return torch.sin, lambda t, a: t ** (1 - a) * mittag_leffler(-(t**2), 2.0, 2.0 - a)


def observed_order(operator, order, problem, sign=1.0, side="left"):
    """log2 of the error ratio over the second half of [0, 1] between 160 and 320 steps, and the last error."""
    f, exact = problem
    errors = []
    for n in (160, 320):
        t = torch.linspace(0, 1, n + 1, dtype=F64)
        values = f(t) if side == "left" else f(1 - t)
        got = operator(values, order, 1 / n, side=side)
        got = got if side == "left" else got.flip(0)
        half = t[n // 2 :]
        errors.append((got[n // 2 :] - exact(half, sign * order)).abs().max().item())
    return math.log2(errors[0] / errors[1]), errors[1]


PROBLEMS = {"power": power(4.0), "exponential": exponential(), "sine": sine()}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("order", [0.3, 0.8, 1.0, 1.7, 2.5])
def test_integral_has_order_two(order, problem, side):
    rate, error = observed_order(fractional_integral, order, PROBLEMS[problem], sign=-1.0, side=side)
    assert rate > 1.9
    assert error < 2e-5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("operator", [caputo_derivative, riemann_liouville_derivative])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("order", [0.3, 0.8, 1.0])
def test_derivatives_of_order_up_to_one(order, problem, operator, side):
    rate, error = observed_order(operator, order, PROBLEMS[problem], side=side)
    assert rate > 3 - order - 0.15
    assert error < 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("operator", [caputo_derivative, riemann_liouville_derivative])
@pytest.mark.parametrize("order", [1.2, 1.7, 2.0, 2.4, 3.0])
def test_derivatives_of_higher_order(order, operator, side):
    rate, error = observed_order(operator, order, power(5.0), side=side)
    assert rate > 3 - (order - math.ceil(order) + 1) - 0.15
    assert error < 5e-3


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("order", [0.3, 0.8, 1.0])
def test_grunwald_letnikov_has_order_one(order, problem):
    rate, _ = observed_order(grunwald_letnikov_derivative, order, PROBLEMS[problem])
    assert rate > 0.9


@pytest.mark.parametrize("order", [0.4, 1.6])
def test_singular_terms_separate_riemann_liouville_from_caputo(order):
    """f = 2 + 3t + t³ has f(0) and f'(0): RL keeps their powers, GL converges to the same, Caputo drops them."""
    n = 400
    t = torch.linspace(0, 1, n + 1, dtype=F64)
    values = 2 + 3 * t + t**3
    pieces = [c * power(p)[1](t[1:], order) for c, p in ((2, 0.0), (3, 1.0), (1, 3.0))]
    caputo = sum(pieces[1:] if order < 1 else pieces[2:])
    late = slice(n // 2, None)
    for operator, exact, tolerance in (
        (caputo_derivative, caputo, 1e-4),
        (riemann_liouville_derivative, sum(pieces), 1e-4),
        (grunwald_letnikov_derivative, sum(pieces), 5e-2),
    ):
        got = operator(values, order, 1 / n)[1:]
        torch.testing.assert_close(got[late], exact[late], rtol=0, atol=tolerance)
    assert riemann_liouville_derivative(values, order, 1 / n)[0].item() == pytest.approx(2 * n**order)
    assert caputo_derivative(values, order, 1 / n)[0] == 0


def test_rules_are_exact_on_their_interpolants():
    t = torch.linspace(0, 2, 41, dtype=F64)
    torch.testing.assert_close(fractional_integral(1 + t, 0.6, 0.05), _integral_of_line(t, 0.6), rtol=1e-12, atol=1e-14)
    exact = power(1.0)[1](t[1:], 0.6)
    torch.testing.assert_close(caputo_derivative(1 + t, 0.6, 0.05)[1:], exact, rtol=1e-12, atol=1e-13)


def _integral_of_line(t, order):
    return power(0.0)[1](t, -order) + power(1.0)[1](t, -order)
