"""The static tensors that captured blocks read and write, and their graphs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...base.policy import SPLIT_PASSES, SPLIT_SHARE, SPLIT_STEPS
from ...base.structure import replace_tensors, tensors_in
from ...base.torch_private import is_compiled, with_parameters
from ...history import Block
from ...rhs.field import Field
from ...schemes import OneStage
from ..plan import Plan
from .base import Pull, Task, Totals
from .capture import (
    CALLS,
    Leaves,
    StreamLane,
    capture,
    capture_stream,
    milliseconds,
    new_leaves,
    refuse_second_holders,
)
from .single import fill, pull_step
from .split import Split, pull_back_split
from .work import Work, local_weights


@dataclass
class Graph:
    """One captured block: the weights inside it, and how often it evaluates ``func``."""

    inner: Tensor
    given: Tensor | None = None
    captured: torch.cuda.CUDAGraph | None = None
    evaluations: int = 0

    def replay(self) -> None:
        """Run the steps of the block."""
        assert self.captured is not None
        self.captured.replay()


class Static:
    """The static inputs and outputs of the graphs of one solve, and the graphs by direction and length of the block.

    Forward, ``rows`` are the sums of a block and become its rows, and ``past`` becomes its slopes. Backward, ``x`` are
    the rows of the forward pass and ``rows`` the gradients of the slopes; ``past`` holds the incoming gradients of the
    states and becomes the rows μ. Gradients of parameters are summed in ``totals``. All graphs share one memory pool;
    they never run at the same time. ``split`` is None until a split backward pass has been tried.
    """

    def __init__(self, plan: Plan, like: Tensor, size: int, split: bool | None = False) -> None:
        sums = plan.scheme.sums
        self.size, self.shape, self.split, self.busy = size, like.shape, split, True
        self.passes = 0  # how many backward passes there were
        self.rows = like.new_empty(size, sums, *like.shape)
        self.rows.copy_(like)  # so that the warm-up evaluates func at a valid state
        self.flat = self.rows.new_zeros(self.rows.numel())
        self.states = torch.empty_like(self.rows[:, 0]) if sums > 1 else self.rows[:, 0]
        self.times, self.local = plan.field.times[:1].repeat(size), like.new_zeros(size, like.shape[0])
        self.args = [a.detach().clone().requires_grad_(a.requires_grad) for a in tensors_in(plan.field.args)]
        self.graphs: dict[tuple[bool, int], Graph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.totals: Totals | None = None
        self.parts: Split | None = None

    @cached_property
    def x(self) -> Tensor:
        """The rows of the forward pass, in the order of the backward pass."""
        return self.rows.clone()

    @cached_property
    def slopes(self) -> Tensor:
        """The slopes of a block, in the order of the backward pass."""
        return torch.zeros_like(self.rows[:, 0])

    def past(self, inputs: int) -> Tensor:
        """The resulting rows of a block, (groups, size, inputs, width)."""
        groups, width = self.shape
        return self.flat[: self.size * inputs * groups * width].view(groups, self.size, inputs, width)

    def room(self, count: int, backward: bool) -> Tensor:
        """Where the sums of a block of so many steps are written."""
        if not backward:
            return self.rows[:count]
        return self.rows.view(-1)[: count * self.shape.numel()].view(count, 1, *self.shape)

    def begin(self, plan: Plan) -> None:
        """Copy the inputs of this solve: the arguments of ``func``. Totals start from zero."""
        with torch.no_grad():
            for mine, given in zip(self.args, tensors_in(plan.field.args), strict=True):
                mine.copy_(given)
        for total in () if self.totals is None else self.totals.tensors:
            if total is not None:
                total.zero_()

    def take(self, plan: Plan, task: Task, graph: Graph) -> None:
        """Copy the inputs of this block: times, local weights, weights inside."""
        count, steps = task.block.count, task.steps
        low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1]) + 1
        times = plan.field.times[low:high]
        self.times[:count].copy_(times if steps.step > 0 else times.flip(0))
        if not isinstance(plan.scheme, OneStage):
            self.local[:count].copy_(task.local)
            if task.origin is not None:
                self.local[task.origin] = 0.0  # the initial state is given: c + 0 · f
        if task.inner is not graph.given:
            graph.inner.copy_(task.inner)
            graph.given = task.inner
        plan.field.evaluations += graph.evaluations

    def graph(self, plan: Plan, task: Task, pull: Pull | None) -> Graph:
        """The graph of blocks of this length, forward or (with ``pull``) backward."""
        key = (pull is not None, task.block.count)
        if key not in self.graphs:
            self.graphs[key] = self._captured(plan, task, pull, self.split or False)
        if pull is not None and task.block.start == 0:
            self.passes += 1
            if self.passes >= SPLIT_PASSES and self.split is None:
                self._try_split(plan, task, pull)
        return self.graphs[key]

    def _captured(self, plan: Plan, task: Task, pull: Pull | None, split: bool) -> Graph:
        """Capture the steps of a block; the sums of the block and the totals of the pass are restored afterwards."""
        graph, count = Graph(task.inner.clone(memory_format=torch.contiguous_format)), task.block.count
        still = Task(Block(0, count), range(count), self.room(count, pull is not None), graph.inner, self.local[:count],
                     None, frozenset())  # fmt: skip
        field = plan.field.at(self.times, replace_tensors(plan.field.args, self.args))
        with self._unchanged(task.sums):
            if pull is None:
                graph.captured, graph.evaluations = self._capture_forward(plan, field, still)
            else:
                graph.captured, graph.evaluations = self._capture_backward(plan, field, still, pull, split)
        return graph

    @contextlib.contextmanager
    def _unchanged(self, sums: Tensor) -> Iterator[None]:
        """Context in which graphs may overwrite sums and add to totals; both are restored afterwards."""
        kept, totals = sums.clone(), [] if self.totals is None else self.totals.tensors
        before = {k: g.clone() for k, g in enumerate(totals) if g is not None}
        try:
            yield
        finally:
            sums.copy_(kept)
            for k, total in enumerate([] if self.totals is None else self.totals.tensors):
                if total is not None:
                    total.copy_(before[k]) if k in before else total.zero_()

    def _try_split(self, plan: Plan, task: Task, pull: Pull) -> None:
        """Split the backward pass if that makes a block faster."""
        key, self.split = (True, task.block.count), False
        if plan.steps < SPLIT_STEPS or not isinstance(plan.scheme, OneStage) or is_compiled(plan.field.func):
            return
        try:
            split = self._captured(plan, task, pull, True)
            with self._unchanged(task.sums):
                own, other = (milliseconds(graph.captured) for graph in (split, self.graphs[key]))  # type: ignore[arg-type]
        except Exception as error:  # func cannot be split or vectorised, or takes too much memory
            logging.getLogger("neuralfde").debug("the backward pass is not split: %s", error)
            self.parts = None
            return
        self.split = own < SPLIT_SHARE * other
        if self.split:
            self.graphs = {k: graph for k, graph in self.graphs.items() if not k[0]} | {key: split}
        else:
            self.parts = None

    def _capture_forward(self, plan: Plan, field: Field, task: Task) -> tuple[torch.cuda.CUDAGraph, int]:
        work = Work(task.inner, task.sums, field.shape, self.past(1))
        work.take(task.sums)
        local = local_weights(task.local, self.shape[0], weigh=False)

        def call() -> None:
            with torch.no_grad():
                fill(plan.scheme, field, task, work, local, field, self.states[: task.block.count])

        return capture(call, field.func, task.sums, self.pool), field.evaluations // CALLS

    def _capture_backward(
        self, plan: Plan, field: Field, task: Task, pull: Pull, split: bool
    ) -> tuple[torch.cuda.CUDAGraph, int]:
        refuse_second_holders(plan, self.args, field, self.x[0, 0].view(field.shape))
        work = Work(task.inner, task.sums, field.shape, self.past(plan.scheme.sums))
        work.take(task.sums)
        streams = [capture_stream(task.sums.device, lane) for lane in (0, 1)]
        pairs = zip(streams, reversed(streams), strict=True)
        leaves = [new_leaves(plan, self.args)[0] for _ in streams]
        lanes = [StreamLane(field, own, *pair) for own, pair in zip(leaves, pairs, strict=True)]
        if self.totals is None:
            self.totals = Totals(lanes[0].wanted, self.local, pull.weigh)
        totals = self.totals
        outside = [work.slots[k][0] for k in task.steps]
        inside = Pull(self.x.__getitem__, lambda steps: self.x[: len(steps)], outside, totals, pull.weigh)
        slopes = self.slopes[: task.block.count] if pull.weigh else None

        def call() -> None:
            streams[1].wait_stream(streams[0])
            if totals.local is not None:
                totals.local.zero_()
            local = local_weights(task.local, self.shape[0], pull.weigh)
            with torch.enable_grad():
                for k in range(task.block.count):
                    pull_step(plan.scheme, task, work, k, local[k], inside, lanes[k % len(lanes)], slopes)
            streams[0].wait_stream(streams[1])

        back = self._split(field, leaves[0], task.block.count, work, inside, slopes) if split else call
        graph = capture(back, field.func, task.sums, self.pool)
        return graph, task.block.count if split else sum(lane.rhs.evaluations for lane in lanes) // CALLS

    def _split(
        self, field: Field, leaves: Leaves, count: int, work: Work, pull: Pull, slopes: Tensor | None
    ) -> Callable[[], None]:
        """The backward pass of a block with one call of ``func`` for many steps."""
        names, given = list(leaves.own), [*leaves.own.values(), *leaves.args]
        times, states = self.times[:count], self.x[:count, 0].view(-1, *field.shape)

        def rhs(t: Tensor, z: Tensor, *given: Tensor) -> Tensor:
            own, args = dict(zip(names, given, strict=False)), list(given[len(names) :])
            with with_parameters(field.func, own, tie_weights=True):
                return field.when(t, z, replace_tensors(field.args, args))

        parts = self.parts = self.parts or Split(rhs, times[0], states[0], given, is_compiled(field.func))
        return lambda: pull_back_split(parts, (given, leaves.wanted), (times, states), work, pull, slopes)
