"""An independent solver: full matrices of weights as the literature has them, and a plain loop in autograd.

It shares nothing with the package but the mathematics, so that agreement means something.
"""

from .formulas import FORMULAS, formula
from .loop import solve
from .weights import Weights, custom, graded, several, tempered, uniform, with_velocity

__all__ = [
    "FORMULAS", "Weights", "custom", "formula", "graded", "several", "solve", "tempered", "uniform", "with_velocity",
]  # fmt: skip
