"""The reverse sweep of the discrete scheme: exact by construction, for every scheme and every history."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from torch import Tensor

from ..demand import unvalued
from ..history import Blocked, ieee, precise
from ..loop import sweep
from ..schemes import Cotangents
from . import forward
from .again import Replay, Segments
from .batched import UnbatchableError, log, suits, sweep_blocks
from .captured_blocks import CapturedBlocks
from .forward import Record
from .graphs import lease, ready
from .plain import is_plain, retreat
from .plan import Coefficients, Plan
from .step import Trace, traced_step
from .sweeps import history_for
from .totals import Found, Totals


@dataclass(frozen=True)
class Exact:
    """The adjoint of the discrete scheme; each step's graph is made again when the sweep reaches it.

    Memory: one step's graph and N rows, or less, as the history and the storage have it.

    Args:
        batched: take a block of steps at a time, with ``func`` vectorised over time: for small
            states. Default: where the state has few numbers and ``func`` can be vectorised over time.
    """

    batched: bool | None = None
    stores_graph = False

    def pull(
        self, plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Found:
        """See :class:`Adjoint`."""
        return reverse_sweep(plan, record, c, z0, grads, self.batched)


@dataclass(frozen=True)
class Direct:
    """The same gradient from graphs kept since the forward pass: the baseline, with memory for N graphs of ``func``."""

    stores_graph = True

    def pull(
        self, plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Found:
        """See :class:`Adjoint`."""
        return reverse_sweep(plan, record, c, z0, grads, batched=False)


def reverse_sweep(
    plan: Plan,
    record: Record,
    c: Coefficients,
    z0: Tensor,
    grads: tuple[Tensor, Tensor | None],
    batched: bool | None,
) -> Found:
    """From the last step to the first: the transposed history feeds each step's vector-Jacobian product."""
    spare = record.tape.engine if isinstance(record.tape, Replay) else None
    like = z0 if c.base is None else z0[0]
    engine = history_for(plan, like).reverse(c.weights, plan.steps, like, spare, plan.weigh)
    total = Totals(plan, c, z0, grads, record.heads)
    if suits(plan, record, engine, total, batched):
        assert isinstance(engine, Blocked)
        try:
            with ieee(z0):
                sweep_blocks(plan, record, engine, total)
            return total.found(engine.weights_grad)
        except UnbatchableError as reason:
            log.info("backward pass step by step, since func cannot be batched over time: %s", reason)
            if engine.started:
                record = forward.run(plan, c, z0, trace=False)[2]
            return reverse_sweep(plan, record, c, z0, grads, batched=False)

    def visit(n: int, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        grad_z, grad_v = total.incoming(n, past)
        if captured is not None and 0 < n < plan.steps and grad_v is not None:
            assert record.tape is not None
            sums, slope = captured.pull(n, record.tape.read(n), grad_z, grad_v)
            local = None
        else:
            found, slope = pull(n, grad_z, grad_v)
            sums, local = found.sums, found.local
            total.add_tensors(found.tensors)
        total.add(n, sums)
        if plan.weigh:
            total.weigh(n, sums, local, slope)
        if plan.callback is not None:
            plan.callback(plan.steps - n, plan.steps)
        return sums, slope.clone() if plan.weigh else slope

    dense = c.dense is not None

    def pull(n: int, grad_z: Tensor | None, grad_v: Tensor | None) -> tuple[Cotangents, Tensor]:
        traced = _trace(plan, record, n, dense)
        found = plan.scheme.pull(n, *traced, record.local_at(n), grad_z, grad_v, total.wanted)
        return found, unvalued(like) if traced.v is None else traced.v.detach()

    with contextlib.nullcontext() if record.traces else lease(plan, c, like, engine) as leased:
        captured = ready(leased, plan, engine)
        if isinstance(record.tape, Segments):
            record.tape.captured = captured
        by_blocks = captured is None or isinstance(captured, CapturedBlocks)
        if by_blocks and record.tape is not None and is_plain(engine, plan, c):
            retreat(plan, engine, record.tape, total, captured)
        else:
            sweep(precise(engine, z0), range(plan.steps, -1, -1), visit)
        if captured is not None:
            total.add_captured(*captured.taken())
    return total.found(engine.weights_grad)


def _trace(plan: Plan, record: Record, n: int, dense: bool) -> Trace:
    if record.traces:
        return record.traces.pop()  # the last steps come first, and let their graphs go
    assert record.tape is not None
    return traced_step(plan, n, record.tape.read(n), record.local_at(n), plan.needs_slope(n, dense))
