"""Schemes: a formula, a weight table and a local map each."""

from .base import Pulled, Scheme
from .differences import L1, GrunwaldLetnikov
from .multistep import Multistep
from .one_stage import OneStage
from .predictor import Predictor
from .stage_solvers import SOLVERS, FixedPoint, NewtonKrylov, StageSolver
from .trapezoid import ABM, Trapezoid

__all__ = [
    "ABM",
    "L1",
    "SOLVERS",
    "FixedPoint",
    "GrunwaldLetnikov",
    "Multistep",
    "NewtonKrylov",
    "OneStage",
    "Predictor",
    "Pulled",
    "Scheme",
    "StageSolver",
    "Trapezoid",
]
