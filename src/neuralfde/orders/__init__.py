"""The left-hand side of an equation: Caputo's derivative and its relatives, all learnable."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import InputTypeError
from .base import KNOWN, Mesh, Operator
from .caputo import Caputo, Tempered
from .custom import CustomKernel
from .multiterm import DistributedOrder, MultiTerm
from .rows import VariableOrder

__all__ = [
    "KNOWN",
    "Caputo",
    "CustomKernel",
    "DistributedOrder",
    "Mesh",
    "MultiTerm",
    "Operator",
    "Tempered",
    "VariableOrder",
    "read_order",
]


def read_order(order: Any) -> Operator:
    """The operator a user gives; numbers, tensors and structures of them are orders of Caputo derivatives."""
    if isinstance(order, Operator):
        return order
    if isinstance(order, bool) or not isinstance(order, int | float | Tensor | tuple | list | dict):
        raise InputTypeError(
            f"order must be a number, a tensor, a structure of them like z0, or an operator such as MultiTerm; "
            f"got {type(order).__name__}."
        )
    return Caputo(order)
