"""Adjoints: how the gradient of a solve is computed."""

from ..solve.function import Adjoint
from .exact import Direct, Exact
from .paper import Paper

__all__ = ["Adjoint", "Direct", "Exact", "Paper"]
