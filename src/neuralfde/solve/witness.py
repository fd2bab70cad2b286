"""Whether ``func`` is the same function in both passes.

The backward pass evaluates ``func`` again at the rows of the forward pass. A few slopes are kept to compare with: a
function that was changed in between, keeps state or draws from a generator of its own gives others, and the gradient
would be that of no function at all. Where these steps are evaluated again, tensors that only a later time uses and that
would get no gradient are found as well.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..base.policy import WITNESSES
from ..base.torch_private import sequence_number
from ..errors import ChangedFunctionError
from ..rhs.demand import derivative_only
from ..rhs.field import refuse_captured
from .plan import Coefficients, Plan
from .steppers.base import Task
from .steppers.single import leaves, local_weights, traced


class Witness:
    """Slopes of a few steps as the forward pass had them."""

    def __init__(self, plan: Plan, c: Coefficients) -> None:
        self.plan, self.c = plan, c
        count = min(WITNESSES, 1 + plan.steps // 64)
        last = plan.steps if plan.scheme.implicit else plan.steps - 1  # that has a slope
        self.steps = {last - last * k // count for k in range(count)}
        self.slopes: dict[int, Tensor] = {}
        self.sizes: dict[int, Tensor] = {}
        self.excess: list[Tensor] = []

    def note(self, task: Task, states: Tensor, slopes: Tensor) -> None:
        """Keep what is wanted of a block of steps forward."""
        for n in self.steps.intersection(task.steps):
            k = n - task.block.start
            if k not in task.idle:
                self.slopes[n] = slopes[k].clone()
                self.sizes[n] = states[k].abs().amax()

    def compare(self, n: int, row: Tensor) -> None:
        """Row ``n``, (sums, groups, width), is being read for the backward pass."""
        plan, shape = self.plan, self.plan.field.shape
        known = self.slopes.pop(n)
        own = self.c.local if self.c.local.ndim == 1 else self.c.local[n]
        (w0,) = local_weights(own[None], plan.field.structure.groups, weigh=False)
        with torch.enable_grad(), derivative_only(False):
            x = leaves(row, shape)
            mark = sequence_number(x[0])
            _, v = traced(plan.scheme, partial(plan.field, n), x, w0, slope=True, start=n == 0)
            assert v is not None
            if plan.called is not None:
                refuse_captured([v], [*x, *plan.field.known], mark)
        with torch.no_grad():
            rough, fine = _tolerances(plan)
            allowed = known.abs().amax() * rough + self.sizes[n] * (fine / min(1.0, plan.step))
            self.excess.append((v.view_as(known) - known).abs().amax() - allowed)

    def verdict(self) -> None:
        """Raise unless every slope that was compared was the same, up to rounding."""
        if self.excess and not bool((torch.stack(self.excess) <= 0).all()):
            raise ChangedFunctionError(
                "func gives other values in the backward pass than it gave in the forward pass, so that the gradient "
                "would be wrong: something that it uses was changed before backward() (weights or buffers in place, a "
                "variable of a loop), or it keeps state, or draws random numbers from a generator of its own or in "
                "some evaluations only. Call backward() before such changes and let func depend on (t, z, *args) "
                "alone, or use adjoint='direct', which keeps the graphs of the forward pass."
            )


def _tolerances(plan: Plan) -> tuple[float, float]:
    """How far slopes may differ, relative to them and to states per step: rows are summed again in another order."""
    if plan.field.autocast is not None:
        return 0.1, 1e-2
    return (1e-8, 1e-12) if plan.field.structure.dtype == torch.float64 else (5e-3, 1e-5)
