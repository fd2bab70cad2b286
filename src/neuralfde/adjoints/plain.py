"""The plainest solve by whole blocks: ``z_n = z_0 + Σ w v_j``, ``v_n = f(t_n, z_n)``, and its adjoint.

An explicit scheme with one sum, on a state that is one tensor. The engine says what older rows contribute to a block;
inside it a step is one thin product, one call of ``func`` and one copy. Same numbers as the general visits of
:mod:`.forward` and :mod:`.reverse`, without the calls around them, which cost a small network as much as itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from ..demand import derivative_only
from ..history import BlockEngine, Engine, add_thin, ieee
from ..schemes import OneStage
from ..storage import Tape
from .captured import Captured
from .captured_blocks import CapturedBlocks
from .gathered import Gathered
from .plan import Coefficients, Plan
from .totals import Totals

if TYPE_CHECKING:
    from .again import Replay, Segments


#: Numbers in a state from which on a copy costs more than the calls it saves.
WIDE = 1 << 14


def is_plain(engine: Engine, plan: Plan, c: Coefficients) -> TypeGuard[BlockEngine]:
    """Whether a solve is as plain as this."""
    structure, scheme = plan.field.structure, plan.scheme
    explicit = isinstance(scheme, OneStage) and not scheme.implicit and plan.first == 0
    alone = c.base is None and c.start is None and c.dense is None and plan.known is None and plan.slopes is None
    return explicit and alone and structure.bare and structure.spans is None and getattr(engine, "single", False)


class Work:
    """The rows of the block being filled, in the order the engine keeps them.

    Wide rows are written where the engine keeps them; narrow ones to a block of their own, whose views are made once.
    """

    def __init__(self, engine: BlockEngine, shape: torch.Size, like: Tensor) -> None:
        self.engine, self.shape = engine, shape
        self.wide, self.on_gpu = shape.numel() > WIDE, like.device.type == "cuda"
        if not self.wide:
            self.bind(like.new_empty(engine.block, shape.numel()))

    def bind(self, rows: Tensor) -> None:
        """Fill these rows (steps, width)."""
        self.rows, size = rows, rows.shape[0]
        slots = rows.view(size, *self.shape).unbind(0)
        self.slots = slots[::-1] if self.engine.latest_first else slots
        self.pasts = [rows[size - k :] if self.engine.latest_first else rows[:k] for k in range(size)]

    def open(self, i: int) -> None:
        """Begin the block at time ``i``."""
        if self.wide:
            self.bind(self.engine.room(i))

    def add(self, row: Tensor, k: int) -> None:
        """Add what the k rows of the block so far contribute to row ``k`` (1, width)."""
        if k > 0 and self.on_gpu:
            add_thin(row, self.engine.thin[k], self.pasts[k])
        elif k > 0:
            row.addmm_(self.engine.thin[k], self.pasts[k])

    def taken(self, count: int) -> Tensor:
        """The rows of a block of this many steps: (count, 1, width)."""
        return (self.rows[-count:] if self.engine.latest_first else self.rows[:count]).unsqueeze(1)


def advance(
    plan: Plan,
    engine: BlockEngine,
    z0: Tensor,
    tape: Tape | Segments | None,
    out: Tensor | None,
    steps: range,
    captured: Captured | None = None,
) -> None:
    """A forward sweep over ``steps``, which begin a block; states at nodes go to ``out``; the last has no slope."""
    work = Work(engine, plan.field.structure.shapes[0], z0)
    nodes = {} if out is None else dict(zip(plan.nodes, out.unbind(0), strict=True))
    callback = None if out is None else plan.callback  # states computed again are no progress
    blocks = captured if isinstance(captured, CapturedBlocks) else None
    if blocks is not None:
        blocks.take_weights(engine)
    for first in range(steps.start, steps.stop, engine.block):
        count = min(engine.block, steps.stop - first)
        whole = blocks if count == engine.block else None
        with ieee(z0):
            far = engine.recall_block(first, None if whole is None else whole.rows)
        if whole is not None:
            rows, slopes = replay_forward(whole, first, far, z0, steps.stop - 1)
        else:
            work.open(first)
            rows = z0.expand(count, -1).clone() if far is None else far.view(count, -1).add_(z0)
            fill(plan, first, rows, work, steps.stop - 1, callback)
            slopes = work.taken(count)
        for n in range(first, first + count):
            if n in nodes:
                nodes[n].copy_(rows[n - first])
            if whole is not None and callback is not None:
                callback(n, plan.steps)
        if tape is not None:
            tape.write_rows(first, rows.view(count, 1, *z0.shape))
        with ieee(z0):
            engine.record_block(first, slopes)


def replay_forward(
    blocks: CapturedBlocks, first: int, far: Tensor | None, z0: Tensor, last: int
) -> tuple[Tensor, Tensor]:
    """States (count, width) and slopes (count, 1, width) of a whole block from its graph."""
    if far is None:
        blocks.rows.copy_(z0.expand(blocks.size, -1))
    else:
        blocks.rows.add_(z0)
    blocks.advance(first)
    if last < first + blocks.size:
        blocks.work[last - first].zero_()
    return blocks.rows, blocks.work.unsqueeze(1)


def fill(
    plan: Plan, first: int, rows: Tensor, work: Work, last: int, callback: Callable[[int, int], None] | None
) -> None:
    """The steps of one block; ``rows`` (count, width) become its states."""
    field, shape = plan.field, plan.field.structure.shapes[0]
    at, add, slots = field.at, work.add, work.slots
    states, lines = rows.view(-1, *shape).unbind(0), rows.split(1)
    for k, z in enumerate(states):
        n = first + k
        add(lines[k], k)
        if n == 0 and field.first_slope is not None:
            v, field.first_slope = field.first_slope.view(shape), None  # a row less until the backward pass has ended
        elif n == last:
            v = torch.zeros_like(z)
        else:
            v = at(n, z)
        if v.shape != shape:
            field.check(v)
        slots[k].copy_(v)
        if callback is not None:
            callback(n, plan.steps)


def retreat(
    plan: Plan,
    engine: BlockEngine,
    tape: Tape | Replay | Segments,
    total: Totals,
    captured: Captured | None = None,
) -> None:
    """A reverse sweep: ``v̄_n = Σ w μ``, ``μ_n = ḡ_n + J_nᵀ v̄_n``, from the last step to the first."""
    z0, last = total.z0, plan.steps
    blocks = captured if isinstance(captured, CapturedBlocks) else None
    work, gathered = Work(engine, plan.field.structure.shapes[0], z0), Gathered(plan, total)
    gathered.undecided &= blocks is None
    for first in range(0, last + 1, engine.block):
        count = min(engine.block, last + 1 - first)
        if blocks is not None and count == engine.block:
            read_states(blocks, last - first, tape)  # before the sums: it may replay steps of the forward pass
            with ieee(z0):
                far = engine.recall_block(first, blocks.bars)
            mu = replay_backward(blocks, last - first, far, total, engine.latest_first)
            z0.add_(mu.sum(0))
            if plan.callback is not None:
                for i in range(first, first + count):
                    plan.callback(i, plan.steps)
            with ieee(z0):
                engine.record_block(first, mu, blocks.slopes.unsqueeze(1) if plan.weigh else None)
            continue
        with ieee(z0):
            far = engine.recall_block(first)
        work.open(first)
        bars = z0.new_zeros(count, z0.shape[1]) if far is None else far.view(count, -1)
        states = torch.empty_like(bars) if gathered.on or gathered.undecided else None
        slopes = torch.zeros_like(bars) if plan.weigh or gathered.undecided else None
        with torch.enable_grad(), derivative_only(slopes is None):
            empty(plan, last - first, bars, work, tape, total, () if gathered.on else total.wanted, states, slopes)
        if states is not None:
            steps = slice(int(first == 0), count)  # the last state has no slope
            times = plan.field.times[last + 1 - first - count : last + 1 - first].flip(0)[steps]
            rows = states[steps].view(-1, *z0.shape)
            if gathered.on:
                gathered.pull(times, rows, bars[steps])
            elif slopes is not None:
                gathered.decide(times, rows, slopes[steps].view_as(rows))
        mu = work.taken(count)
        z0.add_(mu.sum(0))
        with ieee(z0):
            engine.record_block(first, mu, None if slopes is None else slopes.unsqueeze(1))


def read_states(blocks: CapturedBlocks, top: int, tape: Tape | Replay | Segments) -> None:
    """The states of the block from step ``top`` down."""
    for k in range(blocks.size):
        blocks.states[k].copy_(tape.read(top - k).view(-1))


def replay_backward(blocks: CapturedBlocks, top: int, far: Tensor | None, total: Totals, latest_first: bool) -> Tensor:
    """The rows μ (count, 1, width) of a whole block from its graph.

    The last state has no slope: its gradient of the slope is zero, and so is all that its product adds.
    """
    if far is None:
        blocks.bars.zero_()
    grads = {k: total.out[total.node[top - k]] for k in range(blocks.size) if top - k in total.node}
    blocks.take_grads(grads, latest_first)
    blocks.retreat(top, latest_first)
    return blocks.work.unsqueeze(1)


def empty(
    plan: Plan,
    top: int,
    bars: Tensor,
    work: Work,
    tape: Tape | Replay | Segments,
    total: Totals,
    wanted: Sequence[Tensor],
    states: Tensor | None,
    slopes: Tensor | None,
) -> None:
    """The steps of one block from ``top`` down; ``bars`` (count, width) become the gradients of its slopes.

    Gradients of the ``wanted`` tensors are added to the total; states and slopes are left behind where asked for.
    """
    field, callback, shape, steps = plan.field, plan.callback, plan.field.structure.shapes[0], plan.steps
    at, add, slots, node, out = field.at, work.add, work.slots, total.node, total.out.detach()
    grads, lines = bars.view(-1, *shape).unbind(0), bars.split(1)
    for k, grad in enumerate(grads):
        n = top - k
        add(lines[k], k)
        x = tape.read(n)
        if states is not None:
            states[k].copy_(x.view(-1))
        mu, v = None, None
        if n < steps:
            z = x.detach().view(shape).requires_grad_()
            v = at(n, z)
            if v.requires_grad:
                # what torch.autograd.grad does, without its checks, which take as long as a small layer
                mu, *found = _engine_run_backward(
                    (v,), (grad,), False, False, (z, *wanted), allow_unreachable=True, accumulate_grad=False
                )
                total.add_tensors(found)
        if mu is None:
            slots[k].zero_()
        else:
            slots[k].copy_(mu)
        if n in node:
            slots[k].add_(out[node[n]].view(shape))
        if slopes is not None and v is not None:
            slopes[k].copy_(v.detach().reshape(-1))
        if callback is not None:
            callback(steps - n, steps)
