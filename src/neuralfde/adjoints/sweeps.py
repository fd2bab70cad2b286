"""Small states on the CPU, where a step costs as much as its calls: many steps at once.

The slopes of a block obey ``v = f(t, c + W v)``: W holds the weights inside the block and is strictly lower triangular,
``c`` is all that was known before. A *sweep* puts a guess of all slopes into the right-hand side, with ``func``
vectorised over time. It makes at least one more step exact; on a short interval, as Picard's iteration does, about a
digit in all of them, so that some twenty sweeps give a hundred steps as the scheme defines them, to rounding. Stages
inside a step are swept along with the rest: see :meth:`Scheme.relax`.

Where sweeps do not settle soon, or ``func`` cannot be vectorised, steps are taken one by one.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor, nn

from ..history import Blocked, Engine
from ..schemes import OneStage
from ..storage import Tape
from .again import Segments
from .gathered import same
from .plan import Coefficients, Plan

log = logging.getLogger("neuralfde")

#: Numbers in a state up to which steps are swept, as every one is computed again in every sweep; in all parameters of
#: func up to which its cost is that of its calls; and in a state up to which a single step is mostly calls.
MOST_NUMBERS, MOST_PARAMETERS, WIDE = 64, 1 << 12, 1 << 14
# Steps from which on sweeps pay, and calls of func in a step that they may replace; for explicit and implicit schemes,
# whose steps are iterations already.
_FEWEST, _FEWEST_IMPLICIT, _CALLS_IMPLICIT = 32, 4, 8
# Sweeps before one looks whether they have settled, which costs as much as a small func.
_BLIND = 2


def suits(plan: Plan, c: Coefficients, engine: Engine, z0: Tensor) -> bool:
    """Whether the steps of this solve can be taken here."""
    small = z0.device.type == "cpu" and z0.numel() <= WIDE and plan.scheme.stages > 0
    alone = c.base is None and plan.known is None
    return small and alone and isinstance(engine, Blocked) and engine.toeplitz.lags.shape[1] == 1


def advance(
    plan: Plan,
    c: Coefficients,
    engine: Blocked,
    z0: Tensor,
    tape: Tape | Segments | None,
    out: Tensor,
    heads: list[Tensor],
) -> None:
    """A forward sweep over all steps; states at nodes go to ``out``, the first slopes to ``heads``."""
    block = Block(plan, c, engine, z0, keep=tape is not None)
    nodes = dict(zip(plan.nodes, out.unbind(0), strict=True))
    for first in range(0, plan.steps + 1, engine.block):
        block.open(first, engine.recall_block(first), heads)
        block.fill()
        if first == 0 and c.start is not None:
            heads.extend(v.clone() for v in block.slopes[: c.start.shape[0]].split(1))
        if plan.slopes is not None:
            plan.slopes.extend(block.slopes[: plan.steps - first].split(1))
        for n in range(first, first + block.count):
            if n in nodes:
                nodes[n].copy_(block.states[n - first])
            if plan.callback is not None:
                plan.callback(n, plan.steps)
        if tape is not None:
            tape.write_rows(first, block.rows.unsqueeze(2))
        engine.record_block(first, block.slopes.unsqueeze(1))


class Block:
    """The block being filled: its states and slopes (steps, width), and ``rows`` (steps, sums, width) to store."""

    def __init__(self, plan: Plan, c: Coefficients, engine: Blocked, z0: Tensor, keep: bool) -> None:
        self.plan, self.scheme, self.c, self.engine, self.z0, self.keep = plan, plan.scheme, c, engine, z0, keep
        implicit = plan.scheme.implicit
        self.fewest, self.calls = (_FEWEST_IMPLICIT, _CALLS_IMPLICIT) if implicit else (_FEWEST, plan.scheme.stages)
        self.most = engine.block if _may_sweep(plan, z0) else 0  # steps in a sweep
        self.unproven = True
        asked = plan.scheme.solver.tol if isinstance(plan.scheme, OneStage) and implicit else None
        self.tol = max(4 * torch.finfo(z0.dtype).eps, asked or 0.0)
        self.latest = z0  # the last slope

    def open(self, first: int, far: Tensor | None, heads: list[Tensor]) -> None:
        """Begin the block at step ``first``, to which older rows contribute ``far``."""
        self.first, self.count = first, min(self.engine.block, self.plan.steps + 1 - first)
        sums, count, width, start = self.scheme.sums, self.count, self.z0.shape[1], self.c.start
        base = self.z0 if far is None else far.view(sums, count, width).add_(self.z0)
        self.sums = base.expand(sums, count, width)
        self.weights = self.engine.toeplitz.block(first, count, first, first + count, latest_first=False)[:, 0]
        if start is not None and first == 0:
            early = start[:count, :count, 0].t().tril(-1)
            self.weights = self.weights.contiguous()
            self.weights[0, :, : early.shape[1]] += early
        elif start is not None:
            self.sums[0].addmm_(start[:, first : first + count, 0].t(), torch.cat(heads))
        self.states, self.slopes = self.z0.new_empty(count, width), self.z0.new_empty(count, width)
        self.rows = self.z0.new_empty(count if self.keep else 0, sums, width)

    def fill(self) -> None:
        """All steps of the block."""
        k = 0
        while k < self.count:
            size = min(self.most, self.count - k)
            if size < self.fewest or self.first + k == 0:
                self.step(k)
                k += 1
            elif self.sweep(k, k + size):
                k += size
            else:
                self.most = min(self.most, size // 2)

    def step(self, k: int) -> None:
        """One step."""
        n, scheme, field = self.first + k, self.scheme, self.plan.field
        sums = torch.addmm(self.sums[:, k], self.weights[:, k, :k], self.slopes[:k]) if k else self.sums[:, 0]
        x, local = sums.unsqueeze(1), self.c.local_at(n)
        if n > 0:
            x = scheme.locate(field, n, x, local)
        slope = self.plan.needs_slope(n, self.c.dense is not None)
        if n == 0 and slope and field.first_slope is not None:
            z, v, field.first_slope = x[0], field.first_slope, None
        else:
            z, v = scheme.evaluate(field, n, x, local, slope)
        self.latest = torch.zeros_like(z) if v is None else v
        self.states[k], self.slopes[k] = z[0], self.latest[0]
        if self.keep:
            self.rows[k] = x[:, 0]

    def sweep(self, a: int, b: int) -> bool:
        """Steps a … b-1 together; False if they do not settle."""
        scheme, field, count, width = self.scheme, self.plan.field, b - a, self.z0.shape[1]
        past = self.slopes[:a].expand(scheme.sums, a, width)
        base = torch.baddbmm(self.sums[:, a:b], self.weights[:, a:b, :a], past).view(-1, width)
        weights = self.weights[:, a:b, a:b].reshape(-1, count)
        local = self.c.local if self.c.local.ndim == 1 else self.c.local[self.first + a : self.first + b]
        times = field.times[self.first + a : self.first + b].repeat(scheme.stages)
        slopes = self.latest.expand(scheme.stages, count, width)
        states = slopes[-1]
        for k in range(count * self.calls // 2):
            sums = torch.addmm(base, weights, slopes[-1]).view(scheme.sums, count, width)
            stages = scheme.relax(sums, slopes, local)
            try:
                slopes = field.batch(times, stages.view(-1, 1, width)).view_as(stages)
            except Exception as error:
                return self.give_up(f"{type(error).__name__}: {error}")
            before, states = states, stages[-1]
            if k > _BLIND and k % 2:
                change = (states - before).abs_().amax(0)
                excess = float(change.sub_(states.abs().amax(0), alpha=self.tol).max())
                if excess <= 0:
                    return self.take(a, b, sums, states, slopes[-1])
                if not math.isfinite(excess):
                    return False
        return False

    def take(self, a: int, b: int, sums: Tensor, states: Tensor, slopes: Tensor) -> bool:
        """Keep what a sweep has found; the first time only if ``func`` says the same without being vectorised."""
        last, unproven, self.unproven = self.plan.steps, self.unproven, False
        if unproven and not same(slopes[-1:], self.plan.field(self.first + b - 1, states[-1:])):
            return self.give_up("it gives other values")
        self.states[a:b], self.slopes[a:b], self.latest = states, slopes, slopes[-1:]
        if self.keep:
            self.rows[a:b] = states.unsqueeze(1) if self.scheme.sums == 1 else sums.transpose(0, 1)
        if self.first + b > last and not self.plan.needs_slope(last, self.c.dense is not None):
            self.slopes[b - 1] = 0.0
        return True

    def give_up(self, reason: str) -> bool:
        """Take all further steps one by one."""
        log.debug("steps one by one, since func cannot be vectorised over time: %s", reason)
        self.most = 0
        return False


def _may_sweep(plan: Plan, z0: Tensor) -> bool:
    """Whether func seems cheap, and does nothing but return a value."""
    func = plan.field.func
    if plan.field.noise.active or z0.numel() > MOST_NUMBERS:
        return False
    if not isinstance(func, nn.Module):
        return True
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in func.modules())
    return not hooked and sum(p.numel() for p in func.parameters()) <= MOST_PARAMETERS
