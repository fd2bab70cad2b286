"""The contract of an operator: the left-hand side of an equation, turned into the weights of a scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import checks
from ..base.grid import Mesh
from ..errors import InputError, InputTypeError
from ..schemes import Scheme
from ..weights.kernel import Kernel


class Operator(ABC):
    """A linear fractional operator ``D`` in ``D z = f(t, z)``, passed as ``order=``; a frozen description.

    Attributes:
        toeplitz: on a uniform grid, its weights depend only on the lag.
    """

    toeplitz: bool = True

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """The numbers that define it, or tensors that broadcast to the state, by name; they get gradients."""

    def check(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> None:  # noqa: B027
        """Raise if there are no weights for these numbers; ``plan`` calls it, and ``kernel`` must refuse the same."""

    @abstractmethod
    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        """The weights for these numbers, each (groups,)."""


def stacked(numbers: dict[str, Tensor], prefix: str) -> Tensor:
    """The numbers ``prefix[0]``, ``prefix[1]``, … as one tensor (count, groups)."""
    return torch.stack([x for name, x in numbers.items() if name.startswith(prefix + "[")])


def items(name: str, values: Any) -> list[Any]:
    """A sequence of numbers or tensors as a list; a tensor is split along its first axis."""
    if isinstance(values, Tensor) and values.ndim > 0:
        return list(values.unbind(0))
    if isinstance(values, Sequence) and not isinstance(values, str):
        return list(values)
    raise InputError(f"{name} must be a sequence of numbers or a tensor with one entry per term, got {values!r}.")


def reals(name: str, values: Any) -> Tensor:
    """The numbers of a user's function or sequence as a float64 tensor on the CPU."""
    found = checks.reals(name, values)
    if found.dtype == torch.bool:
        raise InputTypeError(f"{name} must be real numbers, got a tensor of dtype {found.dtype}.")
    return found.to(device="cpu", dtype=torch.float64)
