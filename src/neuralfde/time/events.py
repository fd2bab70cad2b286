"""Events: where a function of the state crosses zero, found on the continuous output, with the gradient of its time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.checks import function
from ..base.structure import Structure
from ..base.torch_private import pytree
from ..errors import ConvergenceError, InputError, InputTypeError

#: Where the continuous output is looked at inside a cell that holds a root: Chebyshev's points, as shares of the cell.
SHARES = tuple(0.5 - 0.5 * math.cos((2 * k + 1) * math.pi / 8) for k in range(4))


@dataclass(frozen=True)
class Event:
    """What happens where ``fn(t, z, *args)`` crosses zero.

    Args:
        fn: one number for the whole state (a 0-d tensor), or one for each sample, (batch,): then each sample has its
            own event, and the first axis of every tensor of the state is the batch.
        direction: 1 counts crossings upwards, -1 downwards, 0 both.
        terminal: the solve ends there: the state stays what it is. With False the times are noted and nothing else.
        reset: a function from the state before the event to the state after it, in place of an end: the state jumps,
            and the solve goes on.
    """

    fn: Callable[..., Any]
    direction: int = 0
    terminal: bool = True
    reset: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        function("event", self.fn, "event(t, z, *args)")
        if self.direction not in (-1, 0, 1):
            raise InputError(
                f"Event(direction={self.direction!r}) must be 1 (upwards), -1 (downwards) or 0, which counts both."
            )
        if self.reset is not None:
            function("reset", self.reset, "reset(z)")

    def value(self, t: Tensor, z: Any, args: tuple[Any, ...], structure: Structure) -> Tensor:
        """``fn`` at one time, checked: a 0-d tensor, or (batch,)."""
        found = self.fn(t, z, *args)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise InputTypeError("event must return a tensor of real numbers, which cross zero where it happens.")
        batch = {shape[0] if shape else 0 for shape in structure.shapes}
        if found.ndim > 0 and not (found.ndim == 1 and batch == {found.shape[0]}):
            raise InputError(
                f"event returned shape {tuple(found.shape)}: return one number (a 0-d tensor) for the whole state, or "
                "one for each sample, (batch,), where the first axis of the state is the batch."
            )
        return found

    def crossings(self, values: Tensor) -> Tensor:
        """Whether ``fn`` crosses zero between two of these times, (times - 1, …) for values (times, …)."""
        before, after = values[:-1], values[1:]
        up, down = (before < 0) & (after >= 0), (before > 0) & (after <= 0)
        return up | down if self.direction == 0 else up if self.direction > 0 else down


class Moment(NamedTuple):
    """A time, 0-d float64 with its gradient, and a state in its structure."""

    at: Tensor
    state: Any

    @property
    def when(self) -> float:
        """The time as a number."""
        return float(self.at.detach())


@dataclass(frozen=True)
class Cell:
    """The states of one sample in a cell [start, end] of the mesh, at ``SHARES`` of it, stacked first."""

    start: float
    end: float
    states: Any

    def time(self, share: Tensor) -> Tensor:
        """The time at a share of the cell."""
        return self.start + (self.end - self.start) * share

    def state(self, share: Tensor) -> Any:
        """The state there: the cubic through what is known."""
        weights = []
        for x in SHARES:
            others = [y for y in SHARES if y != x]
            weights.append(math.prod([(share - y) / (x - y) for y in others], start=torch.ones_like(share)))
        rows = torch.stack(weights)
        return pytree.tree_map(lambda z: torch.tensordot(rows.to(z), z, 1), self.states)


def root(cell: Cell, value: Callable[[Tensor, Any], Tensor]) -> Moment:
    """When ``value(t, z)`` is zero in a cell, and the state then; both with their gradients.

    Two steps of Newton's method from the root on give its first and second derivatives, those of the implicit function
    theorem.
    """

    def at(share: Tensor) -> Tensor:
        return value(cell.time(share).to(like), cell.state(share))

    like: Tensor = pytree.tree_leaves(cell.states)[0]
    with torch.no_grad():
        share = _bisected(lambda x: float(at(like.new_tensor(x, dtype=torch.float64))))
    here = like.new_tensor(share, dtype=torch.float64)
    if not at(here).requires_grad:  # nothing that the time depends on is learned
        return Moment(cell.time(here), cell.state(here))
    here = here.requires_grad_()
    for _ in range(2):
        e = at(here).double()
        (slope,) = torch.autograd.grad(e, here, create_graph=True)
        if float(slope.detach()) == 0:
            raise ConvergenceError(
                f"the event at t={float(cell.time(here.detach())):g} touches zero and does not cross it: its time has "
                "no derivative. Detach it, or move the threshold."
            )
        here = here - e / slope
    return Moment(cell.time(here), cell.state(here))


def _bisected(value: Callable[[float], float]) -> float:
    """Where a function changes its sign in [0, 1], or nearby, where the points inside have moved it."""
    for low, high in ((0.0, 1.0), (-0.5, 1.5)):
        first, last = value(low), value(high)
        if first * last <= 0:
            break
    else:
        return low if abs(first) < abs(last) else high
    for _ in range(48):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) * first > 0 else (low, middle)
    return high
