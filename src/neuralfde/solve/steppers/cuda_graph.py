"""Blocks of steps as CUDA graphs: the very functions of :mod:`.single`, captured once and replayed for every block.

The time of a step of a small network is that of its kernel launches; a captured block is a single launch. Graphs
belong to ``func``: later solves reuse them, and they are freed together with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ...base.policy import GRAPHS_AT_ONCE, GRAPHS_REPEATS
from ...base.structure import tensors_in
from ...errors import InputError
from ...schemes import OneStage
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, Totals, why_single
from .capture import own_leaves
from .graph_cache import forget, lease, release
from .single import SingleSteps
from .static import Graph, Static


@dataclass(frozen=True)
class CudaGraph(Stepper):
    """Blocks of steps replayed as CUDA graphs; Python code in ``func`` then runs once, not at every step.

    Args:
        always: capture at once, and raise if ``func`` cannot be captured; otherwise capture only where it pays.
        split: in the backward pass, evaluate ``func`` for many steps in one call. None tries it in trainings of many
            solves, and keeps it if it is measured to be faster.
    """

    always: bool = True
    split: bool | None = False
    name = "cuda-graph"

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        field = plan.field
        if like.device.type != "cuda":
            return f"the state is on {like.device}: CUDA graphs need a CUDA device"
        if plan.scheme.implicit:
            return "an implicit stage is solved to a tolerance, which the host has to check"
        if self.split and not isinstance(plan.scheme, OneStage):
            return "split=True is for methods with one history sum"
        reason = why_single(field)
        if reason is not None:
            return reason
        if field.trace is None:
            return "func is created anew for every solve, or the solve itself is being captured"
        inputs = {id(x) for x in tensors_in(field.args)} | set(own_leaves(field.func)[1])
        if field.outside:
            return "func can reach a tensor that requires grad and is not among its inputs: each step has to be checked"
        if any(id(x) not in inputs for x in plan.leaves):
            return "params= names tensors that are not parameters of func: a capture needs separate leaves for them"
        return None

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """See :class:`Stepper`."""
        single = SingleSteps(plan, run)
        soon = self.always or backward or plan.steps >= GRAPHS_AT_ONCE
        repeats = 1 if soon else GRAPHS_REPEATS
        static, why = lease(plan, like, (size, self.split), repeats, lambda: Static(plan, like, size, self.split))
        if static is not None:
            if static.split and not self.split:
                run.why += "; func is called once for many steps of a backward pass, which was measured to be faster"
            return CudaGraphSteps(plan, run, static, single, self.always)
        if self.always:
            raise InputError(f"stepper='cuda-graph' cannot take these steps: {why}. Use stepper='auto'.")
        run.stepper, run.why = "single", why
        return single


class CudaGraphSteps(Steps):
    """Blocks of steps by replaying their graphs; single steps if ``func`` cannot be captured."""

    def __init__(self, plan: Plan, run: Run, static: Static, single: SingleSteps, always: bool) -> None:
        self.plan, self.run, self.static, self.single, self.always = plan, run, static, single, always
        self.on = True
        # the initial row has no local weight: if gradients of local weights are needed, its block is not captured
        self.weighs = plan.weigh and not isinstance(plan.scheme, OneStage)

    def __enter__(self) -> Steps:
        self.static.begin(self.plan)
        return self

    def __exit__(self, *error: object) -> None:
        release(self.static)

    def room(self, count: int, backward: bool) -> Tensor | None:
        """See :class:`Steps`."""
        return self.static.room(count, backward) if self.on else None

    def prepare(self, steps: range, read: Callable[[int], Tensor]) -> None:
        """See :class:`Steps`; rows are read before the sums are computed, since reading may replay forward graphs."""
        if self.on:
            for k, n in enumerate(steps):
                self.static.x[k].copy_(read(n))

    def forward(self, task: Task) -> Filled:
        """See :class:`Steps`."""
        graph = self._graph(task, None)
        if graph is None:
            return self.single.forward(task)
        self.static.take(self.plan, task, graph)
        count = task.block.count
        graph.replay()
        rows = self.static.rows[:count]
        slopes = self.static.past(1)[:, :count, 0].transpose(0, 1)
        return Filled(rows, rows[:, 0] if rows.shape[1] == 1 else self.static.states[:count], slopes)

    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """See :class:`Steps`."""
        static, count, high = self.static, task.block.count, task.steps[0]
        read = (lambda n: static.x[high - n]) if self.on else pull.read
        graph = None if self.weighs and task.origin is not None else self._graph(task, pull)
        if graph is None:
            return self.single.backward(task, replace(pull, read=read))
        static.take(self.plan, task, graph)
        mu = static.past(self.plan.scheme.sums)[:, :count].permute(1, 2, 0, 3)
        mu.zero_()
        for k, grad in enumerate(pull.grads):
            if grad is not None:
                mu[k, 0].copy_(grad)
        graph.replay()
        if self.weighs and static.totals is not None and static.totals.local is not None:
            pull.totals.add_locals(task.steps, static.totals.local[:count])
        return mu, static.slopes[:count] if pull.weigh else None

    def finish(self, totals: Totals) -> None:
        """See :class:`Steps`."""
        if self.static.totals is not None:
            totals.add([None if g is None else g.clone() for g in self.static.totals.tensors])

    def _graph(self, task: Task, pull: Pull | None) -> Graph | None:
        """The graph of blocks of this length; None if it cannot be captured, and steps are single from then on."""
        if not self.on:
            return None
        try:
            return self.static.graph(self.plan, task, pull)
        except Exception as error:
            self.on = False
            reason = f"func could not be captured as a CUDA graph: {type(error).__name__}: {error}".splitlines()[0]
            forget(self.plan, self.static, reason)
            if self.always:
                raise InputError(f"stepper='cuda-graph' cannot take these steps: {reason}.") from error
            self.run.stepper, self.run.why = "single", reason
            return None
