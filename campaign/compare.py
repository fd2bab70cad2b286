"""When two results are the same: rounding times work, times how much the problem itself magnifies an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neuralfde.door.names import METHODS

from .case import Failed

#: Roundings that one step may cost: a sum over the past, one evaluation of ``func``, one product backward.
ROUNDINGS = 32
#: A gradient this much smaller than the largest one is a difference of numbers of its size.
SMALL = 1e-3
#: The parts of a state.
STATE = ("x0", "y0")
#: The parts of its first derivative.
VELOCITY = ("velocity", "other_velocity")


@dataclass(frozen=True)
class Result:
    """States (times, numbers), and the gradient of each tensor by name, None where autograd has none."""

    ys: Tensor
    grads: dict[str, Tensor | None]


def allowed(dtype: torch.dtype, steps: int, implicit: bool) -> float:
    """``ROUNDINGS`` a step and for eight more; where stages are solved, their tolerance a step in addition."""
    like = torch.zeros((), dtype=dtype)
    stage = METHODS["gl"].solver.tolerance(like) if implicit else 0.0  # type: ignore[attr-defined]
    return (ROUNDINGS * torch.finfo(dtype).eps + stage) * (steps + 8)


def distances(found: Result, right: Result) -> dict[str, float]:
    """The largest difference in each tensor, relative to its largest number; a gradient of None counts as zeros.

    The parts of a nested state are one vector to the solver, and so are those of its velocity: sums are rounded as the
    largest numbers of it are.
    """
    if not bool(torch.isfinite(found.ys).all()):
        raise Failed("not finite: the states")
    apart = {"states": _apart(found.ys, right.ys, 0.0)}
    sizes = [float(g.abs().max()) for g in right.grads.values() if g is not None]
    least = SMALL * max(sizes, default=0.0)
    whole = {name: _largest(right.grads, parts) for parts in (STATE, VELOCITY) for name in parts}
    for name, right_grad in right.grads.items():
        one, other = found.grads[name], right_grad
        if one is None and other is None:
            continue
        one = torch.zeros_like(other) if one is None else one  # type: ignore[arg-type]
        floor = max(least, whole.get(name, 0.0))
        apart[f"gradient of {name}"] = _apart(one, torch.zeros_like(one) if other is None else other, floor)
    return apart


def demand_equal(
    found: Result, right: Result, tolerance: float, conditioning: Callable[[], float] | None = None
) -> float:
    """How much of the tolerance was used; raises where all of it. ``conditioning`` is asked only if needed."""
    apart = distances(found, right)
    worst = max(apart, key=lambda name: apart[name])
    if apart[worst] > tolerance and conditioning is not None:
        tolerance *= conditioning()
    if apart[worst] <= tolerance:
        return apart[worst] / tolerance
    more = ", ".join(f"{name} {x:.1e}" for name, x in apart.items())
    raise Failed(f"differ: {worst} by {apart[worst]:.1e}, allowed {tolerance:.1e} ({more})")


def _largest(grads: dict[str, Tensor | None], names: tuple[str, ...]) -> float:
    return max((float(g.abs().max()) for name in names if (g := grads.get(name)) is not None), default=0.0)


def _apart(a: Tensor, b: Tensor, least: float) -> float:
    if a.shape != b.shape:
        raise Failed(f"another shape: {tuple(a.shape)} in place of {tuple(b.shape)}")
    if not a.numel():
        return 0.0
    a, b = a.double(), b.double()
    gap = float((a - b).abs().max())
    if not math.isfinite(gap):
        return math.inf
    return gap / max(float(b.abs().max()), least) if gap else 0.0
