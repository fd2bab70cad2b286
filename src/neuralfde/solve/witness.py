"""Whether ``func`` is the same function in both passes.

The backward pass evaluates ``func`` again at the rows of the forward pass. A few slopes are kept to compare with: a
function that was changed in between, keeps state or draws from a generator of its own gives others, and the gradient
would be that of no function at all. In the graphs of these steps, tensors that only a later time uses and that would
get no gradient are found as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..base.policy import WITNESS_STEPS, WITNESSES
from ..errors import ChangedFunctionError
from ..rhs.first import refuse_captured
from ..schemes.stage_solvers import rounding_of
from .plan import Plan


class Witness:
    """The slopes of a few steps as the forward pass had them, (groups, width) each, by their grid points."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        count = min(WITNESSES, 1 + plan.steps // WITNESS_STEPS)
        last = plan.steps if plan.scheme.implicit else plan.steps - 1  # that has a slope
        self.steps = {last - last * k // count for k in range(count)}
        self.slopes: dict[int, Tensor] = {}
        self.states: dict[int, Tensor] = {}  # of explicit schemes only how large they are
        self.sizes: dict[int, Tensor] = {}  # of a difference, of the slope and of the state, (3,) each
        self.size: Tensor | None = None  # of the largest state so far, which is what sums are rounded to

    def note(self, steps: range, states: Tensor, slopes: Tensor) -> None:
        """Keep what is wanted of a block of steps forward."""
        if self.plan.scheme.implicit:
            size = largest(states)
            self.size = size if self.size is None else torch.maximum(self.size, size)
        for n in self.steps.intersection(steps):
            slope, state = slopes[n - steps[0]], states[n - steps[0]]
            self.slopes[n] = slope.clone()
            self.states[n] = state.clone() if self.plan.scheme.implicit else largest(state)

    def compare(self, n: int, v: Tensor | None, inputs: Sequence[Tensor]) -> None:
        """The slope of step ``n`` was evaluated again, with its graph, from these inputs."""
        if n in self.slopes and v is not None:  # before it is let go of: another way may be tried after an error
            refuse_captured([v], [*inputs, *self.plan.field.known])
        known = self.slopes.pop(n, None)
        if known is None or v is None:  # compared when its row was read; or nobody uses the slope
            return
        state = self.states[n] if self.plan.scheme.implicit else self.states.pop(n)
        with torch.no_grad():
            slope = largest(known)
            self.sizes[n] = torch.stack([largest(known.sub_(v.reshape(known.shape))), slope, largest(state)])

    def _roughness(self, n: int) -> float:
        """What the rounding of its sum does to the slope of a state: much where ``func`` is stiff."""
        field = self.plan.field
        z = self.states[n].reshape(field.shape)
        assert self.size is not None
        moved = z + rounding_of(torch.ones_like(z)) * self.size
        return float(largest(torch.sub(field(n, moved), field(n, z))))

    def verdict(self) -> None:
        """Raise unless every slope that was compared was the same, up to rounding."""
        if not self.sizes:
            return
        rough, fine = _tolerances(self.plan)
        excess = {}  # the numbers of all steps come from the device at once
        for n, (off, slope, state) in zip(self.sizes, torch.stack([*self.sizes.values()]).tolist(), strict=True):
            excess[n] = off - rough * slope - fine / min(1.0, self.plan.step) * state
        stiff = self.plan.scheme.implicit and self.plan.field.impure is None
        if all(x <= 0 or (stiff and x <= 16 * self._roughness(n)) for n, x in excess.items()):
            return
        raise ChangedFunctionError(
            "func gives other values in the backward pass than it gave in the forward pass, so that the gradient "
            "would be wrong: something that it uses was changed before backward() (weights or buffers in place, a "
            "variable of a loop), or it keeps state, or draws random numbers from a generator of its own or in "
            "some evaluations only. Call backward() before such changes and let func depend on (t, z, *args) "
            "alone, or use adjoint='direct', which keeps the graphs of the forward pass."
        )


def largest(x: Tensor) -> Tensor:
    """The largest magnitude, or not a number where there is one; no second tensor of the size of ``x`` is made."""
    return torch.linalg.vector_norm(x, math.inf)


def _tolerances(plan: Plan) -> tuple[float, float]:
    """How far slopes may differ, relative to them and to states per step: rows are summed again in another order."""
    if plan.field.autocast is not None or plan.storage.dtype is not None:  # in a lower precision
        return 0.1, 1e-2
    structure, implicit = plan.field.structure, plan.scheme.implicit  # slopes of a stiff func are as rough as it is
    if structure.dtype == torch.float64:
        return 1e-8, 1e-6 if implicit else 1e-12
    # products of a GPU may be rounded to ten bits, and otherwise for other sizes
    return 2e-5 if structure.device.type == "cpu" else 5e-3, 1e-3 if implicit else 1e-5
