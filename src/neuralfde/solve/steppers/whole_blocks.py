"""A block of steps backward at once: by iteration, or from the Jacobians of its samples, where these have few numbers.

``v̄ = c + Wᵀ μ``, ``μ = ā + Jᵀ v̄`` with a small matrix J for each sample and step: as many products as a sample has
numbers give all of them, for all steps at once, and the triangular system is solved row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...base.policy import PICARD_BLIND, PICARD_ROW, PICARD_SAMPLE, PICARD_STILL, STAGE_NEAR, STANDSTILL
from ...base.torch_private import vjp
from ...schemes.jacobian import irregular
from ...schemes.stage_solvers import roughness
from ..plan import Plan
from .base import Pull, Task, largest, same
from .block import Samples, precisely


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
        self.field = field
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
        zero = torch.zeros_like(self.x[0][0])
        self.grad_z = torch.stack([zero if grad is None else grad.view(field.shape) for grad in pull.grads])

    def compare(self) -> None:
        """Pass the slopes of some of these steps to the witness."""
        for n in self.pull.compared(self.task.steps):
            assert self.pull.witness is not None
            self.pull.witness.compare(n, self.v[self.task.steps.index(n)], (*self.x, self.w0))

    def is_of_single_steps(self) -> bool:
        """Whether a call of ``func`` for the first of these steps alone has the same slope and the same gradients.

        Equal slopes do not imply equal gradients: under vmap ``z.requires_grad`` is False, and what ``func`` does to
        gradients alone (hooks, ``if z.requires_grad``) is left out.
        """
        n, x = self.task.steps[0], tuple(part[0].detach().requires_grad_() for part in self.x)
        with torch.enable_grad():
            _, v = self.scheme.evaluate(partial(self.field, n), x, self.w0[0].detach())
        assert v is not None
        by = torch.zeros_like(self.v.detach())
        by[0] = irregular(by[0])
        wanted = self.pull.totals.wanted
        found, expected = _gradients(self.v, by, (*self.x, *wanted)), _gradients(v, by[0], (*x, *wanted))
        found[: self.sums] = [g[0] for g in found[: self.sums]]
        return same(self.v.detach()[0], v.detach()) and same(_line(found, v), _line(expected, v))

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
                    noise = roughness(lambda x: self._pulled(x)[1], bars, by_groups, bend=True, linear=True)
                    done = change <= STANDSTILL * _change(by_groups + noise, by_groups)
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


def _gradients(of: Tensor, by: Tensor, wanted: tuple[Tensor, ...]) -> list[Tensor]:
    """The gradients of ``wanted``, zeros where there are none."""
    found = vjp((of,), (by,), wanted, keep=True) if of.requires_grad else (None,) * len(wanted)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def _line(grads: list[Tensor], like: Tensor) -> Tensor:
    """All numbers of these gradients."""
    return torch.cat(
        [(torch.view_as_real(g.resolve_conj()) if g.is_complex() else g).reshape(-1).to(like) for g in grads]
    )


def _change(before: Tensor, now: Tensor) -> float:
    """The largest change, relative to the largest value of its column."""
    size = now.abs().amax(-2).clamp_min_(torch.finfo(now.dtype).tiny)
    return float((now - before).abs_().amax(-2).div_(size).max())


class WholeBlocks:
    """Blocks backward with all their steps at once, where the samples of ``func`` allow for it.

    Args:
        samples: what is known of ``func``.
        jacobians: from the Jacobians of samples, where these have few numbers.
        iterations: otherwise by so many of :meth:`BlockBackward.solve` for so many steps; 0 of them: not at all.
    """

    def __init__(self, samples: Samples, jacobians: bool, iterations: Callable[[int], int]) -> None:
        self.samples, self.jacobians, self.iterations = samples, jacobians, iterations

    def pulled(self, task: Task, pull: Pull, rows: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """See :class:`Steps`; None where the block does not settle. Raises what a vectorised ``func`` raises."""
        found, m = None, self._few(task, rows) if self.jacobians else None
        if m is not None:
            block = self._block(task, pull, rows)
            found = block.collect(*by_samples(block, m))
        most = self.iterations(task.block.count)
        if found is None and most:
            block = self._block(task, pull, rows)
            solved = block.solve(most)
            found = None if solved is None else block.collect(*solved)
        return found

    def _few(self, task: Task, rows: Tensor) -> int | None:
        """The numbers of a sample, where they are so few that its Jacobians cost less than an iteration."""
        plan, (count, sums, groups, width) = self.samples.plan, rows.shape
        pays = count > PICARD_SAMPLE and sums * width >= PICARD_ROW
        if plan.scheme.implicit or rows.is_cuda or groups > 1 or not pays:
            return None
        m = self.samples.numbers(task.steps[0], rows[0, 0].reshape(plan.field.shape), PICARD_SAMPLE)
        return m if m <= PICARD_SAMPLE else None

    def _block(self, task: Task, pull: Pull, rows: Tensor) -> BlockBackward:
        block, verdict = BlockBackward(task, pull, rows, self.samples.plan), self.samples.verdict
        if not verdict.differentiated:
            if not block.is_of_single_steps():
                raise ValueError("it gives other values or other gradients")
            verdict.vectorised = verdict.differentiated = True
        block.compare()  # not before: it would see another function
        return block


def by_samples(block: BlockBackward, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """What ``block.solve()`` gives, for explicit schemes and samples of ``m`` numbers, and how far rounding may be off.

    Rows are (m, samples) here, and not the other way round: what is written again and again has one stride.
    """
    count, sums, width = block.count, block.sums, block.width
    far, weights = (x[0] for x in block.system())
    units = torch.eye(m, dtype=far.dtype).repeat(1, width // m)
    # ∂v_j/∂x_i, (count, j, sums, i, samples)
    jacobians = torch.stack([_pulled(block, block.v, u.expand(count, width), m) for u in units], 1)
    rows, bars = _pulled(block, block.z, block.grad_z, m), _turned(far, m)
    before = rows.view(count * sums, width)
    lines = zip(rows.unbind(0), bars.unbind(0), jacobians.unbind(0), weights.unbind(0), strict=True)
    for k, (mu, bar, own, weight) in enumerate(lines):
        if k > 0:
            bar.view(1, width).addmm_(weight[None, : k * sums], before[: k * sums])
        for part, by in zip(own.unbind(0), bar.unbind(0), strict=True):
            mu.addcmul_(part, by)
    # products are rounded like the largest one of their sample
    size = jacobians.mul_(bars[:, :, None, None]).abs_().sum(1).add_(rows.abs()).amax((1, 2), keepdim=True)
    shape, rounding = (count, sums, 1, width), size.mul_(64 * torch.finfo(far.dtype).eps).expand_as(rows)
    mu, bars, rounding = (x.transpose(-1, -2) for x in (rows, bars, rounding))
    return mu.reshape(shape), bars.reshape(block.v.shape), rounding.reshape(shape)


def _turned(rows: Tensor, m: int) -> Tensor:
    """Rows (…, samples · m) as others, (…, m, samples)."""
    return rows.view(*rows.shape[:-1], -1, m).transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _pulled(block: BlockBackward, of: Tensor, by: Tensor, m: int) -> Tensor:
    """Products of the slopes or of the states with these gradients of them, (count, sums, m, samples)."""
    found = vjp((of,), (by.reshape(of.shape),), block.x, keep=True) if of.requires_grad else (None,) * block.sums
    return _turned(block.stacked(found)[:, :, 0], m)
