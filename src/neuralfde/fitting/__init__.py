"""Fit the parameters and the order of a fractional equation to measurements."""

from .api import fit, profile_order
from .curves import CurveFit, fit_curve
from .diagnostics import (
    BoundWarning,
    Diagnostics,
    FitWarning,
    IdentifiabilityWarning,
    NoiseWarning,
    ResidualWarning,
    StepWarning,
)
from .optimisers import LBFGS, Adam, LevenbergMarquardt, Progress
from .population import Population
from .profile import Profile
from .result import Fit
from .saving import load, save

__all__ = [
    "LBFGS",
    "Adam",
    "BoundWarning",
    "CurveFit",
    "Diagnostics",
    "Fit",
    "FitWarning",
    "IdentifiabilityWarning",
    "LevenbergMarquardt",
    "NoiseWarning",
    "Population",
    "Profile",
    "Progress",
    "ResidualWarning",
    "StepWarning",
    "fit",
    "fit_curve",
    "load",
    "profile_order",
    "save",
]
