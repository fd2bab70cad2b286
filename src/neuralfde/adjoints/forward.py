"""The forward pass, the same for every adjoint; it leaves behind what the backward pass starts from."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..history import Blocked, Engine, Fading
from ..loop import sweep
from ..storage import Tape
from .plan import Coefficients, Plan


@dataclass
class Trace:
    """One step with its autograd graph: inputs ``x``, outputs ``z`` and ``v``."""

    x: Tensor
    z: Tensor
    v: Tensor | None


@dataclass
class Record:
    """What a forward pass leaves for the backward pass; ``spent`` once its rows have been overwritten."""

    local: Tensor
    tape: Tape | Replay | None = None
    v0: Tensor | None = None
    traces: list[Trace] = field(default_factory=list)
    spent: bool = False


class Replay:
    """Rows computed again, block by block, from the slopes a history has kept: no second buffer is needed."""

    def __init__(self, plan: Plan, engine: Blocked, coefficients: Coefficients, z0: Tensor, v0: Tensor | None) -> None:
        self.plan = plan
        self.engine = engine
        self.coefficients = coefficients
        self.z0 = z0
        self.v0 = v0
        self.first = plan.steps + 1
        self.sums: Tensor | None = None

    def read(self, n: int) -> Tensor:
        """Row ``n``; rows are asked for in descending order."""
        if n < self.first or self.sums is None:
            count = min(self.engine.levels[-1], n + 1)
            self.first = n + 1 - count
            self.sums = self.engine.product(self.first, count, 0, n + 1).add_(self.z0)
        c = self.sums[:, n - self.first]
        start = self.coefficients.start
        if start is not None and self.v0 is not None and n > 0:
            c[0].addcmul_(start[n, :, None], self.v0)
        if n == 0:
            return c
        return self.plan.scheme.restore(c, self.buffer[n], self.coefficients.local)

    @property
    def buffer(self) -> Tensor:
        """The slopes; slot ``n`` is free once row ``n`` has been read."""
        return self.engine.inputs[0].buffer

    @property
    def bytes(self) -> int:
        """What it holds, in bytes."""
        return self.buffer.numel() * self.buffer.element_size()


def run(
    plan: Plan, c: Coefficients, z0: Tensor, trace: bool, check: bool = False
) -> tuple[Tensor, Tensor | None, Record]:
    """Solve; returns states at the nodes, states between nodes, and the record.

    With ``trace`` every step keeps its autograd graph; ``check`` raises at the first step that is not finite.
    """
    record = Record(c.local.detach().requires_grad_(plan.weigh))
    engine = plan.history.forward(c.weights, plan.steps, z0)
    keeps_rows = plan.history.keeps_rows
    if plan.train and not keeps_rows and not trace:
        shape = (plan.scheme.sums, *z0.shape)
        record.tape = plan.storage.open(plan.steps + 1, shape, z0.dtype, z0.device)
    wanted = {n: k for k, n in enumerate(plan.nodes)}
    out = z0.new_empty(len(plan.nodes), *z0.shape)

    def visit(n: int, past: Tensor | None) -> tuple[Tensor, None]:
        sums = z0.expand(plan.scheme.sums, *z0.shape) if past is None else past.add_(z0)
        if c.start is not None and n > 0 and record.v0 is not None:
            sums = sums.clone() if past is None else sums
            sums[0].addcmul_(c.start[n, :, None], record.v0)
        x = sums if n == 0 else plan.scheme.locate(plan.field, n, sums, c.local)
        slope = plan.needs_slope(n, c.dense is not None)
        traced = traced_step(plan, n, x, record.local, slope) if trace else _plain_step(plan, n, x, c.local, slope)
        if trace:
            record.traces.append(traced)
        elif record.tape is not None:
            record.tape.write(n, x)  # type: ignore[union-attr]
        z, v = traced.z.detach(), None if traced.v is None else traced.v.detach()
        if n in wanted:
            out[wanted[n]] = z
        if n == 0 and c.start is not None:
            record.v0 = v
        if check and not bool(torch.isfinite(z).all()):
            raise _not_finite(plan, n, "state")
        if check and v is not None and not bool(torch.isfinite(v).all()):
            raise _not_finite(plan, n, "value of func")
        if plan.callback is not None:
            plan.callback(n, plan.steps)
        return (torch.zeros_like(z) if v is None else v)[None], None

    with plan.field.noise.borrowed():
        sweep(engine, range(plan.steps + 1), visit)
    between = None if c.dense is None else _between(engine, c.dense, z0)
    if plan.train and keeps_rows and not trace:
        assert isinstance(engine, Blocked)
        record.tape = Replay(plan, engine, c, z0, record.v0)
    plan.tally["history_bytes"] = _bytes(engine) + (0 if keeps_rows or record.tape is None else record.tape.bytes)
    return out, between, record


def _plain_step(plan: Plan, n: int, x: Tensor, local: Tensor, slope: bool) -> Trace:
    if n == 0 and slope and plan.field.first_slope is not None:
        return Trace(x, x[0], plan.field.first_slope)
    return Trace(x, *plan.scheme.evaluate(plan.field, n, x, local, slope))


def traced_step(plan: Plan, n: int, x: Tensor, local: Tensor, slope: bool) -> Trace:
    """Evaluate step ``n`` with gradients; only its own graph is made."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return Trace(x, *plan.scheme.evaluate(plan.field, n, x, local, slope))


def check_outputs(plan: Plan, c: Coefficients, z0: Tensor, outputs: tuple[Tensor | None, ...]) -> None:
    """Raise if an output is not finite; the solve is repeated to say at which step that began."""
    if all(o is None or bool(torch.isfinite(o).all()) for o in outputs):
        return
    run(plan, c, z0, trace=False, check=True)
    raise NonFiniteError("the result contains NaN or infinity between grid points; reduce the step.")


def _between(engine: Engine, dense: Tensor, z0: Tensor) -> Tensor:
    assert isinstance(engine, Blocked)
    return torch.einsum("ong,ngm->ogm", dense, engine.inputs[0].buffer) + z0


def _bytes(engine: Engine) -> int:
    if isinstance(engine, Fading):
        return engine.bytes
    return sum(r.buffer.numel() * r.buffer.element_size() for r in getattr(engine, "inputs", ()))


def _not_finite(plan: Plan, n: int, what: str) -> NonFiniteError:
    t = float(plan.field.times[n])
    return NonFiniteError(
        f"the {what} became NaN or infinite at step {n} of {plan.steps} (t={t:g}). Every earlier step was finite. "
        "Try a smaller step, an implicit method ('trapezoid', 'gl', 'l1') if the problem is stiff, "
        "or look at func there; a solution that blows up in finite time has no value beyond it."
    )
