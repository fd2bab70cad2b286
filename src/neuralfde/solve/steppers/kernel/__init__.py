"""Blocks of steps in one launch: ``func`` is read once and written as a Triton kernel, together with its history.

The trajectories of a batch are independent unless ``func`` mixes them, and a small state fits on one multiprocessor:
the loop over time runs there. Python is called once a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ....base.caches import capturing
from ....base.policy import KERNEL_BLOCK, KERNEL_BLOCK_NUMBERS, KERNEL_FADING, KERNEL_LONGER
from ...plan import Plan, Run
from ..base import Filled, Pull, Stepper, Steps, Task, Totals, Yielded, why_single
from .launch import Launcher, why_not_here
from .record import Refused

__all__ = ["Kernel"]


@dataclass(frozen=True)
class Kernel(Stepper):
    """Blocks of steps as one kernel, for a ``func`` of covered operations that treats each sample alone."""

    name = "kernel"
    watches = True

    def pays(self, plan: Plan, run: Run, like: Tensor) -> bool:
        """Whether ``func`` can be a kernel, and is one that sums exponentials by itself."""
        able = self.refusal(plan, like) is None and self.yields(plan, run, like) is None
        return able and bool(run.kernel.features <= KERNEL_FADING)

    def longer(self, like: Tensor) -> int:
        """See :class:`Stepper`."""
        return KERNEL_LONGER

    def span(self, run: Run, like: Tensor, steps: int) -> int | None:
        """See :class:`Stepper`."""
        if run.kernel.features > KERNEL_FADING:
            return None
        held = 6 * like.numel() + run.kernel.samples * run.kernel.kernels.saved  # for every step of a block
        return max(1, min(steps + 1, KERNEL_BLOCK, KERNEL_BLOCK_NUMBERS // held))

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        return why_not_here(like)

    def yields(self, plan: Plan, run: Run, like: Tensor) -> str | None:
        """See :class:`Stepper`; ``func`` is traced here, once for both passes."""
        if run.kernel is None:
            run.kernel = _why_not(plan) or _launcher(plan, like)
        return run.kernel if isinstance(run.kernel, str) else None

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """See :class:`Stepper`."""
        return KernelSteps(plan, run, backward)


def _why_not(plan: Plan) -> str | None:
    """What speaks against a kernel before ``func`` is read."""
    field = plan.field
    if plan.scheme.implicit:
        return "an implicit stage is solved to a tolerance, which the host has to look at"
    if field.autocast is not None:
        return "func runs under autocast"
    if field.outside:
        return "func can reach a tensor that requires grad and is not among its inputs: each step is looked at"
    return why_single(field) or ("the solve itself is being captured" if capturing() else None)


def _launcher(plan: Plan, like: Tensor) -> Launcher | str:
    try:
        return Launcher(plan, like)
    except Refused as reason:
        return str(reason)


class KernelSteps(Steps):
    """Blocks of steps, a launch each."""

    def __init__(self, plan: Plan, run: Run, backward: bool) -> None:
        self.plan, self.run, self.launcher, self.pulls = plan, run, run.kernel, backward

    def __enter__(self) -> Steps:
        self.launcher.begin(self.pulls)
        return self

    def forward(self, task: Task) -> Filled:
        """See :class:`Steps`."""
        field = self.plan.field
        field.first_slope = None  # a row less until the backward pass has ended
        field.evaluations += task.block.count * max(1, self.plan.scheme.stages)
        try:
            return Filled(*self.launcher.forward(task, self.plan))
        except Refused as reason:
            self.run.kernel = str(reason)
            raise Yielded from reason

    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """See :class:`Steps`."""
        self.plan.field.evaluations += task.block.count * max(1, self.plan.scheme.stages)
        return self.launcher.backward(task, pull, self.plan)

    def finish(self, totals: Totals) -> None:
        """See :class:`Steps`."""
        self.launcher.finish(totals)
