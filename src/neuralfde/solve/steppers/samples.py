"""The backward pass of a block from the Jacobians of its samples, where these have few numbers.

``v̄ = c + Wᵀ μ``, ``μ = ā + Jᵀ v̄`` with a small matrix J for each sample and step: as many products as a sample has
numbers give all of them, for all steps at once, and the triangular system is solved row by row.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ...base.caches import Verdicts
from ...base.policy import PICARD_FEWEST, PICARD_ROW, PICARD_SAMPLE, SAMPLES_NUMBERS, SAMPLES_WORK
from ...base.torch_private import vjp
from ...schemes import Jacobian
from ..plan import Plan, Run
from .base import Pull, Task, why_single
from .block import BlockBackward
from .stacked import same


class Samples:
    """What is known of ``func`` when it is vectorised; kept from solve to solve, for each kind of state.

    Attributes:
        proven: it was seen to give the same values.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, field = plan, plan.field
        func = getattr(field.func, "only_converts", field.func)
        self.verdicts, self.kind = Verdicts.of(func), (type(field.func), field.structure, field.known_by)
        self.proven = self.kind in self.verdicts

    def prove(self) -> None:
        """``func`` gives the same values when it is vectorised."""
        self.proven = self.verdicts.add(self.kind)

    def numbers(self, n: int, row: Tensor, most: int | None = None) -> int:
        """The numbers of a sample, those of the whole state where it is not seen to fall apart into up to ``most``."""
        sizes = dict.fromkeys(row.shape[k:].numel() for k in range(row.ndim + 1))
        found = next((m for m in sizes if (self.kind, most, m) in self.verdicts), None)
        if found is None:
            found = Jacobian(partial(self.plan.field, n), row).part(row.numel() if most is None else most)
            self.verdicts.add((self.kind, most, found))
        return found

    def few(self, task: Task, rows: Tensor) -> int | None:
        """The numbers of a sample, where they are so few that a block is pulled back from its Jacobians."""
        count, sums, groups, width = rows.shape
        pays = count > PICARD_SAMPLE and sums * width >= PICARD_ROW
        if self.plan.scheme.implicit or rows.is_cuda or groups > 1 or not pays:
            return None
        m = self.numbers(task.steps[0], rows[0, 0].reshape(self.plan.field.shape), PICARD_SAMPLE)
        return m if m <= PICARD_SAMPLE else None

    def pulled(self, task: Task, pull: Pull, rows: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """A block backward from the Jacobians of its samples, see :class:`Steps`; None where that does not do."""
        try:
            m = self.few(task, rows)
            if m is None:
                return None
            block = BlockBackward(task, pull, rows, self.plan)
            if not self.proven:
                if not same(block.v[0].detach(), self.plan.field(task.steps[0], block.z[0].detach())):
                    return None
                self.prove()
            found = by_samples(block, m)
        except Exception:  # func cannot be vectorised: other ways will say so, or do without
            return None
        return block.collect(*found)


def samples_pay(plan: Plan, run: Run, like: Tensor) -> bool:
    """Whether the samples of single steps are looked at: their Jacobians take more work, and far fewer calls."""
    func = plan.field.func
    own = func.parameters() if isinstance(func, nn.Module) else plan.leaves
    small = like.numel() <= SAMPLES_NUMBERS and like.numel() * sum(x.numel() for x in own) <= SAMPLES_WORK
    many = plan.steps * plan.scheme.stages >= PICARD_FEWEST
    return plan.stepper is None and small and many and run.vectorised is not False and why_single(plan.field) is None


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
