"""The order of an equation as a user gives it, read into what the weights are computed from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .errors import InputError, InputTypeError
from .structure import Structure


def read_order(order: float | Tensor, structure: Structure) -> Tensor:
    """The order as a float64 tensor of shape (groups,), on the CPU where weights are computed."""
    if isinstance(order, Tensor):
        if not order.is_floating_point():
            raise InputTypeError(f"order must be a real number, got a tensor of dtype {order.dtype}.")
        if order.numel() != 1:
            raise InputError(
                f"order has shape {tuple(order.shape)}; one order for the whole state is a number or a tensor of one "
                f"element. The state has {structure.numel} numbers."
            )
        beta = order.reshape(1).to(device="cpu", dtype=torch.float64)
    elif isinstance(order, int | float) and not isinstance(order, bool):
        beta = torch.tensor([float(order)], dtype=torch.float64)
    else:
        raise InputTypeError(f"order must be a number or a tensor, got {type(order).__name__}.")
    value = float(beta.detach())
    if not (math.isfinite(value) and 0 < value <= 1):
        raise InputError(
            f"order={value:g} is outside (0, 1]: a Caputo equation with one initial value has an order in that range. "
            "For a higher order write the equation as a system of orders up to 1."
        )
    return beta
