"""Special functions and power series, computed in float64 and differentiable in every argument."""

from neuralfde.special.gamma import reciprocal_gamma
from neuralfde.special.matrix import mittag_leffler_matrix
from neuralfde.special.mittag_leffler import mittag_leffler
from neuralfde.special.powers import binomial_remainder, binomial_series
from neuralfde.special.series import l1_weights, series_product, series_reciprocal

__all__ = [
    "binomial_remainder",
    "binomial_series",
    "l1_weights",
    "mittag_leffler",
    "mittag_leffler_matrix",
    "reciprocal_gamma",
    "series_product",
    "series_reciprocal",
]
