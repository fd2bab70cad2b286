"""Fractional integrals and derivatives of sampled data: left and right, any order, differentiable, O(N log N)."""

from neuralfde.operators.caputo import caputo_derivative
from neuralfde.operators.grunwald_letnikov import grunwald_letnikov_derivative
from neuralfde.operators.integral import fractional_integral
from neuralfde.operators.riemann_liouville import riemann_liouville_derivative

__all__ = [
    "caputo_derivative",
    "fractional_integral",
    "grunwald_letnikov_derivative",
    "riemann_liouville_derivative",
]
