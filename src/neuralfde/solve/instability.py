"""Results that are not finite, or that have grown because the steps are unstable: what is said, and what to do."""

from __future__ import annotations

import contextlib
import math
from functools import partial

from torch import Tensor, nn

from ..base.structure import all_finite, tensors_in
from ..base.torch_private import value_of
from ..errors import NonFiniteError, warn_of_result
from ..rhs.field import Field
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


def warn_if_unstable(plan: Plan, growth: float, start: Tensor) -> None:
    """Warn that a result is wrong if it has grown so many times and its explicit steps are too long at the start."""
    if plan.scheme.implicit or plan.field.impure is not None:
        return
    found = _unstable(plan, start)
    if found is not None:
        warn_of_result(f"states have grown {growth:.1e} times. {found}")


def _remedy(plan: Plan, start: Tensor) -> str:
    """Advice for a state that is not finite."""
    return (
        spoilt(plan.field)
        or _unstable(plan, start)
        or (
            "Try a smaller step, an implicit method ('trapezoid', 'gl', 'l1') if the problem is stiff, "
            "or check func there; a solution that blows up in finite time has no values beyond."
        )
    )


def spoilt(field: Field) -> str | None:
    """If ``func`` depends on numbers that are not finite: on which, and where these come from."""
    parameters = field.func.named_parameters() if isinstance(field.func, nn.Module) else ()
    names = [name for name, p in parameters if p.is_floating_point() and not all_finite(p)]
    if names:
        return (
            f"The parameter {names[0]!r} of func is not finite, as after a training step with a gradient that was not: "
            "look for NaN in the data and the loss, skip such steps, clip gradients, or lower the learning rate."
        )
    if any(x.is_floating_point() and bool(value_of(x).isnan().any()) for x in tensors_in(field.args)):
        return "args= contains NaN: check the data, or replace missing values before the solve."
    return None


def _unstable(plan: Plan, start: Tensor) -> str | None:
    """If explicit steps are too long for the Jacobian at the start: that they are, and which are not."""
    rate, order = 0.0, 1.0 if plan.order is None else float(value_of(plan.order).min())
    if plan.order is not None and not plan.scheme.implicit:
        with contextlib.suppress(RuntimeError):
            explicit = plan.scheme.explicit_part(partial(plan.field, 0))
            rate = Jacobian(explicit, start.detach().view(plan.field.shape)).rate()
    load, most = rate * plan.step**order, plan.scheme.reach * 2.0**order
    if not (math.isfinite(load) and load > most):
        return None
    return (
        f"The step is unstable: |J| h^β is {load:.2g} at the start, the limit is about {most:.2g}. Use an "
        f"implicit method ('trapezoid', 'gl', 'l1'), or step={(0.8 * most / rate) ** (1 / order):.1g} or less."
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
