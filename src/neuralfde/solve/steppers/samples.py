"""A block of steps backward at once: by iteration, or from the Jacobians of its samples, where these have few numbers.

``v̄ = c + Wᵀ μ``, ``μ = ā + Jᵀ v̄`` with a small matrix J for each sample and step: as many products as a sample has
numbers give all of them, for all steps at once, and the triangular system is solved row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...base.caches import Verdicts
from ...base.policy import (
    PICARD_BACKWARD,
    PICARD_EXTRA,
    PICARD_FEWEST,
    PICARD_PARAMETERS,
    PICARD_ROW,
    PICARD_SAMPLE,
    SAMPLES_NUMBERS,
    SAMPLES_WORK,
)
from ...base.torch_private import vjp
from ...schemes import Jacobian
from ..plan import Plan, Run
from .base import Pull, Task, same, why_single
from .block import BlockBackward


class Samples:
    """What is known of ``func`` when it is vectorised; kept from solve to solve, for each kind of state."""

    def __init__(self, plan: Plan) -> None:
        self.plan, field = plan, plan.field
        func = getattr(field.func, "only_converts", field.func)
        self.verdict = Verdicts.of(func, (type(field.func), field.structure, field.shape, field.known_by))

    def numbers(self, n: int, row: Tensor, most: int | None = None) -> int:
        """The numbers of a sample, those of the whole state where it is not seen to fall apart into up to ``most``."""
        most = row.numel() if most is None else most
        if most not in self.verdict.samples:
            self.verdict.samples[most] = Jacobian(partial(self.plan.field, n), row).part(most)
        return self.verdict.samples[most]


class WholeBlocks:
    """Blocks backward with all their steps at once, where the samples of ``func`` allow for it.

    Args:
        samples: what is known of ``func``.
        jacobians: from the Jacobians of samples, where these have few numbers.
        iterations: otherwise by so many of :meth:`BlockBackward.solve` for so many steps; 0 of them: not at all.
    """

    def __init__(self, samples: Samples, jacobians: bool, iterations: Callable[[int], int]) -> None:
        self.samples, self.jacobians, self.iterations = samples, jacobians, iterations

    @classmethod
    def beside_single(cls, plan: Plan, run: Run, like: Tensor) -> WholeBlocks | None:
        """For steps that are taken singly, where that pays: more work, and far fewer calls."""
        func, size = plan.field.func, like.numel()
        if plan.stepper is not None or plan.scheme.implicit or like.is_cuda or plan.scheme.stages == 0:
            return None
        if not run.vectorised or why_single(plan.field) or plan.steps * plan.scheme.stages < PICARD_FEWEST[1]:
            return None
        held = sum(x.numel() for x in (func.parameters() if isinstance(func, nn.Module) else plan.leaves))
        jacobians = size <= SAMPLES_NUMBERS and size * held <= SAMPLES_WORK
        several = hasattr(func, "over_times")
        iterated = size * like.itemsize <= PICARD_BACKWARD[several] and (several or held <= PICARD_PARAMETERS)
        if not (jacobians or iterated):
            return None
        return cls(Samples(plan), jacobians, lambda count: PICARD_EXTRA + count // 4 if iterated else 0)

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
        plan = self.samples.plan
        if not self.samples.verdict.vectorised:
            trial = BlockBackward(task, replace(pull, witness=None), rows, plan)  # which would see another function
            if not same(trial.v[0].detach(), plan.field(task.steps[0], trial.z[0].detach())):
                raise ValueError("it gives other values")
            self.samples.verdict.vectorised = True
        return BlockBackward(task, pull, rows, plan)


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
