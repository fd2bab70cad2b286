"""Adjoints: how the gradient of a solve is computed."""

from .function import Adjoint, solved
from .paper import Paper
from .plan import Coefficients, Plan
from .reverse import Direct, Exact

__all__ = ["Adjoint", "Coefficients", "Direct", "Exact", "Paper", "Plan", "solved"]
