"""Semigroup, inverse, integration by parts, linearity and the limits at integer orders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralfde.operators import (
    caputo_derivative,
    fractional_integral,
    grunwald_letnikov_derivative,
    riemann_liouville_derivative,
)
from tests.stubs import F64, OPERATORS

N = 400
H = 1.0 / N
T = torch.linspace(0, 1, N + 1, dtype=F64)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("a", "b"), [(0.3, 0.5), (0.7, 1.1), (0.5, 0.5)])
def test_semigroup(a, b, side):
    values = torch.sin(3 * T) * T**2 * (1 - T) ** 2
    twice = fractional_integral(fractional_integral(values, a, H, side), b, H, side)
    torch.testing.assert_close(twice, fractional_integral(values, a + b, H, side), rtol=0, atol=1e-5)


def test_grunwald_letnikov_semigroup_is_exact():
    values = torch.cos(T)
    twice = grunwald_letnikov_derivative(grunwald_letnikov_derivative(values, 0.3, H), 0.5, H)
    torch.testing.assert_close(twice, grunwald_letnikov_derivative(values, 0.8, H), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("order", [0.4, 1.5])
@pytest.mark.parametrize("operator", [caputo_derivative, riemann_liouville_derivative])
def test_derivative_undoes_the_integral(order, operator):
    values = T**3
    back = operator(fractional_integral(values, order, H), order, H)
    torch.testing.assert_close(back[N // 4 :], values[N // 4 :], rtol=0, atol=1e-3)


def quadrature(values):
    return torch.trapezoid(values, dx=H)


def test_integration_by_parts_of_the_integral():
    f, g = torch.exp(T) * T, torch.cos(2 * T) * (1 - T)
    left = quadrature(g * fractional_integral(f, 0.6, H, "left"))
    right = quadrature(f * fractional_integral(g, 0.6, H, "right"))
    assert abs(left - right) < 2e-6


def test_integration_by_parts_of_the_derivative():
    """∫ g D_C^α f = ∫ f D_RL^α g when f(0) = 0 and g(1) = 0: left Caputo against right Riemann-Liouville."""
    f, g = T**2 + torch.sin(T), (1 - T) ** 2
    left = quadrature(g * caputo_derivative(f, 0.6, H, "left"))
    right = quadrature(f * riemann_liouville_derivative(g, 0.6, H, "right"))
    assert abs(left - right) < 2e-4


def test_integer_orders_are_the_classical_ones():
    values = torch.sin(2 * T)
    trapezoid = torch.cat([torch.zeros(1, dtype=F64), torch.cumulative_trapezoid(values, dx=H)])
    torch.testing.assert_close(fractional_integral(values, 1.0, H), trapezoid, rtol=0, atol=1e-13)
    backward = (3 * values[2:] - 4 * values[1:-1] + values[:-2]) / (2 * H)
    for operator in (caputo_derivative, riemann_liouville_derivative):
        got = operator(values, 1.0, H)
        torch.testing.assert_close(got[2:], backward, rtol=0, atol=1e-10)
        torch.testing.assert_close(got, 2 * torch.cos(2 * T), rtol=0, atol=1e-2)
        torch.testing.assert_close(operator(values, 1.0, H, "right"), -2 * torch.cos(2 * T), rtol=0, atol=1e-2)
        torch.testing.assert_close(operator(values, 2.0, H)[4:], -4 * values[4:], rtol=0, atol=1e-3)
    shifted = torch.cat([torch.zeros(1, dtype=F64), values[:-1]])
    torch.testing.assert_close(grunwald_letnikov_derivative(values, 1.0, H), (values - shifted) / H, rtol=0, atol=1e-10)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("whole", [1.0, 2.0])
def test_orders_just_below_an_integer_are_close_to_it(operator, whole):
    values = torch.exp(T) - 1 - T
    near, at = operator(values, whole - 1e-9, H), operator(values, whole, H)
    torch.testing.assert_close(near[N // 4 :], at[N // 4 :], rtol=0, atol=1e-6)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("side", ["left", "right"])
@settings(max_examples=10, deadline=None)
@given(a=st.floats(-3, 3), b=st.floats(-3, 3), order=st.floats(0.05, 2.5), seed=st.integers(0, 99))
def test_linearity(operator, side, a, b, order, seed):
    f, g = torch.randn(2, 17, 2, dtype=F64, generator=torch.Generator().manual_seed(seed)).unbind(0)
    together = operator(a * f + b * g, order, 0.1, side)
    apart = a * operator(f, order, 0.1, side) + b * operator(g, order, 0.1, side)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9 * float(1 + apart.abs().max()))
