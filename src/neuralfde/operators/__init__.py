"""Fractional integrals and derivatives of sampled data: left and right, any order, differentiable, O(N log N)."""

from neuralfde.operators.derivatives import (
    caputo_derivative,
    grunwald_letnikov_derivative,
    riemann_liouville_derivative,
)
from neuralfde.operators.integral import fractional_integral

__all__ = [
    "caputo_derivative",
    "fractional_integral",
    "grunwald_letnikov_derivative",
    "riemann_liouville_derivative",
]
