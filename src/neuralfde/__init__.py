"""neuralfde: neural fractional differential equations in PyTorch, with exact gradients.

``fdeint`` solves an equation, ``solve`` also returns times and statistics, ``FDEBlock`` is a layer, and ``fit``
estimates parameters and orders from data. ``plan`` predicts the cost of a solve.
"""

import logging

from . import linear, operators
from .adjoints import Direct, Exact, Paper
from .api import Solution, Stats, fdeint, solve
from .errors import (
    AccuracyWarning,
    CapturedTensorError,
    ChangedFunctionError,
    ConvergenceError,
    InputError,
    InputTypeError,
    NonFiniteError,
    UnsupportedError,
)
from .estimate import plan, suggest_step
from .fitting import Fit, fit
from .history import FFT, Exponentials, Full, Window
from .nn import FDEBlock, FDECell
from .orders import Caputo, CustomKernel, DistributedOrder, MultiTerm, Tempered, VariableOrder
from .schemes import (
    ABM,
    IMEX,
    L1,
    Banded,
    Dense,
    FixedPoint,
    Given,
    GrunwaldLetnikov,
    Krylov,
    Multistep,
    Newton,
    Predictor,
    Sparse,
    Spectral,
    Trapezoid,
)
from .solve.steppers import CudaGraph, Kernel, Picard, Recorded, Single
from .special import mittag_leffler
from .storage import Checkpoint, Device, Host
from .time import Event

logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "ABM",
    "FFT",
    "IMEX",
    "L1",
    "AccuracyWarning",
    "Banded",
    "CapturedTensorError",
    "Caputo",
    "ChangedFunctionError",
    "Checkpoint",
    "ConvergenceError",
    "CudaGraph",
    "CustomKernel",
    "Dense",
    "Device",
    "Direct",
    "DistributedOrder",
    "Event",
    "Exact",
    "Exponentials",
    "FDEBlock",
    "FDECell",
    "Fit",
    "FixedPoint",
    "Full",
    "Given",
    "GrunwaldLetnikov",
    "Host",
    "InputError",
    "InputTypeError",
    "Kernel",
    "Krylov",
    "MultiTerm",
    "Multistep",
    "Newton",
    "NonFiniteError",
    "Paper",
    "Picard",
    "Predictor",
    "Recorded",
    "Single",
    "Solution",
    "Sparse",
    "Spectral",
    "Stats",
    "Tempered",
    "Trapezoid",
    "UnsupportedError",
    "VariableOrder",
    "Window",
    "fdeint",
    "fit",
    "linear",
    "mittag_leffler",
    "operators",
    "plan",
    "solve",
    "suggest_step",
]
