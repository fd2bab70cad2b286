"""Gradients of what ``func`` depends on, a block of steps at a time.

``θ̄ = Σ_n (∂f/∂θ)ᵀ v̄_n`` does not feed back into the backward pass. Where ``func`` can be vectorised over time, the
steps of a block need products with respect to the state alone, and one more product, for all of them at once, gives
their part of ``θ̄``: fewer and larger kernels. The first block shows whether ``func`` means the same when it is
vectorised.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...base.policy import STACKED_NUMBERS, STACKED_STEPS
from ...base.torch_private import vjp
from ..plan import Plan, Run
from .base import Task, Totals, why_single

log = logging.getLogger("neuralfde")


class Stacked:
    """Whether the steps of a block share one product (``on``), and how."""

    def __init__(self, plan: Plan, run: Run, wanted: Sequence[Tensor], traced: bool) -> None:
        self.run = run
        field = plan.field
        small = field.structure.numel <= STACKED_NUMBERS and plan.steps >= STACKED_STEPS
        alone = plan.scheme.stages == 1 and not traced and field.structure.device.type == "cpu"
        may = small and alone and bool(wanted) and plan.stepper is None and why_single(field) is None
        self.on = may and run.vectorised is True
        self.undecided = may and run.vectorised is None

    def states(self, task: Task) -> Tensor | None:
        """Room for the states of a block, where they are needed."""
        if not (self.on or self.undecided):
            return None
        return task.sums.new_empty(task.block.count, *task.sums.shape[2:])

    def end_block(self, plan: Plan, task: Task, states: Tensor | None, slopes: Tensor | None, totals: Totals) -> None:
        """Add what a block gives to the totals; after the first one, decide whether the next ones are stacked."""
        if states is None:
            return
        # the last state has no slope, nor has the first in some schemes
        chosen = [k for k in range(task.block.count) if k not in task.idle]
        pick = slice(chosen[0], chosen[-1] + 1) if chosen else slice(0, 0)
        steps = task.steps[pick]
        times = plan.field.times[steps.stop + 1 : steps.start + 1].flip(0)
        rows = states[pick].view(-1, *plan.field.shape)
        if self.on:
            self._pull(plan, times, rows, task.sums[pick, 0].reshape(rows.shape), totals)
        elif slopes is not None:
            self.undecided = False
            self.on = self.run.vectorised = means_the_same(plan, times, rows, slopes[pick].view_as(rows))

    def _pull(self, plan: Plan, times: Tensor, states: Tensor, by: Tensor, totals: Totals) -> None:
        with torch.enable_grad():
            v = plan.field.batch(times, states)
        if v.requires_grad:
            totals.add(vjp((v,), (by,), totals.wanted))


def means_the_same(plan: Plan, times: Tensor, states: Tensor, slopes: Tensor) -> bool:
    """Whether ``func``, vectorised over these states, gives the slopes that it gave step by step."""
    try:
        with torch.no_grad():
            found = plan.field.batch(times, states)
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        log.debug("parameter gradients step by step, since func cannot be vectorised over time: %s", reason)
        return False
    return same(found, slopes)


def same(found: Tensor, slopes: Tensor) -> bool:
    """Whether vectorised slopes are those of single steps, up to rounding that may have grown."""
    tol = 1e-4 if slopes.dtype == torch.float32 else 1e-9
    if slopes.is_cuda and slopes.dtype == torch.float32:
        tol = 5e-3  # products may be rounded to ten bits, and otherwise for other sizes
    return found.shape == slopes.shape and largest(found - slopes) <= tol * largest(slopes)


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(torch.linalg.vector_norm(x, math.inf)) if x.numel() else 0.0
