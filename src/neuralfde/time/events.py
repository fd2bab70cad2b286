"""Events: where a function of the state crosses zero, found on the continuous output, with the gradient of its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.checks import function, misfit
from ..base.policy import EVENT_EARLY
from ..base.structure import Structure
from ..base.torch_private import pytree
from ..errors import ConvergenceError, InputError, InputTypeError

#: Where the continuous output is looked at inside a cell that holds a root: Chebyshev's points, as shares of the cell.
SHARES = tuple(0.5 - 0.5 * math.cos((2 * k + 1) * math.pi / 8) for k in range(4))


@dataclass(frozen=True)
class Event:
    """What happens where ``fn(t, z, *args)`` crosses zero; passed as ``event=``.

    Args:
        fn: returns one number for the whole state (a 0-d tensor), or one per sample, (batch,). Then each sample has its
            own event, and the first axis of every tensor of the state is the batch.
        direction: 1 counts upward crossings, -1 downward ones, 0 both.
        terminal: the solve ends at the event, and the state stays constant. With False the times are only recorded.
        reset: a function from the state before the event to the state after it. Instead of ending, the solve continues
            from there.
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
        try:
            found = self.fn(t, z, *args)
        except TypeError as error:
            why = misfit(self.fn, t, z, *args)
            if why is None:
                raise
            raise InputTypeError(
                f"event cannot be called as event({', '.join(['t', 'z', *['…'] * len(args)])}): {why}. It takes what "
                "func takes: the time, the state, and what is in args=."
            ) from error
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise InputTypeError("event must return a tensor of real numbers, which cross zero where it happens.")
        batch = {shape[0] if shape else 0 for shape in structure.shapes}
        if found.ndim > 0 and not (found.ndim == 1 and batch == {found.shape[0]}):
            raise InputError(
                f"event returned shape {tuple(found.shape)}: return one number (a 0-d tensor) for the whole state, or "
                "one for each sample, (batch,), where the first axis of the state is the batch."
            )
        return found

    def crossed(self, before: Tensor, after: Tensor) -> Tensor:
        """Whether ``fn`` has crossed zero between these values."""
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
    """The states of one sample between two times, at ``SHARES`` of the way, stacked first.

    If the solution begins at ``first``, the start or the time of a jump, there is nothing before; otherwise it is -∞.
    """

    start: float
    end: float
    states: Any
    first: float

    def time(self, share: Tensor) -> Tensor:
        """The time at a share of the cell."""
        return self.start + (self.end - self.start) * share

    def state(self, share: Tensor) -> Any:
        """The state there: the cubic through what is known."""
        weights: list[Any] = [math.prod((share - y) / (x - y) for y in SHARES if y != x) for x in SHARES]
        # no matrix product, which autocast would round
        return pytree.tree_map(lambda z: sum(w.to(z) * x for w, x in zip(weights, z, strict=True)), self.states)

    @property
    def least(self) -> float:
        """The share of ``first``."""
        return (self.first - self.start) / (self.end - self.start)

    def moment(self, share: Tensor) -> Moment:
        """The time and the state at this share, not before ``first``."""
        share = share + (share.detach().clamp(min=self.least) - share.detach())  # its gradient stays
        return Moment(self.time(share), self.state(share))


def support(a: float, b: float, jumps: Container[float]) -> tuple[float, float]:
    """Where the state in a cell is sampled: not next to a jump, whose time has a gradient that samples would need."""
    if a not in jumps and b not in jumps:
        return a, b
    unit = 2.0 ** (math.floor(math.log2(b - a)) - 4)
    return math.ceil(a / unit) * unit, math.floor(b / unit) * unit


def early(first: float, next_: float, size: float) -> list[float]:
    """Times after ``first`` and before ``next_``, between which a solution that begins like a power there is smooth.

    They are rounded, so that they stay where they are if ``first`` is the time of a jump and moves a little. The
    ``size`` of the times of the solve says how close to each other they can be.
    """
    found = []
    for k in range(1, EVENT_EARLY + 1):
        width = (next_ - first) * 2.0**-k
        if width < 64 * torch.finfo(torch.float64).eps * size:
            break
        unit = 2.0 ** (math.floor(math.log2(width)) - 4)
        found.append(round((first + width) / unit) * unit)
    return found


def samples_of(low: float, high: float) -> list[float]:
    """The times at which the state is sampled there."""
    return [low + (high - low) * s for s in SHARES]


def root(cell: Cell, value: Callable[[Tensor, Any], Tensor]) -> Moment:
    """When ``value(t, z)`` is zero in a cell, and the state then; both with their gradients.

    Two steps of Newton's method from the root on give its first and second derivatives, those of the implicit function
    theorem.
    """

    def at(share: Tensor) -> Tensor:
        return value(cell.time(share).to(like), cell.state(share))

    like: Tensor = pytree.tree_leaves(cell.states)[0]
    with torch.no_grad():
        share = _located(lambda x: float(at(like.new_tensor(x, dtype=torch.float64))), cell.least)
    if share is None and cell.least > -math.inf:
        raise _too_soon(cell)
    if share is None:
        raise ConvergenceError(
            f"event changes its sign between t={cell.start:g} and {cell.end:g}, but the state between does not lead it "
            "through zero: an event that is not continuous has no root. Let it cross zero, or use shorter steps."
        )
    here = like.new_tensor(share, dtype=torch.float64)
    if not at(here).requires_grad:  # nothing that the time depends on is learned
        return cell.moment(here)
    if -math.inf < cell.least and share < SHARES[0]:
        raise _too_soon(cell)
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
    return cell.moment(here)


def _too_soon(cell: Cell) -> ConvergenceError:
    return ConvergenceError(
        f"the event happens within {cell.end - cell.first:.1g} after t={cell.first:g}, where the solution or a part of "
        "it begins, too soon for steps of this length to say when. Use shorter steps there: steps to a tolerance "
        "(rtol=), grading=2 or grid=; or begin further away from the event."
    )


def _located(value: Callable[[float], float], least: float) -> float | None:
    """Where a function changes its sign in [0, 1], or nearby: the points inside may have moved it a little.

    There is nothing before ``least``.

    Illinois' variant of the false position: of the two ends that hold the root the one that stays counts half.
    """
    for low, high in ((max(0.0, least), 1.0), (max(-0.5, least), 1.5)):
        first, last = value(low), value(high)
        if first * last <= 0:
            break
    else:
        return None
    for _ in range(60):
        if last == 0 or first == last:
            break
        middle = high - last * (high - low) / (last - first)
        found = value(middle)
        low, first = (high, last) if found * last < 0 else (low, first / 2)
        moved, high, last = abs(middle - high), middle, found
        if moved < 1e-14:
            break
    return high


def times_of(happened: list[list[Moment]], ends: bool, own: bool, like: Tensor) -> Tensor:
    """The times of all samples, infinite for none: the first of each where the solve ends, all stacked first if not."""
    never = torch.tensor(math.inf, dtype=torch.float64, device=like.device)
    most = 1 if ends else max(map(len, happened))
    rows = [torch.stack([x[n].at.to(never) if n < len(x) else never for x in happened]) for n in range(most)]
    noted = torch.stack(rows) if rows else never.new_zeros(0, len(happened))
    noted = (noted if own else noted[:, 0]).to(like)
    return noted[0] if ends else noted
