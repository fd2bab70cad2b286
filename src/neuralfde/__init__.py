"""neuralfde: neural fractional differential equations in PyTorch, with exact gradients."""

import logging

from .adjoints import Direct, Exact, Paper
from .api import Solution, Stats, fdeint, plan, solve
from .errors import CapturedTensorError, ConvergenceError, InputError, InputTypeError, NonFiniteError, UnsupportedError
from .history import FFT, Exponentials, Full, Window
from .nn import FDEBlock
from .schemes import ABM, L1, FixedPoint, GrunwaldLetnikov, NewtonKrylov, Predictor, Trapezoid
from .storage import Checkpoint, Device, Host

logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = [
    "ABM",
    "FFT",
    "L1",
    "CapturedTensorError",
    "Checkpoint",
    "ConvergenceError",
    "Device",
    "Direct",
    "Exact",
    "Exponentials",
    "FDEBlock",
    "FixedPoint",
    "Full",
    "GrunwaldLetnikov",
    "Host",
    "InputError",
    "InputTypeError",
    "NewtonKrylov",
    "NonFiniteError",
    "Paper",
    "Predictor",
    "Solution",
    "Stats",
    "Trapezoid",
    "UnsupportedError",
    "Window",
    "fdeint",
    "plan",
    "solve",
]
