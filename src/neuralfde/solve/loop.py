"""The only loop over time, and the two passes that use it.

A forward pass goes from the first block of steps to the last: the memory returns the contribution of the past, the
stepper takes the steps, the memory stores their slopes. A backward pass is the same loop over the transposed memory.
Callbacks, output times, stored rows and slopes that are not needed are handled here and nowhere else.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ..base.caches import capturing
from ..base.policy import HELD_LAGS, KEPT_NUMBERS
from ..history import Block, Exponentials, Full, History, Memory, ieee, reduced
from ..history.wrappers import assembled, transposed
from ..storage import Device, Tape
from .plan import Coefficients, Plan, Run
from .rows import SlopeRows, Witness, readers
from .segments import SegmentRows
from .steppers import Filled, Pull, Single, SingleSteps, Stepper, Steps, Task, Totals, Yielded, choose

#: What is done with a block: from its sums and inner weights to the rows that the memory records, and their slopes.
Take = Callable[[Block, "Tensor | None", Tensor], "tuple[Tensor, Tensor | None]"]


def march(
    memory: Memory, times: range, like: Tensor, take: Take, room: Callable[[Block], Tensor | None] = lambda block: None
) -> None:
    """Go through these times block by block; the first begins a block. ``room`` says where to write sums, or None."""
    precise = partial(ieee, like) if like.is_cuda and reduced(like) else contextlib.nullcontext
    for start in range(times.start, times.stop, memory.block):
        block = Block(start, min(memory.block, times.stop - start))
        out = room(block)
        with precise():
            sums = memory.recall(block, out)
        rows, slopes = take(block, sums, memory.inner(block))
        del sums  # or it would live until the next block has made its own
        with precise():
            memory.record(block, rows, slopes)


@dataclass
class Record:
    """What a forward pass leaves for the backward pass.

    Attributes:
        tape: where the rows of the steps come from.
        engine: the memory of the forward pass, if the backward pass may reuse its space.
        heads: the first slopes, if they have starting weights.
        steps: the stepper, if it has kept the graphs of the steps.
        witness: some slopes, which ``func`` must return again in the backward pass.
        spent: its rows have been overwritten, or its graphs used: for another backward pass the solve is repeated.
    """

    tape: Tape | SlopeRows | SegmentRows | None = None
    engine: Memory | None = None
    heads: Tensor | None = None
    steps: Steps | None = None
    witness: Witness | None = None
    spent: bool = False

    def release(self) -> None:
        """Free the memory of the rows."""
        self.tape = self.engine = self.heads = self.steps = self.witness = None


@dataclass
class Gradients:
    """The gradients of one backward pass: of the coefficients, of the initial row or rows, and of ``plan.leaves``."""

    coefficients: tuple[Tensor | None, ...]
    z0: Tensor
    tensors: tuple[Tensor | None, ...]


def forward(
    plan: Plan,
    run: Run,
    c: Coefficients,
    z0: Tensor,
    keep_graphs: bool = False,
    look: Callable[[Task, Filled], None] | None = None,
) -> tuple[Tensor, Tensor | None, Record]:
    """Solve; returns states at grid points, states between them, and the record.

    With ``keep_graphs`` every step keeps its autograd graph. ``look`` is called with each block; steps are then single.
    """
    like, run.slopes, run.repeated = z0 if c.base is None else z0[0], [], None
    stepper = choose(plan, run, like, keep_graphs) if look is None else Single()
    engine = _history(plan, run, c, stepper, like, keep_graphs).forward(c.weights, plan.steps, like)
    size = min(engine.block, plan.steps + 1)
    parts = assembled(engine, z0, plan.scheme.sums, c.start, c.dense, c.base, plan.known, plan.tables)
    tape = _open_tape(plan, c, parts.again, like) if plan.train and not keep_graphs else None
    out = like.new_empty(len(plan.nodes), *like.shape)
    again = plan.train and not keep_graphs and not capturing() and not like.is_meta
    witness = Witness(plan) if again else None
    before: Tensor | None = None

    def take(block: Block, sums: Tensor | None, inner: Tensor) -> tuple[Tensor, None]:
        nonlocal before
        assert sums is not None
        task = forward_task(plan, c, block, sums, inner, before)
        filled = steps.forward(task)
        if plan.scheme.implicit:
            before = filled.states[-1].clone()
        for k in task.idle:
            filled.slopes[k].zero_()
        _take_nodes(plan.nodes, block, filled.states, out)
        if tape is not None:
            tape.write_rows(block.start, filled.rows)
        if witness is not None:
            witness.note(task.steps, filled.states, filled.slopes)
        if plan.keep_slopes:
            run.slopes.append(filled.slopes[: plan.steps - block.start].clone())
        if look is not None:
            look(task, filled)
        if plan.callback is not None:
            for n in task.steps:
                plan.callback(n, plan.steps)
        return filled.slopes.unsqueeze(1), None

    steps = SingleSteps(plan, run, True) if keep_graphs else stepper.open(plan, run, like, size, backward=False)
    try:
        with steps:
            march(parts.memory, range(plan.steps + 1), like, take, lambda block: steps.room(block.count, False))
    except Yielded:
        return forward(plan, run, c, z0)
    if run.stages is not None:
        run.stages.warn()
    run.history_bytes = engine.bytes + sum(x.bytes for x in (tape, run.repeated) if x is not None)
    record = Record(tape, steps=steps if keep_graphs else None, witness=witness)
    if plan.train and parts.starting is not None:
        record.heads = parts.starting.heads
    if plan.train and tape is None and not keep_graphs:
        record.tape, record.engine = SlopeRows(plan, parts.again, c.local), engine
    return out, None if parts.between is None else parts.between.states, record


def backward(
    plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
) -> Gradients:
    """Pull gradients back from the last step to the first, over the transposed memory."""
    like = z0 if c.base is None else z0[0]
    wanted = [x for x in plan.leaves if x.requires_grad]
    totals = Totals(wanted, c.local, plan.weigh, plan.field.outside)
    stepper = choose(plan, run, like, record.steps is not None, backward=True)
    past = _history(plan, run, c, stepper, like, record.steps is not None)
    engine = past.reverse(c.weights, plan.steps, like, record.engine, plan.weigh)
    parts = transposed(
        engine, z0, plan.steps, c.start, c.dense, c.base, record.heads, grads[1], plan.weigh, plan.tables
    )
    steps = record.steps or stepper.open(plan, run, like, min(engine.block, plan.steps + 1), backward=True)
    if isinstance(record.tape, SegmentRows):
        record.tape.use(steps, march, forward_task)
    read, read_block, compare = readers(plan, c, record.tape, None if steps.compares else record.witness)
    outside = dict(zip(plan.nodes, grads[0].unbind(0), strict=True))

    def room(block: Block) -> Tensor | None:
        steps.prepare(_descending(plan, block), read)
        return steps.room(block.count, True)

    def take(block: Block, sums: Tensor | None, inner: Tensor) -> tuple[Tensor, Tensor | None]:
        if sums is None:
            place = steps.room(block.count, True)
            sums = like.new_zeros(block.count, 1, *like.shape) if place is None else place.zero_()
        task = backward_task(plan, c, block, sums, inner)
        grads: list[Tensor | None] = [None] * block.count
        for n in _nodes_in(plan.nodes, task.steps[-1], task.steps[0] + 1):
            grads[task.steps[0] - n] = outside[n]
        mu, slopes = steps.backward(task, Pull(read, read_block, grads, totals, plan.weigh, record.witness))
        compare()
        if plan.callback is not None:
            for n in task.steps:
                plan.callback(plan.steps - n, plan.steps)
        return mu, slopes

    with steps:
        march(parts.memory, range(plan.steps + 1), like, take, room)
        steps.finish(totals)
    # in a memory this is (sums, groups, …)
    lags = None if engine.weights_grad is None else engine.weights_grad.movedim(1, -1)
    supply = iter(totals.tensors)
    placed = tuple(next(supply) if x.requires_grad else None for x in plan.leaves)
    weights = (lags, totals.local, parts.start_grad(), parts.dense_grad(), parts.base_grad())
    return Gradients(weights, parts.initial_grad(), placed)


def forward_task(plan: Plan, c: Coefficients, block: Block, sums: Tensor, inner: Tensor, before: Tensor | None) -> Task:
    """The steps of a block in a forward pass."""
    idle = _idle(plan, c, {0: block.start == 0}, {block.count - 1: block.stop > plan.steps})
    local = c.local.expand(block.count, -1) if c.local.ndim == 1 else c.local[block.start : block.stop]
    origin = 0 if block.start == 0 else None
    return Task(block, range(block.start, block.stop), sums, inner, local, origin, idle, before)


def backward_task(plan: Plan, c: Coefficients, block: Block, sums: Tensor, inner: Tensor) -> Task:
    """The steps of a block in a backward pass."""
    steps, last, has_first = _descending(plan, block), block.count - 1, block.stop > plan.steps
    idle = _idle(plan, c, {last: has_first}, {0: block.start == 0})
    local = c.local.expand(block.count, -1) if c.local.ndim == 1 else c.local[steps[-1] : steps[0] + 1].flip(0)
    return Task(block, steps, sums, inner, local, last if has_first else None, idle)


def _descending(plan: Plan, block: Block) -> range:
    return range(plan.steps - block.start, plan.steps - block.stop, -1)


def _idle(plan: Plan, c: Coefficients, first: dict[int, bool], last: dict[int, bool]) -> frozenset[int]:
    """The steps of a block whose slope is not used: the first of some implicit schemes, the last of explicit ones."""
    scheme = plan.scheme
    found = {k for k, here in first.items() if here and plan.first > 0}
    if not scheme.implicit and not (c.dense is not None and scheme.uses_next_slope):
        found |= {k for k, here in last.items() if here}
    return frozenset(found)


def _history(plan: Plan, run: Run, c: Coefficients, stepper: Stepper, like: Tensor, keep_graphs: bool) -> History:
    """The history with blocks as long as the stepper prefers; short ones if graphs are kept, to save memory."""
    past = plan.history
    if isinstance(past, Exponentials):
        dense = c.start is not None or plan.backward_weights is not None or past.block > HELD_LAGS
        short = keep_graphs or dense  # these cases need the weights inside a block as a matrix
        return past if short else replace(past, span=stepper.span(run, like, plan.steps))
    if not isinstance(past, Full):
        return past
    block = max(1, past.block // 4) if keep_graphs else past.block * stepper.longer(like)
    return past if block == past.block else replace(past, block=block)


def _open_tape(plan: Plan, c: Coefficients, memory: Memory, like: Tensor) -> Tape | SegmentRows | None:
    """Where rows are written for the backward pass; None if they will be recomputed from the slopes."""
    few = (plan.steps + 1) * plan.scheme.sums * like.numel() <= KEPT_NUMBERS and isinstance(plan.storage, Device)
    if plan.history.keeps_slopes and not few:
        return None
    if plan.storage.recomputes:
        return SegmentRows(plan, c, memory, like)
    return plan.storage.open(plan.steps + 1, (plan.scheme.sums, *like.shape), like.dtype, like.device)


def _nodes_in(nodes: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    """The output grid points in [start, stop)."""
    return nodes[bisect_left(nodes, start) : bisect_left(nodes, stop)]


def _take_nodes(nodes: tuple[int, ...], block: Block, states: Tensor, out: Tensor) -> None:
    """Copy the states at output grid points inside this block to the result."""
    low, high = bisect_left(nodes, block.start), bisect_left(nodes, block.stop)
    if low < high and nodes[high - 1] - nodes[low] == high - 1 - low:
        out[low:high] = states[nodes[low] - block.start : nodes[high - 1] + 1 - block.start]
    else:
        for i in range(low, high):
            out[i] = states[nodes[i] - block.start]
