"""One step after the other: the algorithm as it is written down, and the reference for every other stepper.

Forward, with ``c_n`` the history sum of step n::

    x_n = locate(c_n),   (z_n, v_n) = evaluate(x_n)            explicit: z_n = c_n,  v_n = f(t_n, z_n)

Backward, from the last step to the first, with ``ḡ_n`` the gradient of ``z_n`` from outside and ``v̄_n`` that of
``v_n``, which is the history sum of the transposed matrix::

    (x̄_n, θ̄) += evaluate's vector-Jacobian product of (ḡ_n, v̄_n)      explicit: μ_n = ḡ_n + Jᵀ v̄_n,  θ̄ += (∂f/∂θ)ᵀ v̄_n

``adjoint="direct"`` is the same with the graph of every step kept from the forward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...base.policy import PICARD_EXTRA
from ...errors import ConvergenceError
from ...rhs.field import derivative_only
from ...schemes.base import Pulled, Scheme
from ...schemes.one_stage import explicit_pull
from ...schemes.stage_solvers import Stages
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task
from .block import Samples
from .whole_blocks import WholeBlocks
from .work import Trace, Work, kept, leaves, local_weights, traced

Rhs = Callable[[int, Tensor], Tensor]


class Lane:
    """Where steps of a backward pass are computed: a right-hand side and the tensors that get gradients through it.

    Entering it and joining the step before do nothing here; a capture has lanes on streams of their own.
    """

    def __init__(self, field: Rhs, wanted: Sequence[Tensor]) -> None:
        self.field, self.wanted = field, wanted

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def join(self) -> None:
        """From here on this step needs the one before."""


@dataclass(frozen=True)
class Single(Stepper):
    """One step after the other: always possible, and the reference for every other stepper.

    Args:
        jacobians: blocks of a backward pass are taken at once, from the Jacobians of samples with few numbers.
        iterated: the same by iteration. Where a block does not settle soon, steps are single after all.
    """

    jacobians: bool = False
    iterated: bool = False
    name = "single"

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        return None

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> SingleSteps:
        """See :class:`Stepper`."""
        blocks = None
        if backward and (self.jacobians or self.iterated):
            most = (lambda count: PICARD_EXTRA + count // 4) if self.iterated else lambda count: 0
            blocks = WholeBlocks(Samples(plan), self.jacobians, most)
        return SingleSteps(plan, run, blocks=blocks)


class SingleSteps(Steps):
    """Steps one by one; with ``keep_graphs`` each keeps its graph for the backward pass, which ``blocks`` may do."""

    compares = True

    def __init__(self, plan: Plan, run: Run, keep_graphs: bool = False, blocks: WholeBlocks | None = None) -> None:
        self.plan, self.run, self._blocks = plan, run, blocks
        self.traces: list[Trace] | None = [] if keep_graphs else None
        self._work: dict[bool, Work] = {}

    def __exit__(self, *error: object) -> None:
        """See :class:`Steps`; one that has kept graphs lives on until they are used, its rows need not."""
        self._work.clear()

    def work(self, task: Task, backward: bool) -> Work:
        """The rows of the block; views of them are made once, as long as the weights inside a block are the same."""
        known = self._work.get(backward)
        if known is None or known.inner is not task.inner:
            past = None if known is None or known.past.shape[1] < task.block.count else known.past
            known = self._work[backward] = Work(task.inner, task.sums, self.plan.field.shape, past)
        return known

    def forward(self, task: Task) -> Filled:
        """See :class:`Steps`."""
        scheme, field, work = self.plan.scheme, self.plan.field, self.work(task, backward=False)
        work.take(task.sums)
        states = task.sums[:, 0] if scheme.sums == 1 else torch.empty_like(task.sums[:, 0])
        local = self.weights(task, self.plan.weigh and self.traces is not None)
        fill(scheme, field, task, work, local, field.initial, states, self.traces, self.stages)
        work.release()
        return Filled(task.sums, states, work.rows(task.block.count)[:, 0])

    @property
    def stages(self) -> Stages | None:
        """What solves implicit stages, in both passes."""
        if self.run.stages is None:
            self.run.stages = self.plan.scheme.open_stages()
        return self.run.stages

    def weights(self, task: Task, weigh: bool = False) -> list[Tensor]:
        """The local weight of each step, as it broadcasts to the state; one leaf each where it gets a gradient."""
        return local_weights(task.local, self.plan.field.structure.groups, weigh)

    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """See :class:`Steps`."""
        if self._blocks is not None:
            rows = pull.read_block(task.steps)
            with contextlib.suppress(Exception):  # func cannot be vectorised
                found = self._blocks.pulled(task, pull, rows)
                if found is not None:
                    return found
            self._blocks, pull = None, replace(pull, read=lambda n: rows[task.steps[0] - n])
        plan, work, count = self.plan, self.work(task, backward=True), task.block.count
        work.take(task.sums)
        slopes = task.sums.new_zeros(count, *task.sums.shape[2:]) if pull.weigh else None
        lane, local = Lane(plan.field, pull.totals.wanted), self.weights(task, pull.weigh)
        with torch.enable_grad(), derivative_only(slopes is None):
            for k in range(count):
                pull_step(plan.scheme, task, work, k, local[k], pull, lane, slopes, self.traces, self.stages)
        work.release()
        return work.rows(count), slopes


def fill(
    scheme: Scheme,
    field: Rhs,
    task: Task,
    work: Work,
    local: Sequence[Tensor],
    initial: Rhs,
    states: Tensor,
    traces: list[Trace] | None = None,
    stages: Stages | None = None,
) -> None:
    """The steps of a block: ``task.sums`` become the rows x, ``work`` their slopes; states go to ``states``."""
    apart = None if scheme.sums == 1 else states.view(len(local), *work.shape)
    before = None if task.before is None else task.before.view(work.shape)
    for k, n in enumerate(task.steps):
        work.add(k)
        x, slope = work.x[k], k not in task.idle
        if k == task.origin:
            if traces is None:
                z, v = x[0], initial(n, x[0]) if slope else None
            else:
                z, v = kept(traces, scheme, partial(field, n), x[:1], local[k], slope, start=True)
        else:
            f = partial(field, n)
            if scheme.implicit:
                guess = x[0] if before is None else before
                z, v = scheme.locate(f, x[0], local[k].detach(), guess, stages, f"step {n}")
                x[0].copy_(z)
            elif traces is None:
                z, v = scheme.evaluate(f, x, local[k], slope)
            if traces is not None:
                z, v = kept(traces, scheme, f, x, local[k], slope)
        if v is None:
            work.slots[k][0].zero_()
        else:
            work.slots[k][0].copy_(v)
        if apart is not None:
            apart[k].copy_(z)
        before = x[0]


def pull_step(
    scheme: Scheme,
    task: Task,
    work: Work,
    k: int,
    w0: Tensor,
    pull: Pull,
    lane: Lane,
    slopes: Tensor | None = None,
    traces: list[Trace] | None = None,
    stages: Stages | None = None,
) -> None:
    """Step ``k`` of a block, backward: ``work`` gets its rows μ, the totals its gradients of parameters."""
    n, start, slope, totals = task.steps[k], k == task.origin, k not in task.idle, pull.totals
    with lane:
        if traces:
            x, w0, z, v = traces.pop()  # the last steps come first, and let their graphs go
        else:
            x = leaves(pull.read(n), work.shape)
            if pull.witness is not None and n in pull.witness.slopes:
                with derivative_only(False):
                    z, v = traced(scheme, partial(lane.field, n), x, w0, slope, start)
                pull.witness.compare(n, v, (*x, w0))
            else:
                z, v = traced(scheme, partial(lane.field, n), x, w0, slope, start)
        lane.join()
        work.add(k)
        grad_z, grad_v = pull.grads[k], work.x[k][0] if slope else None
        if grad_z is not None:
            grad_z = grad_z.view(work.shape)
        if start:
            found = explicit_pull(x[0], v, grad_z, grad_v, lane.wanted, work.slots[k][0])
            for slot in work.slots[k][1:]:
                slot.zero_()
        else:
            found = _pulled(scheme, n, (x, z, v, w0, grad_z, grad_v, lane.wanted, work.slots[k], stages))
        if found.tensors:
            totals.add(found.tensors)
        if found.local is not None:
            totals.add_local(n, found.local)
        if slopes is not None and v is not None:
            slopes[k].view(work.shape).copy_(v.detach())


def _pulled(scheme: Scheme, n: int, given: tuple[Any, ...]) -> Pulled:
    try:
        return scheme.pull(*given)
    except ConvergenceError as error:
        error.add_note(f"This was step {n}.")
        raise
