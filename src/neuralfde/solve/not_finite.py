"""Errors for a result that is not finite: at which step it began, and what to do about it."""

from __future__ import annotations

import contextlib
import math
from functools import partial

from torch import Tensor

from ..base.structure import all_finite
from ..base.torch_private import value_of
from ..errors import NonFiniteError
from ..schemes import Jacobian
from .loop import forward
from .plan import Coefficients, Plan, Run
from .steppers import Filled, Task


def explained(plan: Plan, run: Run, c: Coefficients, z0: Tensor) -> NonFiniteError:
    """The error for a solve whose result is not finite; the solve is repeated to find the step where this began."""
    try:
        forward(plan, run, c, z0, look=partial(_look, plan))
    except NonFiniteError as error:
        return NonFiniteError(f"{error} {_remedy(plan, z0 if c.base is None else z0[0])}")
    return NonFiniteError("the result contains NaN or infinity between grid points; reduce the step.")


def _remedy(plan: Plan, start: Tensor) -> str:
    """Advice for a state that is not finite; if the step was unstable, it names one that is stable."""
    rate, order = 0.0, 1.0 if plan.order is None else float(value_of(plan.order).min())
    if plan.order is not None and not plan.scheme.implicit:
        with contextlib.suppress(RuntimeError):
            explicit = plan.scheme.explicit_part(partial(plan.field, 0))
            rate = Jacobian(explicit, start.detach().view(plan.field.shape)).rate()
    # for a decay of rate λ, explicit schemes are stable while λ h^β is below about 2^β
    load, most = rate * plan.step**order, 2.0**order
    if math.isfinite(load) and load > most:
        return (
            f"The step is unstable: |J| h^β is {load:.2g} at the start, the limit is about {most:.2g}. Use an "
            f"implicit method ('trapezoid', 'gl', 'l1'), or step={1.2 * rate ** (-1 / order):.2g} or less."
        )
    return (
        "Try a smaller step, an implicit method ('trapezoid', 'gl', 'l1') if the problem is stiff, "
        "or check func there; a solution that blows up in finite time has no values beyond."
    )


def _look(plan: Plan, task: Task, filled: Filled) -> None:
    """Raise at the first step that is not finite."""
    for k, n in enumerate(task.steps):
        if not all_finite(filled.states[k], filled.slopes[k]):
            what = "value of func" if all_finite(filled.states[k]) else "state"
            raise NonFiniteError(
                f"the {what} became NaN or infinite at step {n} of {plan.steps} (t={float(plan.field.times[n]):g}). "
                "Every earlier step was finite."
            )
