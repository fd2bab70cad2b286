"""From a tolerance to a mesh: a march without gradients finds steps that meet the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.grid import Grid, read_times
from ..base.structure import Structure, all_finite, structure_of
from ..base.times import times_of_series
from ..base.torch_private import (
    derivatives_are_watched,
    is_mapped,
    layers,
    value_of,
    values_alone,
    without_tangent,
)
from ..errors import InputError, UnsupportedError
from ..orders import read_order
from ..orders.caputo import check_order
from ..rhs.field import Field
from ..rhs.first import first_evaluation
from ..schemes import IMEX, Trapezoid
from ..solve.delays import lags_of
from ..time import read_jumps
from ..time.controller import Tolerance
from ..time.search import Equation, Found, find_mesh, refuse_hopeless
from .lags import delays_of
from .meshes import refuse_jumps, why_not_fading
from .observed import Observed, read_past, refuse_past
from .own_time import in_own_time
from .semilinear import joined
from .validation import Options, read_args, read_numbers, read_scheme


class Adapted(NamedTuple):
    """The mesh that the march found; the solve halves its steps, so that errors are ``gain + 1`` times smaller."""

    found: Found
    evaluations: int
    tolerance: Tolerance
    gain: float

    def excess(self, last: Tensor) -> float:
        """The estimated error of the solve at its end, relative to what is allowed, by Richardson extrapolation."""
        scale = replace(self.tolerance, share=1.0).scale(value_of(last), self.found.state)
        return float(((value_of(last) - self.found.state).abs() / scale).max()) / self.gain

    def told(self, excess: float) -> str:
        """The message if the error is still this many times too large after all attempts."""
        return (
            f"the error at the end is still about {excess:.2g} times what rtol={self.tolerance.rtol:g}, "
            f"atol={self.tolerance.atol:g} allow, with {len(self.found.times) - 1} steps. The solution may be chaotic, "
            "or rounding errors are as large as the tolerance: use larger tolerances, or z0.double()."
        )


def adapted(
    func: Any,
    z0: Any,
    t: Any,
    order: Any,
    given: Options,
    more: bool,
    share: float = 1.0,
    until: Callable[[float, Any], bool] | None = None,
) -> tuple[Options, Adapted]:
    """The options with a mesh for this share of the tolerance, up to the first step where ``until(time, state)`` holds.

    ``more``: the solve is to be resumed or to estimate errors, which is refused here.
    """
    scheme, operator, outside = read_scheme(given.method, given.solver, "trapezoid"), read_order(order), _Outside()
    structure, known = read_numbers(structure_of(z0), operator, given.horizon)
    # IMEX uses a mesh found with the trapezoid rule, and its error is measured against that solution
    marching = Trapezoid() if isinstance(scheme, IMEX) else scheme
    gain = 1.0 if marching is not scheme else 2.0 ** scheme.expected_order(1.0, smooth=True) - 1
    tolerance = Tolerance.read(given.rtol, given.atol, given.max_steps, structure.dtype)
    tolerance = replace(tolerance, share=share * (gain + 1))
    times, _ = read_times(t)
    _refuse(given, more, why_not_fading(operator, known, marching))
    jumps = None
    if given.jumps is not None:
        refuse_jumps(scheme, operator)
        jumps = read_jumps(given.jumps, structure, t)
        values = jumps.values
        jumps = jumps._replace(values=_bare(values) if isinstance(values, Tensor) else partial(outside.call, values))
    window = None
    if given.past is not None:
        refuse_past(operator, known, given.velocity is not None)
        window = read_past(given.past, structure, t)
        window = window._replace(rows=_bare(window.rows))
    args = given.args
    if given.linear is not None:
        func, whole = joined(func, z0, given)
        args = whole.args
    beta, row0, args = _bare(known["order"]), _bare(structure.pack(z0)), read_args(args, structure)
    check_order(beta, scheme, velocity=False)
    if not all_finite(row0):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    if given.horizon is not None:
        func, args = in_own_time(func, given.horizon, structure, args)
    marched = None if given.lags is None else _Marched(given, structure, window, row0, times[-1] - times[0])
    if marched is not None:
        args = (marched.lagged(0.0), *args)
    field = Field(func, structure, row0.new_tensor(times[:1]), args)
    with torch.no_grad():
        first_evaluation(field, row0, [])
    if field.noise.active:
        raise InputError("func draws random numbers, which a tolerance would mistake for errors: pass step= or steps=.")

    def at(time: float, z: Tensor) -> Tensor:
        here = args if marched is None else (marched.lagged(time), *args[1:])
        return field.when(row0.new_tensor(times[0] + time), z, here)

    def slope(time: float, z: Tensor) -> Tensor:
        calls[0] += 1
        return outside.call(at, time, z)

    def ended(time: float, row: Tensor) -> bool:
        if marched is not None:
            marched.accept(time, row)
        with outside.inside():
            return until is not None and until(times[0] + time, structure.unpack(row))

    calls, horizon = [1], _bare(known.get("horizon", torch.ones_like(beta)))
    before = None if window is None else partial(window.at, beta)
    equation = Equation(slope, field.shape, beta, horizon**beta, row0, before)
    march = partial(find_mesh, equation, marching, times[-1] - times[0], jumps=jumps, outputs=_outputs(t, times))
    with outside:
        if marched is None and until is None:
            refuse_hopeless(march, tolerance)
        found = march(tolerance, until=ended, lag=math.inf if marched is None else marched.shortest)
    mesh = Grid.through(times[0], found.times)
    steps = given._replace(grid=mesh, method=scheme, solver=None, rtol=None, atol=None)
    return steps, Adapted(found, calls[0], tolerance, gain)


def _outputs(t: Any, times: list[float]) -> list[float]:
    """The times that are asked for, since the start and in order; of all samples, if each has its own."""
    if isinstance(t, Tensor) and t.ndim == 2:
        times = times_of_series(t).unique().tolist()
    return [x - times[0] for x in times[1:-1]]


def _values(x: Tensor) -> Tensor:
    """The values of a tensor without what transforms and forward mode know of it; autograd's graph stays."""
    if any(is_mapped(layer) for layer in layers(x)):
        raise UnsupportedError(
            "steps to a tolerance depend on values, which are not available under vmap. Pass steps=, or grid= with the "
            "grid of an earlier solution; a batch axis of z0 needs no vmap."
        )
    *_, innermost = layers(x)
    return without_tangent(innermost)[0]


def _bare(x: Tensor) -> Tensor:
    """The values of a tensor, which is all that a march needs."""
    if not derivatives_are_watched():
        return x.detach()
    with values_alone():
        return _values(x).detach()


def _refuse(given: Options, more: bool, against: str | None) -> None:
    """Raise if an option does not work with adaptive steps; ``against`` is why a tolerance cannot choose the steps."""
    if against is not None:
        raise InputError(
            f"neither step=, steps= nor grid= is given, and a tolerance cannot choose the steps: {against}. Give one "
            "of the three."
        )
    if given.grading != 1 or given.velocity is not None or more:
        raise InputError(
            "grading=, velocity=, resume= and estimate_error= are for steps that are given: pass step=, steps= or "
            "grid= (that of an earlier solution, for example)."
        )
    if given.lags is not None and given.horizon is not None:
        raise InputError("lags= allow no horizon=: leave one of them out, or write the factor into func and the lags.")


class _Outside:
    """Context of a march, which needs values alone: outside of transforms and forward mode, if any are active.

    Attributes:
        inside: context in which they are active again, for functions of the caller.
    """

    inside: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __init__(self) -> None:
        self._watched, self._context = derivatives_are_watched(), ExitStack()

    def __enter__(self) -> None:
        if self._watched:
            self.inside = self._context.enter_context(values_alone())

    def __exit__(self, *error: object) -> None:
        self._context.close()

    def call(self, function: Callable[..., Tensor], *given: Any) -> Tensor:
        """The values that a function of the caller returns, with the graph from which a stage gets the Jacobian."""
        with self.inside():
            found = function(*given)
        return _values(found) if self._watched else found


class _Marched:
    """The states of a march so far, for a ``func`` that gets delayed states."""

    def __init__(
        self, given: Options, structure: Structure, window: Observed | None, first: Tensor, horizon: float
    ) -> None:
        self.delays = delays_of(*lags_of(given.lags), structure, window, torch.zeros(1, dtype=torch.float64), horizon)
        self.times, self.rows = [0.0], [first]
        self.shortest = min(float(lag.detach()) for lag in self.delays.lags)

    def lagged(self, time: float) -> Any:
        """The delayed states that ``func`` gets at this time, at most one step after the last state."""
        times = torch.tensor([*self.times, time], dtype=torch.float64)
        return replace(self.delays, times=times).at(len(self.times), self.rows)

    def accept(self, time: float, row: Tensor) -> None:
        """Add the state at the end of an accepted step."""
        self.times.append(time)
        self.rows.append(row)
