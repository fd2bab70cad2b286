"""Schemes: a formula, a weight table and a local map each."""

from .base import Pulled, Scheme
from .differences import L1, GrunwaldLetnikov
from .one_stage import OneStage
from .stage_solvers import SOLVERS, FixedPoint, NewtonKrylov, StageSolver
from .multistep import Multistep
from .predictor import Predictor
from .trapezoid import ABM, Trapezoid

__all__ = [
    "ABM",
    "L1",
    "SOLVERS",
    "Pulled",
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
