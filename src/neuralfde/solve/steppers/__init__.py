"""Steppers: how the steps of a block are taken. ``auto`` chooses one and says why."""

from __future__ import annotations

from torch import Tensor

from ...errors import InputError
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, Totals, Yielded
from .cuda_graph import CudaGraph
from .kernel import Kernel
from .picard import Picard
from .single import Single, SingleSteps

__all__ = [
    "STEPPERS",
    "CudaGraph",
    "Filled",
    "Kernel",
    "Picard",
    "Pull",
    "Single",
    "SingleSteps",
    "Stepper",
    "Steps",
    "Task",
    "Totals",
    "Yielded",
    "choose",
]

#: Names for ``stepper=``.
STEPPERS: dict[str, Stepper | None] = {
    "auto": None,
    "single": Single(),
    "picard": Picard(),
    "cuda-graph": CudaGraph(),
    "kernel": Kernel(),
}


def choose(plan: Plan, run: Run, like: Tensor, keep_graphs: bool = False, backward: bool = False) -> Stepper:
    """The stepper of one pass: the one asked for, or the one that ``auto`` takes; ``run`` says which and why."""
    stepper: Stepper | None = plan.stepper
    if keep_graphs:
        stepper, run.why = Single(), "adjoint='direct' keeps the graph of each step"
    elif stepper is None:
        stepper, run.why = _automatic(plan, run, like, backward)
    else:
        run.why = "as asked for"
        refusal = stepper.refusal(plan, like)
        if refusal is not None:
            raise InputError(f"stepper={stepper.name!r} cannot take these steps: {refusal}. Use stepper='auto'.")
        reason = stepper.yields(plan, run, like)
        if reason is not None:
            run.instead = f", not {stepper.name}: {reason}"
            stepper, run.why = _automatic(plan, run, like, backward)
    run.stepper = stepper.name
    return stepper


def _automatic(plan: Plan, run: Run, like: Tensor, backward: bool) -> tuple[Stepper, str]:
    """What ``stepper="auto"`` takes, and why."""
    if backward and run.stepper == "single":
        return Single(), run.why
    picard, launches = Picard(always=False), "a step on a GPU is bound by the launches of its kernels"
    ways: list[tuple[Stepper, str]] = [(picard, "a small state, whose steps cost as much as their calls")]
    if like.device.type == "cuda":
        kernel = Kernel()
        if kernel.pays(plan, run, like):
            return kernel, "a small function: its steps are one launch"
        ways = [(CudaGraph(always=False), launches), (picard, f"{launches}, and many steps have as many as one")]
    refusals = [wanted.refusal(plan, like) for wanted, _ in ways]
    taken = next((way for way, refusal in zip(ways, refusals, strict=True) if refusal is None), None)
    return taken or (Single(), refusals[0] or "")
