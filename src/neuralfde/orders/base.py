"""The contract of an operator: the left-hand side of an equation, read into the weights of a scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.grid import Mesh
from ..errors import InputError
from ..schemes import Scheme
from ..weights.kernel import Kernel


class Operator(ABC):
    """A linear fractional operator ``D`` in ``D z = f(t, z)``; a frozen description, exported and given as ``order=``.

    Attributes:
        toeplitz: its weights depend on the lag alone, on a uniform grid.
    """

    toeplitz: bool = True

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """What defines it: numbers or tensors that broadcast to the state, by name; gradients flow to them."""

    @abstractmethod
    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        """The weights for these numbers, each (groups,)."""


def check_order(order: Tensor, scheme: Scheme, velocity: bool, lowest: float = 0.0, name: str = "order") -> None:
    """Raise unless every order can be used with this scheme and these initial values."""
    values = order.detach()
    least, top = (float(x) for x in torch.aminmax(values))  # not a number if any of them is none
    if not (least > lowest and top <= 2):
        bad = values[~((values > lowest) & (values <= 2))][0]
        raise InputError(
            f"{name}={float(bad):g} is outside (0, 1], or (0, 2] with velocity= as a second initial value. "
            "For a higher order write the equation as a system of orders in that range. "
            "(Arguments stand as func, z0, t, order.)"
        )
    if top > scheme.max_order:
        raise InputError(
            f"{name}={top:g} is outside (0, {scheme.max_order:g}], the orders of {type(scheme).__name__}. "
            "Orders up to 2 need method='predictor', 'abm', 'trapezoid' or 'gl'."
        )
    if top > 1 and not velocity:
        raise InputError(
            f"{name}={top:g} is outside (0, 1] and needs a second initial value: pass velocity= with z'(0), "
            "in the structure of z0 (zeros for a start at rest), or write the equation as a system of orders up to 1."
        )
    if top <= 1 and velocity:
        raise InputError(f"velocity= is given, but {name}={top:g} takes one initial value. Drop velocity=.")


def stacked(numbers: dict[str, Tensor], prefix: str) -> Tensor:
    """The numbers ``prefix[0]``, ``prefix[1]``, … as one tensor (count, groups)."""
    return torch.stack([x for name, x in numbers.items() if name.startswith(prefix + "[")])


def items(name: str, values: Any) -> list[Any]:
    """A sequence of numbers or tensors as a list; a tensor is taken apart along its first axis."""
    if isinstance(values, Tensor) and values.ndim > 0:
        return list(values.unbind(0))
    if isinstance(values, Sequence) and not isinstance(values, str):
        return list(values)
    raise InputError(f"{name} must be a sequence of numbers or a tensor with one entry per term, got {values!r}.")
