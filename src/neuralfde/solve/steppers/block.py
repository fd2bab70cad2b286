"""A block of a forward pass as one equation, for Picard's and Newton's iterations, and tests of their convergence.

The rows of a block are (steps, width) here, or (groups, steps, width) if groups of elements have different orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...base.policy import STAGE_GROWTH, STAGE_NEAR
from ...history import Block, ieee, reduced
from ...schemes import Jacobian
from ...schemes.stage_solvers import roughness, rounded
from ..plan import Plan
from .base import Filled, Task, largest


class BlockOfSteps:
    """The steps of a block in a forward pass: their slopes, states and rows, as far as they are known."""

    def __init__(self, task: Task, plan: Plan) -> None:
        count, self.outs, groups, width = task.sums.shape
        self.task, self.field, self.one = task, plan.field, groups == 1
        self.lead = () if self.one else (groups,)
        self.product = precisely(torch.addmm if self.one else torch.baddbmm, task.sums)
        inner = task.inner[..., 0].transpose(1, 2)  # (groups, outputs, row, earlier)
        if self.one:
            self.sums, self.inner, self.w0 = task.sums[:, :, 0].transpose(0, 1), inner[0], task.local
        else:
            self.sums, self.inner, self.w0 = task.sums.permute(2, 1, 0, 3), inner, task.local.t().unsqueeze(2)
        self.slopes = task.sums.new_empty(*self.lead, count, width)
        self.states = torch.empty_like(self.slopes)
        self.rows = self.states.unsqueeze(0)
        if self.outs > 1:
            self.rows = self.slopes.new_empty(self.outs, *self.slopes.shape)
        self.latest = self.slopes.narrow(-2, 0, 1)

    def begin(self, initial: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Set the initial row and return its state, which is given; its slope is the first guess for all slopes."""
        task = self.task
        first = self.sums.narrow(-2, 0, 1)  # (…, outputs, 1, width)
        state = self.states.narrow(-2, 0, 1).copy_(first.select(-3, 0))
        if self.outs > 1:
            self.rows.narrow(-2, 0, 1).copy_(first if self.one else first.transpose(0, 1))
        if 0 in task.idle:
            self.latest = torch.zeros_like(state)
            self.slopes.narrow(-2, 0, 1).zero_()
        else:
            slope = initial(task.steps[0], state.reshape(self.field.shape))
            self.latest.copy_(slope.reshape(state.shape))
        return state

    def base(self, a: int, b: int) -> Tensor:
        """The sums of steps a … b-1 including the contributions of steps before ``a``, (…, outputs · steps, width)."""
        sums = self.sums[..., a:b, :].flatten(-3, -2)
        if a == 0:
            return sums
        return self.product(sums, self.inner[..., a:b, :a].flatten(-3, -2), self.slopes[..., :a, :])

    def weights(self, a: int, b: int) -> Tensor:
        """The weights between these steps, (…, outputs · steps, steps)."""
        return self.inner[..., a:b, a:b].flatten(-3, -2)

    def times(self, a: int, b: int, stages: int) -> Tensor:
        """The times of these steps, repeated for each stage."""
        first = self.task.block.start
        times = self.field.times[first + a : first + b]
        return times.repeat(stages) if stages > 1 else times

    def by_sums(self, sums: Tensor) -> Tensor:
        """(…, outputs · steps, width) as (outputs, …, steps, width)."""
        found = sums.view(*self.lead, self.outs, -1, sums.shape[-1])
        return found if self.one else found.transpose(0, 1)

    def evaluate(self, times: Tensor, stages: Tensor) -> Tensor:
        """The slopes at states (stages, …, steps, width) and times (stages · steps,)."""
        if self.one:
            return self.field.batch(times, stages.view(-1, *self.field.shape)).reshape(stages.shape)
        rows = stages.transpose(1, 2)
        return self.field.batch(times, rows.reshape(-1, *self.field.shape)).view(rows.shape).transpose(1, 2)

    def row(self, rows: Tensor, k: int) -> Tensor:
        """Row ``k`` in the shape that the right-hand side takes."""
        return rows[..., k, :].reshape(self.field.shape)

    def keep(self, a: int, count: int, sums: Tensor, states: Tensor, slopes: Tensor) -> None:
        """Set the results of steps a … a+count-1."""
        self.slopes.narrow(-2, a, count).copy_(slopes.narrow(-2, 0, count))
        self.states.narrow(-2, a, count).copy_(states.narrow(-2, 0, count))
        if self.outs > 1:
            self.rows.narrow(-2, a, count).copy_(sums.narrow(-2, 0, count))
        self.latest = self.slopes.narrow(-2, a + count - 1, 1)

    def keep_filled(self, a: int, steps: Filled) -> None:
        """Set the results of the steps from ``a`` on."""
        rows, states, slopes = steps.rows, steps.states, steps.slopes
        if self.one:
            parts = rows[:, :, 0].transpose(0, 1), states[:, 0], slopes[:, 0]
        else:
            parts = rows.permute(1, 2, 0, 3), states.transpose(0, 1), slopes.transpose(0, 1)
        self.keep(a, states.shape[0], *parts)

    def part(self, a: int, b: int) -> Task:
        """Steps a … b-1 as a separate task."""
        task, count = self.task, b - a
        sums = self.base(a, b).view(*self.lead, self.outs, count, -1)
        sums = sums.transpose(0, 1).unsqueeze(2) if self.one else sums.permute(2, 1, 0, 3)
        idle = frozenset(k - a for k in task.idle if a <= k < b)
        return replace(
            task, block=Block(task.block.start + a, count), steps=task.steps[a:b], sums=sums.contiguous(),
            inner=task.inner[:, a:b, :, a:b], local=task.local[a:b], origin=None, idle=idle, before=self.state(a - 1),
        )  # fmt: skip

    def state(self, k: int) -> Tensor | None:
        """The state of step ``k``, (groups, width); for -1 the one before the block, or None if it is not known."""
        if k < 0:
            return self.task.before
        return self.states[k : k + 1] if self.one else self.states[:, k]

    def filled(self) -> Filled:
        """All steps, in the shapes that the loop takes."""
        if self.one:
            return Filled(self.rows.transpose(0, 1).unsqueeze(2), self.states.unsqueeze(1), self.slopes.unsqueeze(1))
        return Filled(self.rows.permute(2, 0, 1, 3), self.states.transpose(0, 1), self.slopes.transpose(0, 1))


def precisely(product: Callable[..., Tensor], like: Tensor) -> Callable[..., Tensor]:
    """A matrix product in full precision, even if those of ``func`` may use TF32."""
    if not reduced(like):
        return product

    def precise(*given: Tensor) -> Tensor:
        with ieee(like):
            return product(*given)

    return precise


class Pace:
    """How many steps are taken together: up to ``most``; after a failure, ``alone`` steps are taken singly first."""

    def __init__(self, longest: int) -> None:
        self.pause = 1  # how many steps are taken singly after the next failure
        self.begin(longest)

    def begin(self, longest: int) -> None:
        """Take up to ``longest`` steps together from now on."""
        self.longest = self.most = longest
        self.alone = 0

    def next(self, left: int) -> int:
        """How many of the remaining steps are taken next: as many as allowed, in parts of nearly equal size."""
        return math.ceil(left / math.ceil(left / self.most)) if self.most else 0

    def rest(self) -> None:
        """Take some steps singly before trying again, each time four times as many."""
        self.most, self.alone, self.pause = self.longest, self.pause, 4 * self.pause


class Samples:
    """What is known about ``func`` when it is vectorised; kept from solve to solve, for each kind of state."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.verdict = plan, plan.field.verdict

    def numbers(self, n: int, row: Tensor, most: int | None = None) -> int:
        """The elements of a sample, if samples of up to ``most`` elements do not interact; otherwise of the state."""
        most = row.numel() if most is None else most
        if most not in self.verdict.samples:
            self.verdict.samples[most] = Jacobian(partial(self.plan.field, n), row).part(most)
        return self.verdict.samples[most]


class Settling:
    """Tests of convergence in one pass; ``scale`` are the largest absolute values of all states so far."""

    def __init__(self, plan: Plan, like: Tensor, tol: float) -> None:
        self.samples, self.tol, self.scale = Samples(plan), tol, like.new_zeros(())

    def grow(self, states: Tensor) -> None:
        """Include these states in ``scale``."""
        self.scale = torch.maximum(self.scale, states.abs().amax(-2, keepdim=True))

    def settled(self, before: Tensor, now: Tensor) -> bool | None:
        """Whether all states have converged, relative to the largest state up to each; None if they are not finite.

        Later states do not count: large states at the end of a block must not end the iteration for its beginning.
        """
        late, last = before.narrow(-2, -1, 1), now.narrow(-2, -1, 1)  # the last step settles last: a cheap first test
        excess = float((last - late).abs_().sub_(torch.maximum(last.abs(), self.scale), alpha=self.tol).max())
        if excess > 0:
            return False if math.isfinite(excess) else None
        size = torch.maximum(now.abs().cummax(-2).values, self.scale)
        excess = float((now - before).abs_().sub_(size, alpha=self.tol).max())
        return excess <= 0 if math.isfinite(excess) else None

    def rough(
        self, block: BlockOfSteps, steps: tuple[int, int], stages: Tensor, slopes: Tensor, moved: Tensor, still: bool
    ) -> bool:
        """Whether all samples change only by rounding: of states, or, if changes are ``still`` as large, inside func.

        On a GPU, matrix products and convolutions may have ten bits.
        """
        a, b = steps
        if not largest(moved) <= STAGE_NEAR * largest(stages[-1]):
            return False
        times, weights = block.times(a, b, len(stages)), block.weights(a, b).abs().sum(-1).max() + block.w0.abs().max()
        m = self.samples.numbers(block.task.steps[a], block.row(stages[-1], 0))

        def by_samples(x: Tensor) -> Tensor:
            return (x if block.one else x.transpose(0, 1)).abs().reshape(b - a, -1, m).amax((0, 2))

        def noise(bend: bool) -> Tensor:
            return by_samples(roughness(lambda x: block.evaluate(times, x), stages, slopes, bend)[-1] * weights)

        size = by_samples(moved)
        return bool(rounded(torch.ones_like(size, dtype=torch.bool), size, noise, still).all())

    def continued(self, block: BlockOfSteps, a: int, states: Tensor, slopes: Tensor) -> bool:
        """Whether each step has the solution that continues the previous state, as single steps would find it.

        Two solutions of a stage satisfy ``w_0 (f(b) - f(a)) = b - a``; if the slope grows by less, there is only one.
        """
        before = block.state(a - 1)
        if before is None:
            return True
        count = states.shape[-2]
        earlier = torch.cat([before if block.one else before.unsqueeze(1), states[..., :-1, :]], -2)
        there = block.evaluate(block.times(a, a + count, 1), earlier[None])[0]
        d, grown = states - earlier, (slopes - there).mul_(block.w0[..., a : a + count, :])
        if float(torch.sub(grown, d, alpha=STAGE_GROWTH).mul_(d.sign()).max()) <= 0:
            return True
        m = self.samples.numbers(block.task.steps[a], block.row(earlier, 0))
        top = torch.maximum(torch.maximum(earlier.abs(), states.abs()).cummax(-2).values, self.scale)
        for unit in (
            torch.ones_like(top),
            torch.where(top > 0, top, 1.0),
        ):  # small elements may have roots of their own
            along, by = (x / unit if block.one else (x / unit).transpose(0, 1) for x in (d, grown))
            along, by = along.reshape(count, -1, m), by.reshape(count, -1, m)
            size = along.abs().amax(-1, keepdim=True)
            if bool(((along / size) * (by - STAGE_GROWTH * along) / size).sum(-1).gt(0).any()):
                return False
        return True
