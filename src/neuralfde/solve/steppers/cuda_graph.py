"""Blocks of steps as CUDA graphs: the very functions of :mod:`.single`, captured once and replayed for every block.

A step of a small network is bound by the launches of its kernels; a block with static inputs is one launch. Graphs
belong to ``func``: they are found again by the next solve and go away with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...base.policy import GRAPHS_AT_ONCE, GRAPHS_REPEATS
from ...base.structure import replace_tensors, tensors_in
from ...errors import InputError
from ...history import Block
from ...rhs.field import Field
from ...schemes import OneStage
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, Totals, why_single
from .capture import CALLS, StreamLane, capture, capture_stream, new_leaves, own_leaves, refuse_second_holders
from .graph_cache import forget, lease, release
from .single import SingleSteps, fill, pull_back
from .work import Work, local_weights


@dataclass(frozen=True)
class CudaGraph(Stepper):
    """Blocks of steps replayed as CUDA graphs; Python code in ``func`` is then run once, not at every step.

    Args:
        always: capture at once, and raise where ``func`` cannot be captured; otherwise only where it pays.
    """

    always: bool = True
    name = "cuda-graph"

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        field = plan.field
        if like.device.type != "cuda":
            return f"the state is on {like.device}: CUDA graphs need a CUDA device"
        if plan.scheme.implicit:
            return "an implicit stage is solved to a tolerance, which the host has to look at"
        reason = why_single(field)
        if reason is not None:
            return reason
        if field.trace is None:
            return "func is made anew for every solve, or the solve itself is being captured"
        inputs = {id(x) for x in tensors_in(field.args)} | set(own_leaves(field.func)[1])
        if field.outside:
            return "func can reach a tensor that requires grad and is not among its inputs: each step is looked at"
        if any(id(x) not in inputs for x in plan.leaves):
            return "params= names tensors that are no parameters of func: a capture needs leaves of its own for them"
        return None

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """See :class:`Stepper`."""
        single = SingleSteps(plan, run)
        soon = self.always or backward or plan.steps >= GRAPHS_AT_ONCE
        static, why = lease(plan, like, size, 1 if soon else GRAPHS_REPEATS, lambda: Static(plan, like, size))
        if static is not None:
            return CudaGraphSteps(plan, run, static, single, self.always)
        if self.always:
            raise InputError(f"stepper='cuda-graph' cannot take these steps: {why}. Use stepper='auto'.")
        run.stepper, run.why = "single", why
        return single


class CudaGraphSteps(Steps):
    """Blocks of steps from their graphs; single steps where ``func`` cannot be captured."""

    def __init__(self, plan: Plan, run: Run, static: Static, single: SingleSteps, always: bool) -> None:
        self.plan, self.run, self.static, self.single, self.always = plan, run, static, single, always
        self.on = True
        # a step that is the initial row has no local weight: a block with a gradient of it is not captured
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
        """See :class:`Steps`: rows are read before the sums arrive, since reading may replay the forward pass."""
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
            self._add_local(task, pull.totals, static.totals.local[:count])
        return mu, static.slopes[:count] if pull.weigh else None

    def _add_local(self, task: Task, totals: Totals, grads: Tensor) -> None:
        """Gradients of the local weights of a block: of one weight for all steps in one sum."""
        if totals.local is not None and totals.local.ndim == 1:
            totals.add_local(0, grads.sum(0))
            return
        for n, grad in zip(task.steps, grads, strict=True):
            totals.add_local(n, grad)

    def finish(self, totals: Totals) -> None:
        """See :class:`Steps`."""
        if self.static.totals is not None:
            totals.add([None if g is None else g.clone() for g in self.static.totals.tensors])

    def _graph(self, task: Task, pull: Pull | None) -> Graph | None:
        """The graph of blocks of this length; None, and single steps from now on, if there can be none."""
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


@dataclass
class Graph:
    """One captured block: its weights inside, and how often it evaluates ``func``."""

    inner: Tensor
    given: Tensor | None = None
    captured: torch.cuda.CUDAGraph | None = None
    evaluations: int = 0

    def replay(self) -> None:
        """Run the steps of the block."""
        assert self.captured is not None
        self.captured.replay()


class Static:
    """The static inputs and outputs of the graphs of one solve, and the graphs, by direction and length of the block.

    Forward, ``rows`` are the sums of a block and become its rows, and ``past`` becomes its slopes. Backward, ``x`` are
    the rows of the forward pass, ``rows`` the gradients of the slopes; ``past`` holds the gradients of the states from
    outside and becomes the rows μ. Gradients of parameters add up in ``totals``. All graphs share one pool of memory;
    they never run at once.
    """

    def __init__(self, plan: Plan, like: Tensor, size: int) -> None:
        sums = plan.scheme.sums
        self.size, self.shape, self.busy = size, like.shape, True
        self.rows = like.new_empty(size, sums, *like.shape)
        self.rows.copy_(like)  # warming up at a state that exists
        self.flat = self.rows.new_zeros(self.rows.numel())
        self.states = torch.empty_like(self.rows[:, 0]) if sums > 1 else self.rows[:, 0]
        self.times, self.local = plan.field.times[:1].repeat(size), like.new_zeros(size, like.shape[0])
        self.args = [a.detach().clone().requires_grad_(a.requires_grad) for a in tensors_in(plan.field.args)]
        self.graphs: dict[tuple[bool, int], Graph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.totals: Totals | None = None

    @cached_property
    def x(self) -> Tensor:
        """The rows of the forward pass, in the order of the backward pass."""
        return self.rows.clone()

    @cached_property
    def slopes(self) -> Tensor:
        """The slopes of a block, in the order of the backward pass."""
        return torch.zeros_like(self.rows[:, 0])

    def past(self, inputs: int) -> Tensor:
        """The rows that a block gives, (groups, size, inputs, width)."""
        groups, width = self.shape
        return self.flat[: self.size * inputs * groups * width].view(groups, self.size, inputs, width)

    def room(self, count: int, backward: bool) -> Tensor:
        """Where the sums of a block of so many steps go."""
        if not backward:
            return self.rows[:count]
        return self.rows.view(-1)[: count * self.shape.numel()].view(count, 1, *self.shape)

    def begin(self, plan: Plan) -> None:
        """Take in what is new in this solve."""
        with torch.no_grad():
            for mine, given in zip(self.args, tensors_in(plan.field.args), strict=True):
                mine.copy_(given)
        for total in () if self.totals is None else self.totals.tensors:
            if total is not None:
                total.zero_()

    def take(self, plan: Plan, task: Task, graph: Graph) -> None:
        """Take in what is new in this block."""
        count, steps = task.block.count, task.steps
        low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1]) + 1
        times = plan.field.times[low:high]
        self.times[:count].copy_(times if steps.step > 0 else times.flip(0))
        if not isinstance(plan.scheme, OneStage):
            self.local[:count].copy_(task.local)
            if task.origin is not None:
                self.local[task.origin] = 0.0  # its state is given: c + 0 · f
        if task.inner is not graph.given:
            graph.inner.copy_(task.inner)
            graph.given = task.inner
        plan.field.evaluations += graph.evaluations

    def graph(self, plan: Plan, task: Task, pull: Pull | None) -> Graph:
        """The graph of blocks of this length, forward or (with ``pull``) backward."""
        key = (pull is not None, task.block.count)
        if key not in self.graphs:
            graph, sums = Graph(task.inner.clone(memory_format=torch.contiguous_format)), task.sums.clone()
            count = Block(0, task.block.count)
            still = Task(count, range(task.block.count), self.room(*key[::-1]), graph.inner, self.local[: count.count],
                         None, frozenset())  # fmt: skip
            field = plan.field.at(self.times, replace_tensors(plan.field.args, self.args))
            try:
                if pull is None:
                    graph.captured, graph.evaluations = self._capture_forward(plan, field, still)
                else:
                    graph.captured, graph.evaluations = self._capture_backward(plan, field, still, pull)
            finally:
                task.sums.copy_(sums)  # warming up has overwritten them, also where func cannot be captured
            self.graphs[key] = graph
        return self.graphs[key]

    def _capture_forward(self, plan: Plan, field: Field, task: Task) -> tuple[torch.cuda.CUDAGraph, int]:
        work = Work(task.inner, task.sums, field.shape, self.past(1))
        work.take(task.sums)
        local = local_weights(task.local, self.shape[0], weigh=False)

        def call() -> None:
            with torch.no_grad():
                fill(plan.scheme, field, task, work, local, field, self.states[: task.block.count])

        return capture(call, field.func, task.sums, self.pool), field.evaluations // CALLS

    def _capture_backward(self, plan: Plan, field: Field, task: Task, pull: Pull) -> tuple[torch.cuda.CUDAGraph, int]:
        refuse_second_holders(plan, self.args, field, self.x[0, 0].view(field.shape))
        work = Work(task.inner, task.sums, field.shape, self.past(plan.scheme.sums))
        work.take(task.sums)
        streams = [capture_stream(task.sums.device, lane) for lane in (0, 1)]
        pairs = zip(streams, reversed(streams), strict=True)
        lanes = [StreamLane(field, new_leaves(plan, self.args)[0], stream, other) for stream, other in pairs]
        if self.totals is None:
            self.totals = Totals(lanes[0].wanted, self.local, pull.weigh)
        totals = self.totals
        before = [None if g is None else g.clone() for g in totals.tensors]
        outside = [work.slots[k][0] for k in task.steps]
        inside = Pull(self.x.__getitem__, outside, totals, pull.weigh)
        slopes = self.slopes[: task.block.count] if pull.weigh else None

        def call() -> None:
            streams[1].wait_stream(streams[0])
            if totals.local is not None:
                totals.local.zero_()
            local = local_weights(task.local, self.shape[0], pull.weigh)
            with torch.enable_grad():
                pull_back(plan.scheme, task, work, local, inside, lanes, slopes)
            streams[0].wait_stream(streams[1])

        graph = capture(call, field.func, task.sums, self.pool)
        for total, then in zip(totals.tensors, before, strict=True):
            if total is not None:
                total.zero_() if then is None else total.copy_(then)  # warming up has added to them
        return graph, sum(lane.rhs.evaluations for lane in lanes) // CALLS
