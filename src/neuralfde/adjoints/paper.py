"""The adjoint of the paper, to reproduce its experiments. It is biased."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..base.torch_private import vjp
from ..history import Block
from ..solve.loop import Gradients, Record, backward_task, forward_task, march
from ..solve.plan import COEFFICIENTS, Coefficients, Plan, Run
from ..solve.rows import readers
from ..solve.segments import SegmentRows
from ..solve.steppers import Task, Totals
from ..solve.steppers.single import SingleSteps
from ..solve.steppers.work import Work, leaves, local_weights


@dataclass(frozen=True)
class Paper:
    """The adjoint of Kang et al. (AAAI 2025), a biased approximation, to reproduce published experiments.

    ``λ_n = λ(T) + Σ_{j>n} w_{j-n} λ_j ∂f/∂z_j`` and ``θ̄ = h Σ_{j≥1} λ_j ∂f/∂θ_j`` (printed without the factor h). It
    starts from ``λ(T) = ∂L/∂z(T)``, while the multiplier of the continuous problem is singular like ``(T-t)^{β-1}``. A
    smaller step does not remove the error. The backward equation uses the rectangle rule, whatever scheme the forward
    pass uses.
    """

    stores_graph = False
    exact = False

    def pull(
        self, plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """See :class:`~neuralfde.solve.function.Adjoint`."""
        assert plan.backward_weights is not None
        memory = plan.history.reverse(plan.backward_weights.to(z0), plan.steps, z0, record.engine, False)
        totals = Totals([x for x in plan.leaves if x.requires_grad], c.local, False, plan.field.outside)
        if isinstance(record.tape, SegmentRows):
            record.tape.use(SingleSteps(plan, run), march, forward_task)
        read, _, compare = readers(plan, c, record.tape, record.witness)
        outside = dict(zip(plan.nodes, grads[0].unbind(0), strict=True))
        terminal = torch.zeros_like(z0)  # the sum of ∂L/∂z at this grid point and all later ones
        multiplier = torch.zeros_like(z0)

        def step(task: Task, work: Work, k: int) -> None:
            n = task.steps[k]
            work.add(k)
            if n in outside:
                terminal.add_(outside[n])
            torch.add(terminal, task.sums[k, 0], out=multiplier)
            found: tuple[Tensor | None, ...] = (None,)
            if n > 0:
                found = self._products(plan, n, read(n), c, multiplier, totals)
            slot = work.slots[k][0]
            slot.zero_() if found[0] is None else slot.copy_(found[0])
            if plan.callback is not None:
                plan.callback(plan.steps - n, plan.steps)

        def take(block: Block, sums: Tensor | None, inner: Tensor) -> tuple[Tensor, None]:
            sums = z0.new_zeros(block.count, 1, *z0.shape) if sums is None else sums
            task = backward_task(plan, c, block, sums, inner)
            work = Work(inner, sums, plan.field.shape)
            work.take(sums)
            for k in range(block.count):
                step(task, work, k)
            compare()
            return work.rows(block.count), None

        march(memory, range(plan.steps + 1), z0, take)
        supply = iter(totals.tensors)
        placed = tuple(next(supply) if x.requires_grad else None for x in plan.leaves)
        return Gradients((None,) * COEFFICIENTS, multiplier, placed)

    def _products(
        self, plan: Plan, n: int, row: Tensor, c: Coefficients, multiplier: Tensor, totals: Totals
    ) -> tuple[Tensor | None, ...]:
        """``λ ∂f/∂z`` at step ``n``; ``h λ ∂f/∂θ`` is added to the totals."""
        field, shape = plan.field, plan.field.shape
        x = leaves(row, shape)
        own = c.local if c.local.ndim == 1 else c.local[n]
        (w0,) = local_weights(own.expand(1, -1), field.structure.groups, weigh=False)
        z, _ = plan.scheme.evaluate(partial(field, n), [part.detach() for part in x], w0, slope=False)
        z = z.detach().requires_grad_()
        with torch.enable_grad():
            v = field(n, z)
        if not v.requires_grad:
            return (None,)
        found = vjp((v,), (multiplier.view(shape),), (z, *totals.wanted))
        totals.add([None if g is None else plan.step * g for g in found[1:]])
        return found
