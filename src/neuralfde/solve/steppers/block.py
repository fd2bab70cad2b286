"""A block of steps as one equation: what Picard's and Newton's iterations work on, forward and backward.

Rows of a block are (steps, width) here, or (groups, steps, width) where groups of numbers have orders of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...base.policy import PICARD_BLIND, PICARD_STILL, STAGE_NEAR, STANDSTILL
from ...base.torch_private import vjp
from ...history import Block, ieee, reduced
from ...schemes.stage_solvers import rounding_of
from ..plan import Plan
from .base import Filled, Pull, Task, largest


class BlockOfSteps:
    """The steps of a block forward: their slopes, states and rows as far as they are known."""

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
        """The initial row, whose state is given and returned; the slope there is the first guess of all slopes."""
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
            self.latest.copy_(slope.view(state.shape))
        return state

    def base(self, a: int, b: int) -> Tensor:
        """The sums of steps a … b-1 with what the steps before ``a`` contribute, (…, outputs · steps, width)."""
        sums = self.sums[..., a:b, :].flatten(-3, -2)
        if a == 0:
            return sums
        return self.product(sums, self.inner[..., a:b, :a].flatten(-3, -2), self.slopes[..., :a, :])

    def weights(self, a: int, b: int) -> Tensor:
        """What these steps weigh in each other, (…, outputs · steps, steps)."""
        return self.inner[..., a:b, a:b].flatten(-3, -2)

    def times(self, a: int, b: int, stages: int) -> Tensor:
        """Their times, once for each stage."""
        first = self.task.block.start
        times = self.field.times[first + a : first + b]
        return times.repeat(stages) if stages > 1 else times

    def by_sums(self, sums: Tensor) -> Tensor:
        """(…, outputs · steps, width) as (outputs, …, steps, width)."""
        found = sums.view(*self.lead, self.outs, -1, sums.shape[-1])
        return found if self.one else found.transpose(0, 1)

    def evaluate(self, times: Tensor, stages: Tensor) -> Tensor:
        """The slopes at states (stages, …, steps, width), whose times are (stages · steps,)."""
        if self.one:
            return self.field.batch(times, stages.view(-1, *self.field.shape)).reshape(stages.shape)
        rows = stages.transpose(1, 2)
        return self.field.batch(times, rows.reshape(-1, *self.field.shape)).view(rows.shape).transpose(1, 2)

    def row(self, rows: Tensor, k: int) -> Tensor:
        """Row ``k`` as the right-hand side takes it."""
        return rows[..., k, :].reshape(self.field.shape)

    def keep(self, a: int, count: int, sums: Tensor, states: Tensor, slopes: Tensor) -> None:
        """Steps a … a+count-1 are these."""
        self.slopes.narrow(-2, a, count).copy_(slopes.narrow(-2, 0, count))
        self.states.narrow(-2, a, count).copy_(states.narrow(-2, 0, count))
        if self.outs > 1:
            self.rows.narrow(-2, a, count).copy_(sums.narrow(-2, 0, count))
        self.latest = self.slopes.narrow(-2, a + count - 1, 1)

    def keep_rows(self, a: int, rows: Tensor, states: Tensor, slopes: Tensor) -> None:
        """The steps from ``a`` on are these, (steps, …, groups, width) each."""
        if self.one:
            parts = rows[:, :, 0].transpose(0, 1), states[:, 0], slopes[:, 0]
        else:
            parts = rows.permute(1, 2, 0, 3), states.transpose(0, 1), slopes.transpose(0, 1)
        self.keep(a, states.shape[0], *parts)

    def part(self, a: int, b: int) -> Task:
        """Steps a … b-1 as a task of their own."""
        task, count = self.task, b - a
        sums = self.base(a, b).view(*self.lead, self.outs, count, -1)
        sums = sums.transpose(0, 1).unsqueeze(2) if self.one else sums.permute(2, 1, 0, 3)
        idle = frozenset(k - a for k in task.idle if a <= k < b)
        return replace(
            task, block=Block(task.block.start + a, count), steps=task.steps[a:b], sums=sums.contiguous(),
            inner=task.inner[:, a:b, :, a:b], local=task.local[a:b], origin=None, idle=idle, before=self.state(a - 1),
        )  # fmt: skip

    def state(self, k: int) -> Tensor | None:
        """The state of step ``k``, (groups, width); that before the block for -1, where it is known."""
        if k < 0:
            return self.task.before
        return self.states[k : k + 1] if self.one else self.states[:, k]

    def filled(self) -> Filled:
        """All steps, as the loop wants them."""
        if self.one:
            return Filled(self.rows.transpose(0, 1).unsqueeze(2), self.states.unsqueeze(1), self.slopes.unsqueeze(1))
        return Filled(self.rows.permute(2, 0, 1, 3), self.states.transpose(0, 1), self.slopes.transpose(0, 1))


def precisely(product: Callable[..., Tensor], like: Tensor) -> Callable[..., Tensor]:
    """A product of matrices in full precision, whatever is allowed to those of ``func``."""
    if not reduced(like):
        return product

    def precise(*given: Tensor) -> Tensor:
        with ieee(like):
            return product(*given)

    return precise


class BlockBackward:
    """The steps of a block backward, from the graph of all of them: one call of ``func``, vectorised over time.

    Args:
        task: the block.
        pull: gradients from outside, and where those of parameters go.
        rows: what the steps started from, (count, sums, groups, width).
        plan: the solve.
    """

    def __init__(self, task: Task, pull: Pull, rows: Tensor, plan: Plan) -> None:
        self.task, self.pull, self.scheme, field = task, pull, plan.scheme, plan.field
        self.count, self.sums, self.groups, self.width = rows.shape
        self.local = task.local.clone()
        if task.origin is not None:
            self.local[task.origin] = 0.0  # the first state is given: no stage
        shape = (self.count, self.groups, 1) if self.groups > 1 else (self.count, *(1,) * len(field.shape))
        self.w0 = self.local.view(shape).requires_grad_(pull.weigh and not self.scheme.implicit)
        self.x = tuple(part.reshape(self.count, *field.shape).requires_grad_() for part in rows.detach().unbind(1))
        times = field.times[task.steps[-1] : task.steps[0] + 1].flip(0)
        with torch.enable_grad():
            self.z, v = self.scheme.evaluate(lambda states: field.batch(times, states), self.x, self.w0)
        assert v is not None
        self.v = v
        for n in pull.compared(task.steps):
            assert pull.witness is not None
            pull.witness.compare(n, v[task.steps.index(n)], (*self.x, self.w0))
        zero = torch.zeros_like(self.x[0][0])
        self.grad_z = torch.stack([zero if grad is None else grad.view(field.shape) for grad in pull.grads])

    def products(self, by: Tensor, wanted: tuple[Tensor, ...], keep: bool) -> tuple[Tensor | None, ...]:
        """Products with the transposed Jacobians of all steps, for these gradients of their slopes."""
        ends = [(o, g) for o, g in ((self.z, self.grad_z), (self.v, by)) if o.requires_grad]
        return vjp(tuple(o for o, _ in ends), tuple(g for _, g in ends), wanted, keep)

    def solve(self, most: int) -> tuple[Tensor, Tensor] | None:
        """The rows μ (count, sums, groups, width) and the gradients of the slopes; None if they do not settle soon."""
        far, weights = self.system()
        bars, before, last, eps = far, None, math.inf, torch.finfo(far.dtype).eps
        product = precisely(torch.baddbmm, far)
        for k in range(most):
            mu, by_groups = self._pulled(bars)
            if before is not None and k > PICARD_BLIND and k % 2:
                change = _change(before, by_groups)
                # a small number beside large ones may go on changing by their rounding, and func may be rougher still
                done = change <= 4 * eps or last <= change <= STANDSTILL * eps
                near = change > PICARD_STILL * last and largest(by_groups - before) <= STAGE_NEAR * largest(by_groups)
                if not done and near:
                    done = change <= STANDSTILL * _change(self._pulled(bars + rounding_of(bars))[1], by_groups)
                if done:
                    return mu, bars.transpose(0, 1).reshape(self.v.shape)
                last = change
            before, bars = by_groups, product(far, weights, by_groups)
        return None

    def _pulled(self, bars: Tensor) -> tuple[Tensor, Tensor]:
        """The rows μ for these gradients of the slopes, as they are returned and by groups."""
        mu = self.stacked(self.products(bars.transpose(0, 1).reshape(self.v.shape), self.x, keep=True))
        return mu, mu.permute(2, 0, 1, 3).reshape(self.groups, -1, self.width)

    def stacked(self, found: Sequence[Tensor | None]) -> Tensor:
        """Gradients of ``x`` as rows (count, sums, groups, width)."""
        shape = (self.count, self.groups, self.width)
        parts = [self.v.new_zeros(shape) if g is None else g.reshape(shape) for g in found]
        return parts[0].unsqueeze(1) if self.sums == 1 else torch.stack(parts, 1)

    def system(self) -> tuple[Tensor, Tensor]:
        """``c`` and ``Wᵀ`` of ``v̄ = c + Wᵀ μ``: (groups, count, width) and (groups, count, count · sums)."""
        far = self.task.sums[:, 0].transpose(0, 1).contiguous()
        weights = self.task.inner[:, :, 0].flatten(2).clone()
        if self.scheme.implicit:
            weights.diagonal(dim1=1, dim2=2).add_(self.local.t())
        for k in self.task.idle:
            weights[:, k], far[:, k] = 0.0, 0.0
        return far, weights

    def collect(self, mu: Tensor, by: Tensor, rounding: Tensor | None = None) -> tuple[Tensor, Tensor | None] | None:
        """Add what these steps give to the totals; returns ``mu``, and their slopes where they are wanted.

        None, and nothing is added, if ``mu`` is not the product that it stands for up to ``rounding``, where given.
        """
        totals, weighed, checked = self.pull.totals, self.w0.requires_grad, 0 if rounding is None else self.sums
        wanted = (*self.x[:checked], *totals.wanted, *((self.w0,) if weighed else ()))
        found = self.products(by, wanted, keep=False) if wanted else ()
        if rounding is not None and not bool(((self.stacked(found[:checked]) - mu).abs_() <= rounding).all()):
            return None
        own = found[checked : checked + len(totals.wanted)]
        if not self.pull.weigh:
            totals.add(own)
            return mu, None
        slopes = self.v.detach().reshape(self.count, self.groups, self.width).clone()
        grad = found[-1] if weighed else (mu[:, 0] * slopes).sum(-1) if self.scheme.implicit else None
        for k in self.task.idle:
            slopes[k] = 0.0
        totals.add(own)  # at last: whoever takes another way after an error adds them once
        if grad is not None:
            if self.task.origin is not None:
                grad[self.task.origin] = 0.0
            totals.add_locals(self.task.steps, grad)
        return mu, slopes


def _change(before: Tensor, now: Tensor) -> float:
    """The largest change, relative to the largest value of its column."""
    size = now.abs().amax(-2)
    return float(((now - before).abs_().amax(-2) / torch.where(size > 0, size, 1.0)).max())
