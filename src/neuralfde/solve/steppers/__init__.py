"""Steppers: how the steps of a block are taken. ``auto`` chooses one and says why."""

from __future__ import annotations

from torch import Tensor

from ...base.policy import (
    KERNEL_AUTO_NUMBERS,
    KERNEL_AUTO_STEPS,
    PICARD_FEWEST,
    PICARD_NUMBERS,
    PICARD_NUMBERS_GPU,
    PICARD_SAMPLE,
    PICARD_WORK,
    PICARD_WORK_BACKWARD,
    PICARD_WORK_FORWARD,
    REPEATED_CALLS,
    REPEATED_STEPS,
    SAMPLES_WORK,
)
from ...errors import InputError
from ...history import Exponentials
from ...storage import Device
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, Totals, Yielded, why_single
from .cuda_graph import CudaGraph
from .kernel import Kernel
from .picard import Picard
from .recorded import Recorded
from .single import Single, SingleSteps

__all__ = [
    "STEPPERS",
    "CudaGraph",
    "Filled",
    "Kernel",
    "Picard",
    "Pull",
    "Recorded",
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
    "recorded": Recorded(),
    "cuda-graph": CudaGraph(),
    "kernel": Kernel(),
}


def choose(plan: Plan, run: Run, like: Tensor, keep_graphs: bool = False, backward: bool = False) -> Stepper:
    """The stepper of one pass: the requested one, or the choice of ``auto``; ``run`` gets its name and the reason."""
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
    """The stepper that ``auto`` takes, and why."""
    if backward and run.stepper in ("single", "recorded"):
        return _backward_one_by_one(plan, run, like), run.why
    picard, launches = Picard(always=False), "the time of a step on a GPU is that of its kernel launches"
    if backward and run.stepper == picard.name and not like.is_cuda:
        return picard, run.why  # for the reason that the forward pass found
    against = _large(plan, like)
    if not like.is_cuda:
        against = against or picard.refusal(plan, like)
        if against is None:
            return picard, "a small state: many steps at once are faster than one by one"
        return (Recorded() if _records(plan, like) else Single()), against
    kernel, graph = Kernel(), CudaGraph(always=False, split=None)
    if _worth_compiling(plan, like) and kernel.pays(plan, run, like):
        return kernel, "a small function: a block of steps is one launch"
    refusal = graph.refusal(plan, like)
    if refusal is None:
        return graph, launches
    if against is None and picard.refusal(plan, like) is None:
        return picard, f"{launches}, and many steps at once need as many as one"
    return Single(), refusal


def _records(plan: Plan, like: Tensor) -> bool:
    """Whether steps one by one are taken without calling ``func``: there are enough, and nothing speaks against it."""
    enough = plan.steps >= REPEATED_STEPS[plan.train] and Recorded().refusal(plan, like) is None
    return enough and plan.field.verdict.called is None


def _worth_compiling(plan: Plan, like: Tensor) -> bool:
    """Whether a kernel saves so much time compared with a CUDA graph that compiling it pays."""
    small = like.numel() <= KERNEL_AUTO_NUMBERS and isinstance(plan.storage, Device)
    return small and plan.train and plan.steps >= KERNEL_AUTO_STEPS and isinstance(plan.history, Exponentials)


def _large(plan: Plan, like: Tensor) -> str | None:
    """Why many steps at once would take longer than single steps; None if they would not."""
    if like.numel() > (PICARD_NUMBERS_GPU if like.is_cuda else PICARD_NUMBERS)[plan.scheme.implicit]:
        return f"a state of {like.numel()} elements"
    work = 0 if plan.field.work is None or like.is_cuda else plan.field.work
    most = PICARD_WORK[plan.scheme.implicit] if plan.train or not _records(plan, like) else PICARD_WORK_FORWARD
    return "func computes much in a call" if work > most else None


def _backward_one_by_one(plan: Plan, run: Run, like: Tensor) -> Stepper:
    """Backward, steps that were taken one by one: recorded, unless samples of few numbers take many operations."""
    products, at_once = None if run.repeated is None else run.repeated.products, _backward_at_once(plan, run, like)
    if products is None or (at_once.jacobians and products.calls > REPEATED_CALLS):
        return at_once
    return Recorded()


def _backward_at_once(plan: Plan, run: Run, like: Tensor) -> Single:
    """Single steps; in the backward pass, blocks are taken at once if more work in far fewer calls pays."""
    scheme, work = plan.scheme, plan.field.work
    if plan.stepper is not None or scheme.implicit or like.is_cuda or scheme.stages == 0 or work is None:
        return Single()
    if not run.vectorised or why_single(plan.field) or plan.steps * scheme.stages < PICARD_FEWEST[1]:
        return Single()
    several, shape = hasattr(plan.field.func, "over_times"), plan.field.shape
    few = len(shape) < 2 or shape[-1] <= PICARD_SAMPLE  # otherwise samples have too many elements
    return Single(few and work <= SAMPLES_WORK, work <= PICARD_WORK_BACKWARD[several])
