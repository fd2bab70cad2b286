"""What a solve starts from besides the initial state: a window of observed states, or a velocity.

``past=`` also accepts a solve to resume (:mod:`.resume`). The two have only the argument and the initial state in
common: a resumed solve has slopes, which each sum of a scheme weighs differently; a window has states, whose weights
are those of an integral, the same for all sums.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.checks import reals
from ..base.grid import read_times
from ..base.policy import WHOLE_SLACK
from ..base.structure import Structure, alike, all_finite, as_numbers, extent, structure_of
from ..base.torch_private import pytree, value_of
from ..errors import InputError, InputTypeError, UnsupportedError
from ..history import History, Window
from ..orders import Caputo, Operator
from ..weights.observed import observed
from .resume import State


class Observed(NamedTuple):
    """The age of each sample at the start, (samples,), descending to 0, and the samples: (samples, groups, width)."""

    back: Tensor
    rows: Tensor

    def base(self, order: Tensor, ahead: Tensor) -> Tensor:
        """The weights of the samples at these times since the start, (samples, times, groups).

        The last sample, which is the initial state, comes first.
        """
        return observed(order, self.back, ahead).roll(1, 0)

    def at(self, order: Tensor, ahead: float) -> Tensor:
        """The contribution of the window at this time since the start, (groups, width), without gradient."""
        weights = observed(order, self.back, torch.tensor([ahead], dtype=torch.float64))[:, 0]
        return (weights.to(self.rows)[..., None] * self.rows.detach()).sum(0)  # no product that autocast would round


def initial_state(z0: Any, past: Any) -> Any:
    """The initial state of a solve with ``past=``: the last sample of a window, with which ``z0`` must agree if given.

    A resumed solve starts from its own last state; ``z0`` then only gives the structure.
    """
    if torch.compiler.is_exporting():
        raise UnsupportedError("past= cannot be exported: its values are looked at. Export single steps with FDECell.")
    if isinstance(past, State):
        return past.template() if z0 is None else z0
    if not isinstance(past, tuple | list) or len(past) != 2:
        raise InputTypeError(
            "past= must be a pair (times, states), with states like z0 stacked along a first axis, or the .state of a "
            "solution to continue."
        )
    if any(not isinstance(x, Tensor) or x.ndim == 0 or x.shape[0] == 0 for x in pytree.tree_leaves(past[1])):
        raise InputTypeError("the states of past= must be tensors with the times along a first axis.")
    last = pytree.tree_map(lambda x: x[-1], past[1])
    if z0 is not None:
        pairs = zip(pytree.tree_leaves(z0), pytree.tree_leaves(last), strict=False)
        if not alike(z0, last) or not all(_same(a, b) for a, b in pairs):
            raise InputError("z0 is not the last state of past=: pass z0=None, which takes the last state.")
    return last


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether all elements agree to the digits of float32, or to those of the largest, whatever the scale of both."""
    size = extent(b.abs())
    near = (a - b).abs() <= 1e-5 * b.abs() + 1e-8 * size
    return math.isfinite(size) and bool(value_of(near).all())


def read_past(past: Any, structure: Structure, t: float | Tensor) -> Observed:
    """Read ``(times, states)`` as a user gives them; times increase up to the initial time."""
    given = reals("the times of past=", past[0]).double().reshape(-1)
    if len(given) < 2:
        raise InputError("past= is a window of at least two times; a single state is z0: leave past= out.")
    times, _ = read_times(given, "the times of past=")
    start = read_times(t)[0][0]
    if abs(times[-1] - start) > WHOLE_SLACK * (times[-1] - times[0]):
        raise InputError(
            f"the last time of past= is {times[-1]:g}, but the solve begins at {start:g}: they must be the same. With "
            "a number t a solve begins at 0; to begin elsewhere pass t=torch.tensor([start, ..., end])."
        )
    leaves = pytree.tree_leaves(past[1])
    if any(x.shape[0] != len(times) for x in leaves):
        raise InputError(
            f"past= has {len(times)} times and must have as many states, got {[tuple(x.shape) for x in leaves]}."
        )
    rows = torch.stack([structure.pack(pytree.tree_map(lambda x, k=k: x[k], past[1])) for k in range(len(times))])
    if not all_finite(rows):
        raise InputError("the states of past= contain NaN or infinity: leave such samples out.")
    at = torch.tensor(times, dtype=torch.float64)
    return Observed(at[-1] - at, rows)


def refuse_past(operator: Operator, numbers: dict[str, Tensor], more: bool, history: History | None = None) -> None:
    """Raise if a window of observed states cannot be used; ``more``: a velocity is given too."""
    if not isinstance(operator, Caputo) or float(value_of(numbers["order"]).max()) > 1:
        raise InputError("past= is only for orders of Caputo's derivative up to 1, where a window has known slopes.")
    if more:
        raise InputError("past= says how a solve begins: leave velocity= out.")
    if isinstance(history, Window):
        raise InputError("past= contributes to all later states, but a Window forgets it. Use another history.")


def read_velocity(velocity: Any, structure: Structure) -> Tensor:
    """``z'(0)`` as a row (groups, width)."""
    velocity = as_numbers(velocity)
    given = structure_of(velocity, "velocity")
    if replace(given, spans=structure.spans) != structure:
        raise InputTypeError(
            "velocity must have the structure, shapes, dtype and device of z0: it is z'(0), one number for each of z0."
        )
    return structure.pack(velocity)
