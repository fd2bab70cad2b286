"""The contract of an operator: the left-hand side of an equation, read into the weights of a scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import InputError
from ..schemes import ABM, L1, GrunwaldLetnikov, Multistep, Predictor, Scheme, Trapezoid
from ..tableaux import Kernel

#: Schemes whose weights follow from the scheme, the order and the step alone; one of a user's own may hold anything.
KNOWN = (ABM, GrunwaldLetnikov, L1, Multistep, Predictor, Trapezoid)
#: Longer tables are computed anew: they would take memory, and the steps they are for take far longer.
_MOST_NUMBERS = 1 << 13


@dataclass(frozen=True)
class Mesh:
    """The grid as the weights see it: each group of numbers has its own time, ``horizon · (t - t_0)``.

    Attributes:
        steps: the number of steps.
        elapsed: (steps + 1,), the times since the start, before they are multiplied by the horizon.
        start: the initial time, before it is multiplied.
        uniform: whether all steps have one length.
        horizon: (groups,), the factor of each group.
        velocity: whether ``z'_0`` is given too.
    """

    steps: int
    elapsed: Tensor
    start: float
    uniform: bool
    horizon: Tensor
    velocity: bool

    @property
    def step(self) -> Tensor:
        """The (mean) length of a step in each group, (groups,)."""
        return self.elapsed[-1] / self.steps * self.horizon

    @property
    def times(self) -> Tensor:
        """The time since the start of each point in each group, (steps + 1, groups)."""
        return self.elapsed[:, None] * self.horizon

    def at(self, position: float) -> Tensor:
        """The time since the start at a position counted in steps, (groups,)."""
        low = min(int(position), self.steps - 1)
        between = self.elapsed[low] + (position - low) * (self.elapsed[low + 1] - self.elapsed[low])
        return between * self.horizon


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


def plain(order: Tensor, scheme: Scheme, mesh: Mesh) -> Kernel:
    """The scheme's own weights for one order in each group, with the initial values it needs."""
    check_order(order, scheme, mesh.velocity)
    if mesh.uniform:
        kernel = _on_uniform(order, mesh.step, mesh.steps, scheme)
    else:
        kernel = scheme.kernel_on(order[None], mesh.times)
    if not mesh.velocity:
        return kernel
    second = (order > 1).to(torch.float64)  # an order up to 1 has one initial value

    def line(t: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(t), t * second])

    return replace(kernel, base=line(mesh.times), dense_base=lambda p: line(mesh.at(p)))


def _on_uniform(order: Tensor, step: Tensor, steps: int, scheme: Scheme) -> Kernel:
    """The scheme's weights; a table of numbers that get no gradient is found again if it was computed before."""
    learned = any(x.requires_grad or forward_ad.unpack_dual(x).tangent is not None for x in (order, step))
    if learned or type(scheme) not in KNOWN or order.numel() * (steps + 1) > _MOST_NUMBERS:
        return scheme.kernel(order, step, steps)
    return _kept(scheme, tuple(order.tolist()), tuple(step.tolist()), steps, torch.is_inference_mode_enabled())


@lru_cache(maxsize=32)
def _kept(scheme: Scheme, order: tuple[float, ...], step: tuple[float, ...], steps: int, inference: bool) -> Kernel:
    """``inference`` is part of the key: a tensor made in inference mode is of no use to a later backward pass."""
    return scheme.kernel(torch.tensor(order, dtype=torch.float64), torch.tensor(step, dtype=torch.float64), steps)


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
