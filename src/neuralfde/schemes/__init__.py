"""Schemes: each is a formula, a table of weights and a local map."""

from .banded import Banded
from .base import Pulled, Scheme
from .differences import L1, GrunwaldLetnikov
from .imex import IMEX
from .jacobian import Jacobian
from .krylov import Krylov
from .linear import Dense, Factor, Given, Linear
from .multistep import Multistep
from .newton import Newton
from .one_stage import OneStage, Predictor
from .sparse import Sparse
from .spectral import Spectral
from .stage_solvers import FixedPoint, Stages, StageSolver
from .trapezoid import ABM, Trapezoid

__all__ = [
    "ABM",
    "IMEX",
    "L1",
    "SOLVERS",
    "Banded",
    "Dense",
    "Factor",
    "FixedPoint",
    "Given",
    "GrunwaldLetnikov",
    "Jacobian",
    "Krylov",
    "Linear",
    "Multistep",
    "Newton",
    "OneStage",
    "Predictor",
    "Pulled",
    "Scheme",
    "Sparse",
    "Spectral",
    "StageSolver",
    "Stages",
    "Trapezoid",
]

#: Names for ``solver=``.
SOLVERS: dict[str, StageSolver] = {
    "auto": Newton(),
    "newton": Newton(),
    "dense": Newton(linear=Dense()),
    "banded": Newton(linear=Banded()),
    "sparse": Newton(linear=Sparse()),
    "krylov": Newton(linear=Krylov()),
    "fixed-point": FixedPoint(),
}
