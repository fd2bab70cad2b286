"""A linear equation solved without steps: from the arguments of a call to states, their error and their cost."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..base.caches import capturing
from ..base.grid import read_times
from ..base.structure import all_finite, structure_of
from ..base.torch_private import value_of
from ..base.torch_transforms import refuse_mapped
from ..door.semilinear import refuse_args
from ..door.validation import Options, check_names
from ..errors import InputError, NonFiniteError
from ..history import Full
from ..linear import read_linear
from ..linear.resolvent import Equation, Found, without_steps
from ..orders import Caputo, read_order
from ..orders.caputo import check_order
from ..schemes import IMEX
from ..solver import Stats
from ..storage import Device


def needs_no_steps(func: Any, given: Options) -> bool:
    """Whether the equation is linear with a constant source, and no argument implies steps."""
    asked = (given.method, given.rtol, given.atol, given.velocity, given.solver)
    course = (given.jumps, given.event, given.past, given.lags)
    own = given.horizon
    one_horizon = own.numel() == 1 if isinstance(own, Tensor) else own is None or isinstance(own, int | float)
    constant = func is None or isinstance(func, Tensor)
    even = isinstance(given.grading, int | float) and given.grading == 1
    return constant and one_horizon and even and given.adaptive and all(x is None for x in (*asked, *course))


def solved_exactly(
    source: Tensor | None, z0: Any, t: Any, order: Any, given: Options, estimate: bool
) -> tuple[list[float], Found]:
    """Times and states, the initial ones first."""
    structure, operator = structure_of(z0), read_order(order)
    check_names(given._asdict())
    refuse_args(given)
    if isinstance(t, Tensor) and t.ndim == 2:
        raise InputError(
            "a solve without steps has the same times for all samples: give all times in one row, t.unique(), and "
            "take those of each sample from the result; or give steps=."
        )
    part = read_linear(given.linear, structure)
    one = operator.order if isinstance(operator, Caputo) else None
    if not isinstance(one, int | float | Tensor) or torch.as_tensor(one).numel() != 1:
        raise InputError("linear= without func and without steps needs one order of Caputo's derivative. Give steps=.")
    if source is not None and (source.shape != z0.shape or source.dtype != z0.dtype or source.device != z0.device):
        raise InputError("a tensor as func is a constant source and must have the shape, dtype and device of z0.")
    looked_at = not (torch.compiler.is_exporting() or capturing())
    if looked_at and not all_finite(z0, *([] if source is None else [source])):
        raise InputError("z0 or the source contains NaN or infinity; check the data or the layers before the solve.")
    beta = torch.as_tensor(one, dtype=torch.float64, device=z0.device).reshape(())
    check_order(beta.reshape(1), IMEX(), velocity=False)
    horizon = torch.as_tensor(1.0 if given.horizon is None else given.horizon, dtype=torch.float64, device=z0.device)
    refuse_mapped("the order of a solve without steps", beta)
    refuse_mapped("the horizon of a solve without steps", horizon)
    if not 0 < float(value_of(horizon)) < math.inf:
        raise InputError(f"horizon={float(value_of(horizon)):g} must be positive and finite: it is a factor of time.")
    times, _ = read_times(t)
    found = without_steps(
        Equation(part, z0, source, beta, horizon.reshape(())), [x - times[0] for x in times[1:]], estimate
    )
    if given.check_finite and looked_at and not all_finite(found.states):
        raise NonFiniteError(
            f"the solution without steps is not finite up to t={times[-1]:g}: it grows beyond the largest number of "
            f"{z0.dtype}. Ask for earlier times, or use z0.double() and linear= in float64."
        )
    states = torch.cat([z0[None], found.states])
    error = None if found.error is None else torch.cat([torch.zeros_like(z0)[None], found.error])
    return times, found._replace(states=states, error=error)


def stats_of(found: Found) -> Stats:
    """The statistics of a solve without steps: the cost of its systems."""
    systems = found.systems
    return Stats(
        steps=0,
        step=0.0,
        evaluations=0,
        history_bytes=0,
        method=IMEX(),
        adjoint="exact",
        history=Full(),
        storage=Device(),
        stepper="none",
        why=f"the Mittag-Leffler function of linear=, no steps; {systems.why}",
        factorisations=systems.factorisations,
        linear_solves=systems.linear_solves,
    )
