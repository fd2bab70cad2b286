"""Many steps at once: for small states, where a step costs as much as its calls.

The slopes of a block obey ``v = f(t, c + W v)``: W holds the weights inside the block and is strictly lower triangular,
``c`` is all that was known before. Picard's iteration puts a guess of all slopes into the right-hand side, with
``func`` vectorised over time. Each iteration makes at least one more step exact; on a short interval about a digit in
all of them, so that some twenty iterations give a hundred steps as the scheme defines them, to rounding. Stages inside
a step are iterated along with the rest: see :meth:`Scheme.relax`. Where the iteration does not settle soon, steps are
taken singly.

Backward, the states are known and one call of ``func`` gives the graph of all steps. What remains is linear,
``v̄ = c + Wᵀ μ``, ``μ = Jᵀ (z̄, v̄)``, and is iterated in the same way; an implicit step adds ``w_0 μ`` to its own ``v̄``.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ...base.caches import Verdicts
from ...base.policy import (
    IMPLICIT_CALLS,
    NEWTON_NUMBERS,
    PICARD_BLIND,
    PICARD_BLOCKS,
    PICARD_FEWEST,
    PICARD_NUMBERS,
    PICARD_NUMBERS_IMPLICIT,
    PICARD_PARAMETERS,
    PICARD_TOGETHER,
    STAGE_GROWTH,
)
from ...errors import InputError
from ...schemes import Jacobian, Newton
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, why_single
from .block import BlockBackward, BlockOfSteps, most_iterations
from .newton_block import newton
from .single import SingleSteps
from .stacked import largest, same

log = logging.getLogger("neuralfde")


@dataclass(frozen=True)
class Picard(Stepper):
    """Many steps of a small state at once, with ``func`` vectorised over time.

    Args:
        always: whatever the size of the state; otherwise only where it pays.
    """

    always: bool = True
    name = "picard"

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        scheme, func = plan.scheme, plan.field.func
        if scheme.stages == 0:
            return f"{type(scheme).__name__} does not say how its stages are iterated (relax)"
        if not self.always and like.numel() > (PICARD_NUMBERS_IMPLICIT if scheme.implicit else PICARD_NUMBERS):
            return f"a state of {like.numel()} numbers"
        own = func.parameters() if isinstance(func, nn.Module) and not self.always else ()
        if sum(p.numel() for p in own) > PICARD_PARAMETERS:
            return "func has many parameters"
        return why_single(plan.field)

    def longer(self, like: Tensor) -> int:
        """See :class:`Stepper`."""
        return PICARD_BLOCKS if like.numel() <= PICARD_NUMBERS else 1

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """See :class:`Stepper`."""
        return PicardSteps(plan, run, like, self.always)


class PicardSteps(Steps):
    """Blocks of steps by Picard's iteration, single steps where it does not settle."""

    compares = True

    def __init__(self, plan: Plan, run: Run, like: Tensor, always: bool) -> None:
        self.plan, self.run, self.scheme, self.always = plan, run, plan.scheme, always
        self.single = SingleSteps(plan, run)
        eps = torch.finfo(like.dtype).eps
        self.most = max(1, PICARD_TOGETHER // like.numel())  # steps that may be iterated together
        self.calls = IMPLICIT_CALLS if plan.scheme.implicit else plan.scheme.stages
        solver = getattr(plan.scheme, "solver", None)
        self.tol = max(4 * eps, (solver.tol or 0.0) if solver is not None and plan.scheme.implicit else 0.0)
        self.by_newton = plan.scheme.implicit and isinstance(solver, Newton) and like.shape[0] == 1
        self.fewest = 1 if always else PICARD_FEWEST
        self.iterated = False
        self.vectorises = Verdicts.of(plan.field.func)
        self.kind = (plan.field.structure, plan.field.known_by)
        self.proven = self.kind in self.vectorises
        self.scale = like.new_zeros(())  # the largest states so far
        self.latest: Tensor | None = None  # the last slope of the block before

    def __exit__(self, *error: object) -> None:
        """See :class:`Steps`."""
        if not self.iterated and self.run.stepper == "picard":
            self.run.stepper, self.run.why = "single", "few steps, which are taken singly"

    def forward(self, task: Task) -> Filled:
        """See :class:`Steps`."""
        block = BlockOfSteps(task, self.plan)
        k, count = 0, task.block.count
        if task.origin is not None:
            self.scale = block.begin(self.single.initial).abs()
            k = 1
        else:  # or the first guess would be whatever lay in memory
            block.latest = torch.zeros_like(block.latest) if self.latest is None else self.latest
        while k < count:
            size = min(self.most, count - k)
            if size * self.calls < self.fewest:
                self._singly(block, k)
                break
            self.iterated = True
            done = self._iterate(block, k, k + size)
            if done < size:
                self.most = min(self.most, size // 2)
            k += done
        self.latest = block.latest.clone()
        return block.filled()

    def _singly(self, block: BlockOfSteps, a: int) -> None:
        """The rest of the block, step by step."""
        filled = self.single.forward(block.rest(a))
        block.keep_rows(a, filled.rows, filled.states, filled.slopes)

    def _iterate(self, block: BlockOfSteps, a: int, b: int) -> int:
        """Steps a … b-1 together; returns how many of them have settled: all, the first half, or none."""
        base, weights = block.base(a, b), block.weights(a, b)
        if self.by_newton and (b - a) * base.shape[-1] <= NEWTON_NUMBERS:
            return self._newton(block, a, b, base, weights)
        scheme, w0, times = self.scheme, block.w0[..., a:b, :], block.times(a, b, self.scheme.stages)
        slopes = block.latest.expand(scheme.stages, *block.lead, b - a, -1)
        states = before = slopes[-1]
        moved = math.inf
        for k in range(most_iterations(scheme, b - a)):
            sums = block.by_sums(block.product(base, weights, slopes[-1]))
            stages = scheme.relax(sums, slopes, w0)
            try:
                slopes = block.evaluate(times, stages)
            except Exception as error:
                return self._give_up(error)
            before, states = states, stages[-1]
            if k > PICARD_BLIND and k % 2:
                if scheme.implicit:
                    last, moved = moved, largest(before[..., 0, :] - states[..., 0, :])
                    if not (moved <= last or moved <= 1e-3 * largest(states[..., 0, :])):
                        return self._stiff()
                settled = self._settled(before, states)
                if settled is None:
                    return 0
                if settled:
                    return self._take(block, a, b - a, sums, states, slopes[-1], states, slopes[-1])
        half = (b - a) // 2
        if half and self._settled(before[..., :half, :], states[..., :half, :]):
            return self._take(block, a, half, sums, states, slopes[-1], states, slopes[-1])
        return 0

    def _newton(self, block: BlockOfSteps, a: int, b: int, base: Tensor, weights: Tensor) -> int:
        """Few implicit steps of a tiny state by Newton's method for the same equation: it does not mind stiffness."""
        try:
            times = block.times(a, b, base.shape[-1] + 1)
            found = newton(block, base, weights + torch.diag(block.w0[a:b, 0]), times, self.scale, self.tol)
        except Exception as error:
            return self._give_up(error)
        return 0 if found is None else self._take(block, a, b - a, base, *found)

    def _settled(self, before: Tensor, now: Tensor) -> bool | None:
        """Whether no state changes beyond rounding, relative to the largest one up to it; None: it never will.

        Later states do not count: what happens at the end of a block must not end the iteration for its beginning.
        """
        late, last = before.narrow(-2, -1, 1), now.narrow(-2, -1, 1)  # which settles last, and is cheap to look at
        excess = float((last - late).abs_().sub_(torch.maximum(last.abs(), self.scale), alpha=self.tol).max())
        if excess > 0:
            return False if math.isfinite(excess) else None
        size = torch.maximum(now.abs().cummax(-2).values, self.scale)
        excess = float((now - before).abs_().sub_(size, alpha=self.tol).max())
        return excess <= 0 if math.isfinite(excess) else None

    def _take(
        self,
        block: BlockOfSteps,
        a: int,
        count: int,
        sums: Tensor,
        states: Tensor,
        slopes: Tensor,
        put: Tensor,
        got: Tensor,
    ) -> int:
        """Keep the first ``count`` steps from ``a`` on.

        The first time for this ``func`` only if it, which was ``put`` states and gave the slopes ``got`` when it was
        vectorised, says the same of the last of them when it is not.
        """
        if not self.proven:
            n, last = block.task.steps[a + count - 1], count - 1
            if not same(block.row(got, last), self.plan.field(n, block.row(put, last))):
                return self._give_up(None)
            self.proven = self.vectorises.add(self.kind)
        if self.scheme.implicit and not self._continued(block, a, states[..., :count, :], slopes[..., :count, :]):
            return 0
        block.keep(a, count, sums, states, slopes)
        if a + count < block.task.block.count or block.task.steps[-1] < self.plan.steps:
            self.scale = torch.maximum(self.scale, states.narrow(-2, 0, count).abs().amax(-2, keepdim=True))
        return count

    def _continued(self, block: BlockOfSteps, a: int, states: Tensor, slopes: Tensor) -> bool:
        """Whether each step has the solution that is continued from the step before, as single steps would have it.

        Two solutions of a stage have ``w_0 (f(b) - f(a)) = b - a``; a move along which the slope grows less met one.
        """
        before = block.state(a - 1)
        if before is None:
            return True
        count = states.shape[-2]
        earlier = torch.cat([before if block.one else before.unsqueeze(1), states[..., :-1, :]], -2)
        d = states - earlier
        there = block.evaluate(block.times(a, a + count, 1), earlier[None])[0]
        grown = block.w0[..., a : a + count, :] * (slopes - there)
        if bool((d.sign() * grown <= STAGE_GROWTH * d.abs()).all()):
            return True
        m = self._sample(block.task.steps[a], block.row(earlier, 0))
        d, grown = ((x if block.one else x.transpose(0, 1)).reshape(count, -1, m) for x in (d, grown))
        size = d.abs().amax(-1, keepdim=True)
        return not bool(((d / size) * (grown - STAGE_GROWTH * d) / size).sum(-1).gt(0).any())

    def _sample(self, n: int, row: Tensor) -> int:
        """The numbers of a sample; found once for each func and kind of state."""
        sizes = [row.shape[k:].numel() for k in range(row.ndim + 1)]
        known = next((m for m in sizes if (self.kind, m) in self.vectorises), None)
        if known is None:
            known = Jacobian(partial(self.plan.field, n), row).part()
            self.vectorises.add((self.kind, known))
        return known

    def _stiff(self) -> int:
        """Take all further steps one by one: a stage by itself does not contract."""
        self.most = 0
        self.run.stepper, self.run.why = "single", "func is too stiff for Picard's iteration"
        return 0

    def _give_up(self, error: Exception | None) -> int:
        """Take all further steps one by one."""
        self.run.vectorised, self.most = False, 0
        reason = "it gives other values" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
        self.run.stepper, self.run.why = "single", f"func cannot be vectorised over time: {reason}"
        if self.always:
            raise InputError(
                f"stepper='picard' cannot take these steps: {self.run.why}. Use stepper='auto'."
            ) from error
        log.debug("steps one by one, since %s", self.run.why)
        return 0

    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """See :class:`Steps`; where the block does not settle, or func has a checkpoint inside, steps are single."""
        rows = torch.stack([pull.read(n) for n in task.steps])
        if self.most > 0 and self.run.vectorised is not False:
            try:
                block = BlockBackward(task, pull, rows, self.plan)
                found = block.solve()
                if found is not None:
                    self.iterated = True
                    return found[0], block.collect(*found)
                self.most = 0
            except Exception as error:
                self._give_up(error)
        high = task.steps[0]
        return self.single.backward(task, replace(pull, read=lambda n: rows[high - n]))
