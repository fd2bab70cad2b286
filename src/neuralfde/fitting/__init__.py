"""Fit the parameters and the order of a fractional equation to measurements."""

from .api import fit, profile_order
from .optimisers import LBFGS, Adam, LevenbergMarquardt, Progress
from .profile import Profile
from .result import Fit, IdentifiabilityWarning

__all__ = [
    "LBFGS",
    "Adam",
    "Fit",
    "IdentifiabilityWarning",
    "LevenbergMarquardt",
    "Profile",
    "Progress",
    "fit",
    "profile_order",
]
