"""Schemes: a formula, a weight table and a local map each."""

from .base import Cotangents, Scheme
from .differences import L1, GrunwaldLetnikov
from .implicit import OneStage
from .krylov import SOLVERS, FixedPoint, NewtonKrylov, StageSolver
from .multistep import Multistep
from .predictor import Predictor
from .trapezoid import ABM, Trapezoid

__all__ = [
    "ABM",
    "L1",
    "SOLVERS",
    "Cotangents",
    "FixedPoint",
    "GrunwaldLetnikov",
    "Multistep",
    "NewtonKrylov",
    "OneStage",
    "Predictor",
    "Scheme",
    "StageSolver",
    "Trapezoid",
]
