"""Many steps at once, for small states, where a step costs little more than its Python calls.

The slopes of a block satisfy ``v = f(t, c + W v)``: W are the weights inside the block, strictly lower triangular, and
``c`` are the contributions of earlier blocks. Picard's iteration inserts a guess of all slopes into the right-hand
side, with ``func`` vectorised over time. Each iteration makes at least one more step exact, and on a short interval
adds about one digit to all of them: some twenty iterations give a hundred steps as the scheme defines them, to
rounding. Stages inside a step are iterated along with the rest, see :meth:`Scheme.relax`. If the iteration does not
converge soon, steps are taken singly.

In the backward pass the states are known, and one call of ``func`` gives the graph of all steps. What remains is
linear, ``v̄ = c + Wᵀ μ``, ``μ = Jᵀ (z̄, v̄)``, and is iterated in the same way; an implicit step adds ``w_0 μ`` to its
own ``v̄``.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...base.caches import capturing
from ...base.policy import (
    IMPLICIT_CALLS,
    NEWTON_NUMBERS,
    PICARD_BLIND,
    PICARD_BLOCKS,
    PICARD_EXTRA,
    PICARD_FEWEST,
    PICARD_NUMBERS,
    PICARD_NUMBERS_GPU,
    PICARD_STIFF,
    PICARD_STILL,
    PICARD_TOGETHER,
    PICARD_UNEVEN,
    STAGE_NEAR,
)
from ...errors import InputError
from ...schemes import Newton
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, largest, same, why_single
from .block import BlockOfSteps, Pace, Settling
from .newton_block import newton
from .single import SingleSteps
from .whole_blocks import WholeBlocks


@dataclass(frozen=True)
class Picard(Stepper):
    """Many steps of a small state at once, with ``func`` vectorised over time.

    Args:
        always: use it even for few steps, and raise if ``func`` cannot be vectorised; otherwise such steps are single.
    """

    always: bool = True
    name = "picard"

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        if plan.scheme.stages == 0:
            return f"{type(plan.scheme).__name__} does not say how its stages are iterated (relax)"
        if capturing():
            return "the solve is being captured, and testing for convergence would read from the device"
        return why_single(plan.field)

    def longer(self, like: Tensor) -> int:
        """See :class:`Stepper`."""
        return PICARD_BLOCKS if like.numel() <= (PICARD_NUMBERS_GPU if like.is_cuda else PICARD_NUMBERS)[0] else 1

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """See :class:`Stepper`."""
        return PicardSteps(plan, run, like, self.always)


class PicardSteps(Steps):
    """Blocks of steps by Picard's iteration; single steps if it does not converge."""

    compares = True

    def __init__(self, plan: Plan, run: Run, like: Tensor, always: bool) -> None:
        self.plan, self.run, self.scheme, self.always = plan, run, plan.scheme, always
        eps = torch.finfo(like.dtype).eps
        self.pace = Pace(max(1, PICARD_TOGETHER[like.is_cuda] // like.numel()))
        self.calls = IMPLICIT_CALLS if plan.scheme.implicit else plan.scheme.stages
        solver = getattr(plan.scheme, "solver", None)
        self.tol = max(4 * eps, (solver.tol or 0.0) if solver is not None and plan.scheme.implicit else 0.0)
        self.by_newton = plan.scheme.implicit and isinstance(solver, Newton) and like.shape[0] == 1
        self.few = NEWTON_NUMBERS // like.shape[1]  # how many steps Newton's method solves together
        tiny = self.by_newton and not like.is_cuda and self.few * self.calls >= PICARD_FEWEST[0]
        self.tried = not tiny  # for a tiny state, False until Picard's iteration has failed to converge
        self.fewest = 1 if always or like.is_cuda or tiny else PICARD_FEWEST[plan.train]
        self.iterated = False
        self.large = like.is_cuda or like.numel() > PICARD_NUMBERS[1]
        self.settling = Settling(plan, like, self.tol)
        self.blocks = WholeBlocks(self.settling.samples, True, lambda count: 2 * self.most_iterations(count))
        self.latest: Tensor | None = None  # the last slope of the block before

    @cached_property
    def single(self) -> SingleSteps:
        """Steps one by one."""
        return SingleSteps(self.plan, self.run)

    def __exit__(self, *error: object) -> None:
        """See :class:`Steps`."""
        if not self.iterated and self.run.stepper == "picard":
            self.run.stepper, self.run.why = "single", "few steps, which are taken singly"

    def most_iterations(self, count: int) -> int:
        """The most iterations for so many steps: half of the calls that they replace, plus a few."""
        return PICARD_EXTRA + count * self.calls // 2

    def forward(self, task: Task) -> Filled:
        """See :class:`Steps`."""
        block = BlockOfSteps(task, self.plan)
        k, count = int(task.origin is not None), task.block.count
        if task.origin is not None:
            self.settling.scale = block.begin(self.plan.field.initial).abs()
            if not self.tried and bool((task.local[-1] > PICARD_UNEVEN * task.local[:2][-1]).any()):
                self._by_newton()
        else:  # the first guess
            block.latest = torch.zeros_like(block.latest) if self.latest is None else self.latest
        while k < count:
            size = self.pace.next(count - k)
            if self.pace.alone or size * self.calls < self.fewest:
                size = min(self.pace.alone or count, count - k)
                block.keep_filled(k, self.single.forward(block.part(k, k + size)))
                self.pace.alone = max(0, self.pace.alone - size)
                k += size
                continue
            self.iterated = True
            done = self._iterate(block, k, k + size)
            if done < size and not self.tried:
                self._by_newton()
            elif done < size and self.pace.most and not self.pace.alone:
                self.pace.most = size // 2
                if self.scheme.implicit and self.pace.most * self.calls < self.fewest:
                    self.pace.rest()
            k += done
        self.latest = block.latest.clone()
        return block.filled()

    def _by_newton(self) -> None:
        """Switch to Newton's method for the steps of a tiny state, since Picard's iteration does not converge."""
        self.tried = True
        self.pace.begin(self.few if self.run.vectorised else 0)

    def _iterate(self, block: BlockOfSteps, a: int, b: int) -> int:
        """Take steps a … b-1 together; returns how many of them have converged: all, the first half, or none."""
        base, weights = block.base(a, b), block.weights(a, b)
        if self.by_newton and (b - a) * base.shape[-1] <= NEWTON_NUMBERS:
            return self._newton(block, a, b, base, weights)
        scheme, w0, times = self.scheme, block.w0[..., a:b, :], block.times(a, b, self.scheme.stages)
        slopes = block.latest.expand(scheme.stages, *block.lead, b - a, -1)
        states = before = slopes[-1]
        moved = change = math.inf
        for k in range(self.most_iterations(b - a) if self.tried else 2 * PICARD_EXTRA):
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
                    if not (moved <= last or moved <= STAGE_NEAR * largest(states[..., 0, :])):
                        return self._stiff(moved / last if last > 0 else math.inf)
                settled = self.settling.settled(before, states)
                if settled is None:
                    return 0
                if not settled and (k > PICARD_EXTRA or self.large):
                    last, change = change, largest(states - before)
                    still = change > last / 2, change > PICARD_STILL * last
                    settled = still[0] and self.settling.rough(block, (a, b), stages, slopes, states - before, still[1])
                if settled:
                    return self._take(block, a, b - a, sums, states, slopes[-1], states, slopes[-1])
        half = (b - a) // 2
        if half and self.settling.settled(before[..., :half, :], states[..., :half, :]):
            return self._take(block, a, half, sums, states, slopes[-1], states, slopes[-1])
        return 0

    def _newton(self, block: BlockOfSteps, a: int, b: int, base: Tensor, weights: Tensor) -> int:
        """Take a few implicit steps of a tiny state by Newton's method, which also converges if they are stiff."""
        try:
            times = block.times(a, b, base.shape[-1] + 1)
            found = newton(block, base, weights + torch.diag(block.w0[a:b, 0]), times, self.settling.scale, self.tol)
        except Exception as error:
            return self._give_up(error)
        return 0 if found is None else self._take(block, a, b - a, base, *found)

    def _take(self, block: BlockOfSteps, a: int, count: int, sums: Tensor, *found: Tensor) -> int:
        """Keep the first ``count`` steps from ``a`` on; ``found`` are their states and slopes, and a pair (put, got).

        The first time for this ``func``, it must return the same slope for the last of the states ``put`` as it did
        when vectorised, which is in ``got``.
        """
        states, slopes, put, got = found
        if not self.settling.samples.verdict.vectorised:
            n, last = block.task.steps[a + count - 1], count - 1
            if not same(block.row(got, last), self.plan.field(n, block.row(put, last))):
                return self._give_up(None)
            self.settling.samples.verdict.vectorised = True
        taken = states.narrow(-2, 0, count), slopes.narrow(-2, 0, count)
        if self.scheme.implicit and not self.settling.continued(block, a, *taken):
            return 0
        block.keep(a, count, sums, states, slopes)
        if a + count < block.task.block.count or block.task.steps[-1] < self.plan.steps:
            self.settling.grow(taken[0])
        return count

    def _stiff(self, growth: float) -> int:
        """Take further steps singly, since a stage does not contract; if it nearly does, try again later."""
        if growth < PICARD_STIFF or not self.tried:
            self.pace.rest()
        else:
            self.pace.most = 0
            self.run.stepper, self.run.why = "single", "func is too stiff for Picard's iteration"
        return 0

    def _give_up(self, error: Exception | None) -> int:
        """Take all further steps one by one."""
        self.run.vectorised, self.pace.most = False, 0
        reason = "it returns other values" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
        self.run.stepper, self.run.why = "single", f"func cannot be vectorised over time: {reason}"
        if self.always:
            raise InputError(
                f"stepper='picard' cannot take these steps: {self.run.why}. Use stepper='auto'."
            ) from error
        logging.getLogger("neuralfde").debug("steps are taken one by one, since %s", self.run.why)
        return 0

    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """See :class:`Steps`; if the block does not converge, or func has a checkpoint inside, steps are single."""
        rows = pull.read_block(task.steps)
        if self.pace.most > 0 and self.run.vectorised:
            try:
                found = self.blocks.pulled(task, pull, rows)
                if found is not None:
                    self.iterated = True
                    return found
                self.pace.most = 0
            except Exception as error:
                self._give_up(error)
        return self.single.backward(task, replace(pull, read=lambda n: rows[task.steps[0] - n]))
