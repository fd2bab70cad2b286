"""One table of names for each choice of a solve; an object is always accepted in place of a name."""

from __future__ import annotations

from ..adjoints import Adjoint, Direct, Exact, Paper
from ..history import FFT, Exponentials, Full, History
from ..schemes import ABM, IMEX, L1, SOLVERS, GrunwaldLetnikov, Multistep, Predictor, Scheme, Trapezoid
from ..solve.steppers import STEPPERS
from ..storage import Checkpoint, Device, Host, Storage

__all__ = ["ADJOINTS", "HISTORIES", "METHODS", "SOLVERS", "STEPPERS", "STORAGES"]

METHODS: dict[str, Scheme] = {
    "predictor": Predictor(),
    "predictor-implicit": Predictor(implicit=True),
    "abm": ABM(),
    "trapezoid": Trapezoid(),
    "gl": GrunwaldLetnikov(),
    "gl-explicit": GrunwaldLetnikov(implicit=False),
    "l1": L1(),
    "l1-explicit": L1(implicit=False),
    "bdf2": Multistep(),
    "flmm-trapezoid": Multistep(rule="trapezoid"),
    "imex": IMEX(),
}
ADJOINTS: dict[str, Adjoint] = {"exact": Exact(), "direct": Direct(), "paper": Paper()}
HISTORIES: dict[str, History | None] = {
    "auto": None,
    "full": Full(),
    "fft": FFT(),
    "window": None,
    "exponentials": Exponentials(),
}
STORAGES: dict[str, Storage | None] = {"auto": None, "device": Device(), "host": Host(), "checkpoint": Checkpoint()}
