"""The left-hand side of an equation: Caputo's derivative and related operators, all learnable."""

from .base import Operator
from .caputo import KNOWN, Caputo, Tempered, read_order
from .custom import CustomKernel
from .multiterm import DistributedOrder, MultiTerm
from .rows import VariableOrder

__all__ = [
    "KNOWN",
    "Caputo",
    "CustomKernel",
    "DistributedOrder",
    "MultiTerm",
    "Operator",
    "Tempered",
    "VariableOrder",
    "read_order",
]
