"""Fit the parameters and the order of a fractional equation to measurements."""

from .api import fit, profile_order
from .curves import CurveFit, fit_curve
from .optimisers import LBFGS, Adam, LevenbergMarquardt, Progress
from .profile import Profile
from .result import Fit, IdentifiabilityWarning, StepWarning

__all__ = [
    "LBFGS",
    "Adam",
    "CurveFit",
    "Fit",
    "IdentifiabilityWarning",
    "LevenbergMarquardt",
    "Profile",
    "Progress",
    "StepWarning",
    "fit",
    "fit_curve",
    "profile_order",
]
