"""From a tolerance to a mesh: what was asked for, with the steps that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.grid import read_times
from ..base.structure import all_finite, structure_of
from ..base.torch_private import derivatives_are_watched
from ..errors import ConvergenceError, InputError, UnsupportedError
from ..orders import read_order
from ..orders.caputo import check_order
from ..rhs.field import Field
from ..time import Equation, Found, Tolerance, find_mesh, read_jumps
from .validation import Options, in_own_time, read_args, read_numbers, read_scheme, refuse_jumps, why_not_fading


class Adapted(NamedTuple):
    """What the march that found the mesh took and found."""

    found: Found
    evaluations: int

    def check(self, last: Tensor) -> None:
        """Raise unless the solve on the mesh ends where the march did."""
        apart = float(((last.detach() - self.found.state).abs() / self.found.scale).max())
        if not apart <= 1:
            raise ConvergenceError(
                f"the solve on the mesh that was found ends {apart:.2g} times the tolerance from the march that found "
                "it: its steps are at the edge of stability. Use method='trapezoid', or a smaller rtol=."
            )


def adapted(
    func: Callable[..., Any], z0: Any, t: Any, order: Any, given: Options, more: bool
) -> tuple[Options, Adapted]:
    """The options with the mesh that the tolerance asks for; ``more``: to be resumed, or with an error of each step."""
    scheme, operator = read_scheme(given.method, given.solver, "trapezoid"), read_order(order)
    structure, known = read_numbers(structure_of(z0), operator, given.horizon)
    tolerance = Tolerance.read(given.rtol, given.atol, given.max_steps, structure.dtype)
    times, _ = read_times(t)
    _refuse(given, more, why_not_fading(operator, known, scheme))
    jumps = None
    if given.jumps is not None:
        refuse_jumps(scheme, operator)
        jumps = read_jumps(given.jumps, structure, t)
    beta, row0, args = known["order"].detach(), structure.pack(z0).detach(), read_args(given.args, structure)
    check_order(beta, scheme, velocity=False)
    if not all_finite(row0):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    if given.horizon is not None:
        func, args = in_own_time(func, given.horizon, structure, args)
    field = Field(func, structure, torch.tensor(times[:1]).to(row0), args)
    with torch.no_grad():
        field.first_evaluation(row0, [])
    if field.noise.active:
        raise InputError("func draws random numbers, which a tolerance would take for errors: pass step= or steps=.")

    def slope(time: float, z: Tensor) -> Tensor:
        calls[0] += 1
        return field.at(torch.tensor([times[0] + time]).to(row0), field.args)(0, z)

    calls, gain = [1], known.get("horizon", torch.ones_like(beta)).detach() ** beta
    equation = Equation(slope, field.shape, beta, gain, row0)
    try:
        found = find_mesh(equation, scheme, times[-1] - times[0], tolerance, jumps)
    except RuntimeError as error:
        if not derivatives_are_watched() or "vmap" not in str(error):
            raise
        raise UnsupportedError(
            "steps to a tolerance depend on values, which vmap cannot look at. Pass steps=, or grid= with the grid of "
            "an earlier solution; a batch axis of z0 needs no vmap."
        ) from error
    steps = given._replace(grid=times[0] + found.times, method=scheme, solver=None, rtol=None, atol=None)
    return steps, Adapted(found, calls[0])


def _refuse(given: Options, more: bool, against: str | None) -> None:
    """Raise where something is asked for that steps of a tolerance's choice have not."""
    if against is not None:
        raise InputError(
            f"neither step=, steps= nor grid= is given, and a tolerance cannot choose the steps: {against}. Give one "
            "of them, or method='trapezoid' (implicit) or ABM(ahead=True) (explicit)."
        )
    if given.grading != 1 or given.velocity is not None or more:
        raise InputError(
            "grading=, velocity=, resume= and estimate_error= are for steps that are given: pass step=, steps= "
            "or grid= (that of an earlier solution, for example)."
        )
