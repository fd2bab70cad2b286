"""Special functions and power series, in float64 inside, differentiable in every argument."""

from neuralfde.special.powers import binomial_remainder, binomial_series
from neuralfde.special.series import l1_weights, series_product, series_reciprocal

__all__ = ["binomial_remainder", "binomial_series", "l1_weights", "series_product", "series_reciprocal"]
