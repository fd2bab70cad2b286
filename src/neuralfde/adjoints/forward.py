"""The forward pass, the same for every adjoint; it leaves behind what the backward pass starts from."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..history import Blocked, Engine, Snapshots, precise
from ..loop import sweep
from ..storage import Tape
from ..structure import all_finite
from . import sweeps
from .again import Replay, Segments
from .captured_blocks import CapturedBlocks
from .graphs import lease
from .plain import advance, is_plain
from .plan import Coefficients, Plan
from .step import Trace, arrive, kept_step, plain_step


@dataclass
class Record:
    """What a forward pass leaves for the backward pass; ``spent`` once its rows are overwritten, its graphs used."""

    locals: list[Tensor]
    tape: Tape | Replay | Segments | None = None
    heads: list[Tensor] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    spent: bool = False

    def release(self) -> None:
        """Give the memory of the rows back."""
        self.tape = None
        self.heads, self.traces = [], []

    def local_at(self, n: int) -> Tensor:
        """The leaf that stands for the weight of the slope of step ``n`` in its own row."""
        return self.locals[n if len(self.locals) > 1 else 0]


def run(
    plan: Plan, c: Coefficients, z0: Tensor, trace: bool, check: bool = False
) -> tuple[Tensor, Tensor | None, Record]:
    """Solve; returns states at the nodes, states between nodes, and the record.

    With ``trace`` every step keeps its autograd graph; ``check`` raises at the first step that is not finite.
    """
    if plan.slopes is not None:
        plan.slopes.clear()
    locals_ = (c.local if c.local.ndim > 1 else c.local[None]) if plan.train else ()
    record = Record([x.detach().requires_grad_(plan.weigh) for x in locals_])
    like = z0 if c.base is None else z0[0]
    engine = sweeps.history_for(plan, like).forward(c.weights, plan.steps, like)
    if trace and isinstance(engine, Blocked):
        engine.apart = True  # the steps' graphs are many, and the last ones need not share memory with sums of the past
    keeps_rows = plan.history.keeps_rows
    store = plan.train and not keeps_rows and not trace
    tape: Tape | Segments | None = None
    if store and plan.storage.recomputes:
        assert isinstance(engine, Snapshots)
        tape = Segments(plan, engine, c, z0, record.heads)
    elif store:
        tape = plan.storage.open(plan.steps + 1, (plan.scheme.sums, *like.shape), z0.dtype, z0.device)
    wanted = {n: k for k, n in enumerate(plan.nodes)}
    out = like.new_empty(len(plan.nodes), *like.shape)
    starts = 0 if c.start is None else c.start.shape[0]

    def visit(n: int, past: Tensor | None) -> tuple[Tensor, None]:
        x = arrive(plan, c, z0, record.heads, n, past, captured)
        slope = plan.needs_slope(n, c.dense is not None)
        if trace:
            traced, v = kept_step(plan, n, x, record.local_at(n), slope)
            record.traces.append(traced)
            z, v = traced.z.detach(), None if v is None else v.detach()
        else:
            _, z, v = plain_step(plan, n, x, c.local_at(n), slope, captured)
            if tape is not None:
                tape.write(n, x)
        if n in wanted:
            out[wanted[n]] = z
        if n < starts:
            record.heads.append(torch.zeros_like(z) if v is None else v.clone())
        if plan.slopes is not None and n < plan.steps:
            plan.slopes.append(torch.zeros_like(z) if v is None else v.clone())
        if check:
            _check_step(plan, n, z, v)
        if plan.callback is not None:
            plan.callback(n, plan.steps)
        return (torch.zeros_like(z) if v is None else v)[None], None

    with (
        plan.field.noise.borrowed(),
        contextlib.nullcontext() if trace or plan.graphs is False else lease(plan, c, like, engine, check) as captured,
    ):
        by_blocks = captured is None or isinstance(captured, CapturedBlocks)
        if captured is None and not trace and not check and sweeps.suits(plan, c, engine, z0):
            assert isinstance(engine, Blocked)
            sweeps.advance(plan, c, engine, z0, tape, out, record.heads)
        elif by_blocks and not trace and not check and is_plain(engine, plan, c):
            advance(plan, engine, z0, tape, out, range(plan.steps + 1), captured)
        else:
            sweep(precise(engine, z0), range(plan.steps + 1), visit)
    between = None if c.dense is None else _between(engine, c.dense, c.lift(z0, slice(plan.steps + 1, None)))
    record.tape = tape
    if plan.train and keeps_rows and not trace:
        assert isinstance(engine, Blocked)
        record.tape = Replay(plan, engine, c, z0, record.heads)
    plan.tally["history_bytes"] = engine.bytes + (0 if tape is None else tape.bytes)
    return out, between, record


def check_outputs(plan: Plan, c: Coefficients, z0: Tensor, outputs: tuple[Tensor | None, ...]) -> None:
    """Raise if an output is not finite; the solve is repeated to say at which step that began."""
    if all(o is None or all_finite(o) for o in outputs):
        return
    run(plan, c, z0, trace=False, check=True)
    raise NonFiniteError("the result contains NaN or infinity between grid points; reduce the step.")


def _between(engine: Engine, dense: Tensor, base: Tensor) -> Tensor:
    assert isinstance(engine, Blocked)
    return torch.einsum("ong,ngm->ogm", dense, engine.inputs[0].buffer.to(base.device)) + base


def _check_step(plan: Plan, n: int, z: Tensor, v: Tensor | None) -> None:
    if not all_finite(z):
        raise _not_finite(plan, n, "state")
    if v is not None and not all_finite(v):
        raise _not_finite(plan, n, "value of func")


def _not_finite(plan: Plan, n: int, what: str) -> NonFiniteError:
    t = float(plan.field.times[n])
    return NonFiniteError(
        f"the {what} became NaN or infinite at step {n} of {plan.steps} (t={t:g}). Every earlier step was finite. "
        "Try a smaller step, an implicit method ('trapezoid', 'gl', 'l1') if the problem is stiff, "
        "or look at func there; a solution that blows up in finite time has no value beyond it."
    )
