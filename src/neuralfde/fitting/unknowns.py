"""The unknowns of a fit: named numbers, their bounds, and the unconstrained vector an optimiser moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError, nearest

#: The name of the order among the unknowns.
ORDER = "order"
#: The name of the initial states among the unknowns.
INITIAL = "initial"

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Bound:
    """An open interval as the image of the whole line: identity, ``lo + e^u``, ``hi - e^u`` or a scaled sigmoid."""

    low: float = -math.inf
    high: float = math.inf

    def inside(self, value: Tensor) -> bool:
        """Whether every number lies strictly between the bounds."""
        return bool(((value > self.low) & (value < self.high)).all())

    def to_free(self, value: Tensor) -> Tensor:
        """The unconstrained numbers of ``value``."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return torch.logit((value - self.low) / (self.high - self.low))
        if math.isfinite(self.low):
            return (value - self.low).log()
        if math.isfinite(self.high):
            return -(self.high - value).log()
        return value

    def to_value(self, free: Tensor) -> Tensor:
        """The numbers between the bounds; smooth in ``free``."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return self.low + (self.high - self.low) * torch.sigmoid(free)
        if math.isfinite(self.low):
            return self.low + free.exp()
        if math.isfinite(self.high):
            return self.high - (-free).exp()
        return free


@dataclass(frozen=True)
class Unknowns:
    """Names, shapes and bounds, in the order of the flat vector."""

    shapes: dict[str, tuple[int, ...]]
    bounds: dict[str, Bound]

    @property
    def size(self) -> int:
        """How many numbers are unknown."""
        return sum(math.prod(s) for s in self.shapes.values())

    def labels(self) -> list[str]:
        """One label for each number: the name, with an index where the unknown is not a scalar."""
        found = []
        for name, shape in self.shapes.items():
            index = [""]
            if shape:
                grid = torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape))
                index = ["[" + ",".join(str(i) for i in row) + "]" for row in grid.tolist()]
            found += [name + i for i in index]
        return found

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The flat vector as named tensors."""
        parts = flat.split([math.prod(s) for s in self.shapes.values()])
        return {n: p.reshape(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:
        """Named tensors as the flat vector."""
        return torch.cat([values[n].detach().double().reshape(-1) for n in self.shapes])

    def to_free(self, flat: Tensor) -> Tensor:
        """Natural numbers to unconstrained ones."""
        return torch.cat([self.bounds[n].to_free(v).reshape(-1) for n, v in self.split(flat).items()])

    def to_value(self, free: Tensor) -> Tensor:
        """Unconstrained numbers to natural ones."""
        return torch.cat([self.bounds[n].to_value(v).reshape(-1) for n, v in self.split(free).items()])

    def room(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """How far each number can move down (negative) and up before it meets a bound."""
        low, high = self.limits()
        return low - flat, high - flat

    def limits(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds along the flat vector."""
        low = [self.bounds[n].low for n, s in self.shapes.items() for _ in range(math.prod(s))]
        high = [self.bounds[n].high for n, s in self.shapes.items() for _ in range(math.prod(s))]
        return torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)


def bound_of(name: str, given: Any) -> Bound:
    """A pair ``(low, high)``, with None for an open side."""
    try:
        low, high = given
        return Bound(-math.inf if low is None else float(low), math.inf if high is None else float(high))
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError(f"{name}: {given!r:.60} must be a pair (low, high), with None for an open side.") from None


def unknowns_from(values: Mapping[str, Tensor], bounds: Mapping[str, Bounds]) -> Unknowns:
    """Check the bounds against the starting values and lay the unknowns out."""
    if not isinstance(bounds, Mapping):
        raise InputTypeError(f"bounds={bounds!r:.60} must be a dictionary such as {{'rate': (0, None)}}.")
    for name in bounds:
        if name not in values:
            raise InputError(f"bounds name {name!r}, which is not an unknown of this fit. {nearest(name, values)}")
    kept = {}
    for name, value in values.items():
        bound = bound_of(f"bounds of {name!r}", bounds.get(name, (None, None)))
        if not bound.low < bound.high:
            raise InputError(
                f"bounds of {name!r} are empty: ({bound.low:g}, {bound.high:g}). Give the smaller one first."
            )
        if not bound.inside(value.detach()):
            raise InputError(
                f"the initial value of {name!r}, {value.detach().tolist()}, is not strictly inside its bounds "
                f"({bound.low:g}, {bound.high:g}). Start inside them, or widen them."
            )
        kept[name] = bound
    return Unknowns({n: tuple(v.shape) for n, v in values.items()}, kept)
