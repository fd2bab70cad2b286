"""A test problem: an equation, where it comes from, and what its solution is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True)
class Problem:
    """``D z = func(t, z)``, ``z(0) = z0`` on [0, t], in float64.

    Attributes:
        name: what it is called in tables.
        func: the right-hand side.
        z0: the initial state, a 1-D tensor.
        t: the end time.
        order: as ``fdeint`` takes it: a number, a tensor or an operator.
        source: who posed it, and what was chosen here.
        exact: the solution at a 0-d time, or its first components, or None.
        reference: the solution at the end time to at least 1e-10, where there is no closed form.
        options: what ``fdeint`` needs besides: ``velocity``, or the only ``method`` that can solve it.
        smooth: whether the solution is smooth at 0, so that schemes reach their full order.
    """

    name: str
    func: Callable[..., Tensor]
    z0: Tensor
    t: float
    order: Any
    source: str
    exact: Callable[[Tensor], Tensor] | None = None
    reference: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)
    smooth: bool = False

    def solution(self, t: float | Tensor | None = None) -> Tensor:
        """The solution at the time ``t``, by default at the end."""
        time = torch.as_tensor(self.t if t is None else t, dtype=torch.float64)
        if time.ndim > 0:
            raise InputError(f"t has shape {tuple(time.shape)} and must be one time: call it for each.")
        if self.exact is not None:
            return self.exact(time)
        assert self.reference is not None
        if float(time) != self.t:
            raise InputError(f"{self.name}: the reference value is known at t={self.t:g} only. Leave t out.")
        return self.reference

    def error(self, state: Tensor) -> float:
        """The largest error of a state at the end time, in the components whose solution is known."""
        known = self.solution()
        return float((state.detach().double().cpu()[: known.shape[0]] - known).abs().max())


def vector(*values: float) -> Tensor:
    """A float64 state."""
    return torch.tensor(values, dtype=torch.float64)


def gamma(x: float | Tensor) -> Tensor:
    """Γ(x) for x > 0."""
    return torch.exp(torch.lgamma(torch.as_tensor(x, dtype=torch.float64)))
