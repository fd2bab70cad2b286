"""Small states on the CPU, where a step costs its calls: many steps at once, or one at a time with few calls.

The slopes of a block obey ``v = f(t, c + W v)``: W holds the scheme's weights inside the block, strictly lower
triangular, and ``c`` all that is known before it. A *sweep* puts a guess of all slopes into the right-hand side, with
``func`` vectorised over time. Each sweep makes at least one more step exact, and in practice every further one gains
about a digit in all of them (Picard's iteration on a short interval), so that a dozen sweeps give a hundred steps as
the scheme defines them, to rounding. Stages inside a step are swept alike: :meth:`Scheme.relax`.

Where sweeps do not settle soon, or ``func`` cannot be vectorised, the block is taken step by step.
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
from .plan import Coefficients, Plan

log = logging.getLogger("neuralfde")

#: Numbers in a state up to which steps are swept: each number is computed once in every sweep.
MOST_NUMBERS = 64
#: Numbers among the parameters of ``func`` up to which its cost is that of its calls.
MOST_PARAMETERS = 1 << 12
#: Numbers in a state up to which a step is mostly calls.
WIDE = 1 << 14
# Steps from which on sweeps pay; a step of an implicit scheme is an iteration already.
_FEWEST, _FEWEST_IMPLICIT = 32, 4
# Evaluations that a step of an implicit scheme takes, about.
_ITERATIONS = 6


def suits(plan: Plan, c: Coefficients, engine: Engine, z0: Tensor) -> bool:
    """Whether the steps of this solve can be taken here."""
    small = z0.device.type == "cpu" and z0.numel() <= WIDE and plan.scheme.stages > 0
    alone = c.base is None and plan.known is None and plan.slopes is None
    return small and alone and isinstance(engine, Blocked) and engine.toeplitz.lags.shape[1] == 1


def advance(
    plan: Plan, c: Coefficients, engine: Blocked, z0: Tensor, tape: Tape | Segments | None, out: Tensor,
    heads: list[Tensor],
) -> None:  # fmt: skip
    """A forward sweep over all steps; states at nodes go to ``out``, the first slopes to ``heads``."""
    solver = Block(plan, c, engine, z0)
    nodes = {n: k for k, n in enumerate(plan.nodes)}
    for first in range(0, plan.steps + 1, engine.block):
        far = engine.recall_block(first)
        solver.open(first, far, heads)
        solver.fill()
        count = solver.count
        if first == 0 and c.start is not None:
            heads.extend(v[None].clone() for v in solver.slopes[: min(c.start.shape[0], count)])
        for n in range(first, first + count):
            if n in nodes:
                out[nodes[n]] = solver.states[n - first]
            if plan.callback is not None:
                plan.callback(n, plan.steps)
        if tape is not None:
            tape.write_rows(first, solver.rows.unsqueeze(2))
        engine.record_block(first, solver.slopes.unsqueeze(1))


class Block:
    """The block being filled: sums ``c`` (sums, steps, width), weights W (sums, steps, steps), states and slopes.

    ``rows`` are what the backward pass starts from, (steps, sums, width).
    """

    def __init__(self, plan: Plan, c: Coefficients, engine: Blocked, z0: Tensor) -> None:
        self.plan, self.c, self.engine, self.z0 = plan, c, engine, z0
        scheme, field = plan.scheme, plan.field
        self.scheme, self.field = scheme, field
        self.shape = field.structure.shapes[0] if field.structure.bare else None
        self.calls = _ITERATIONS if scheme.implicit else scheme.stages
        self.fewest = _FEWEST_IMPLICIT if scheme.implicit else _FEWEST
        self.most = engine.block if _vectorises(plan) else 0  # steps in a sweep; none from where they failed
        self.untried = True
        self.tol = 4 * torch.finfo(z0.dtype).eps

    def open(self, first: int, far: Tensor | None, heads: list[Tensor]) -> None:
        """Begin the block at step ``first``, to which older rows contribute ``far``."""
        self.first, self.count = first, min(self.engine.block, self.plan.steps + 1 - first)
        sums, count, width = self.scheme.sums, self.count, self.z0.shape[1]
        base = self.z0 if far is None else far.view(sums, count, width).add_(self.z0)
        self.sums = base.expand(sums, count, width)
        self.weights = self.engine.toeplitz.block(first, count, first, first + count, latest_first=False)[:, 0]
        start = self.c.start
        if start is not None and first == 0:
            early = torch.nn.functional.pad(start[:count, :count, 0].t(), (0, max(0, count - start.shape[0])))
            self.weights = torch.cat([self.weights[:1] + early.tril(-1), self.weights[1:]])
        elif start is not None:
            self.sums[0].addmm_(start[:, first : first + count, 0].t(), torch.cat(heads))
        self.states, self.slopes = self.z0.new_empty(count, width), self.z0.new_empty(count, width)
        self.rows = self.z0.new_empty(count, sums, width)

    def fill(self) -> None:
        """All steps of the block."""
        k = 0
        if self.first == 0:
            self.step(0)
            k = 1
        while k < self.count:
            size = min(self.most, self.count - k)
            if size < self.fewest:
                self.step(k)
                k += 1
            elif self.sweep(k, k + size):
                k += size
            else:
                self.most = size // 2

    def local(self, a: int, b: int) -> Tensor:
        local = self.c.local
        return local[None] if local.ndim == 1 else local[self.first + a : self.first + b]

    def sums_at(self, a: int, b: int) -> Tensor:
        """The sums of these steps from all slopes before them: (sums, steps, width)."""
        if a == 0:
            return self.sums[:, :b]
        return torch.baddbmm(self.sums[:, a:b], self.weights[:, a:b, :a], self.slopes[:a].expand(self.scheme.sums, -1, -1))

    def step(self, k: int) -> None:
        """One step."""
        n, scheme = self.first + k, self.scheme
        x = self.sums_at(k, k + 1)
        local = self.c.local_at(n)
        if n > 0:
            x = scheme.locate(self.field, n, x, local)
        slope = self.plan.needs_slope(n, self.c.dense is not None)
        if n == 0 and slope and self.field.first_slope is not None:
            z, v, self.field.first_slope = x[0], self.field.first_slope, None
        else:
            z, v = scheme.evaluate(self.field, n, x, local, slope)
        self.rows[k], self.states[k] = x[:, 0], z[0]
        self.latest = self.slopes[k]
        self.latest.copy_(torch.zeros_like(z[0]) if v is None else v[0])

    def sweep(self, a: int, b: int) -> bool:
        """Steps a … b-1 together; False if they do not settle."""
        scheme, count = self.scheme, b - a
        base = self.sums_at(a, b).reshape(-1, self.z0.shape[1])
        weights = self.weights[:, a:b, a:b].reshape(-1, count)
        local = self.local(a, b)
        times = self.field.times[self.first + a : self.first + b].repeat(scheme.stages)
        slopes = self.latest.expand(scheme.stages, count, -1)
        states = slopes[-1]
        for k in range(count * self.calls // 2):
            old = states
            sums = torch.addmm(base, weights, slopes[-1]).view(scheme.sums, count, -1)
            stages = scheme.relax(sums, slopes, local)
            states = stages[-1]
            slopes = self.field.batch(times, stages.view(times.shape[0], 1, -1)).view_as(stages)
            if k % 2 == 0:  # looking at a change costs as much as a small func
                continue
            change = float(((states - old).abs_().amax(0) / states.abs().amax(0)).max())
            if change <= self.tol:
                self.accept(a, b, sums, states, slopes[-1])
                return True
            if not math.isfinite(change):
                return False
        return False

    def accept(self, a: int, b: int, sums: Tensor, states: Tensor, slopes: Tensor) -> None:
        self.states[a:b], self.slopes[a:b], self.latest = states, slopes, slopes[-1]
        self.rows[a:b] = states[:, None] if isinstance(self.scheme, OneStage) else sums.transpose(0, 1)
        if self.first + b > self.plan.steps and not self.plan.needs_slope(self.plan.steps, self.c.dense is not None):
            self.slopes[b - 1] = 0.0


def _vectorises(plan: Plan) -> bool:
    return not plan.field.noise.active
