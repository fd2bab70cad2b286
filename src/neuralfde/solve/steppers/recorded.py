"""One step after the other without calling ``func``: its operations are recorded once in a pass and repeated.

On a CPU much of a step goes into what surrounds the operations of ``func``: modules, checks, autograd's graphs. Where a
step evaluates ``func`` once, those of its products with transposed Jacobians are repeated in the backward pass too, and
gradients of parameters are added up for a block of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ...base.torch_private import saved_tensors_are_hooked
from ...rhs.repeated import Repeated, Training
from ...schemes.one_stage import put
from ...storage import Device
from ..plan import Plan, Run
from .base import Filled, Pull, Stepper, Steps, Task, why_single
from .single import Lane, SingleSteps, pull_step
from .work import Work, per_step


@dataclass(frozen=True)
class Recorded(Stepper):
    """One step after the other, with the operations of ``func`` repeated in place of calling it.

    For explicit methods on a CPU. Every operation has to be of a known kind and must not depend on values of ``t`` or
    ``z`` otherwise than as a tensor; ``func`` is called in the first two steps of a pass, and in every one if that is
    not so.
    """

    name = "recorded"

    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """See :class:`Stepper`."""
        field = plan.field
        if like.device.type != "cpu" or like.numel() == 0:
            return "operations are repeated on a CPU, for states with elements"
        if plan.scheme.implicit:
            return "an implicit stage needs the derivatives of func"
        if plan.scheme.open_stages() is not None:
            return "a step solves a linear system, whose factors are kept and counted"
        if field.autocast:
            return "autocast chooses the precision of operations"
        if field.scripted:
            return "TorchScript does not tell what it does"
        if saved_tensors_are_hooked():
            return "hooks on what autograd saves (torch.utils.checkpoint) are for single steps"
        return why_single(field)

    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """See :class:`Stepper`."""
        if not backward:
            run.repeated = Repeated(plan.field, plan.scheme.evaluate, self._training(plan))
        if run.repeated is None or (backward and run.repeated.products is None):
            return SingleSteps(plan, run)
        return RecordedSteps(plan, run, run.repeated, backward)

    def _training(self, plan: Plan) -> Training | None:
        """What a backward pass will ask for."""
        if not plan.train:
            return None
        wanted = [*[x for x in plan.leaves if x.requires_grad], *plan.field.outside]
        keep = isinstance(plan.storage, Device) and plan.storage.dtype is None
        return Training(wanted, plan.steps + 1 if keep else 0, plan.weigh)


class RecordedSteps(Steps):
    """Steps one by one, by the operations of one of them."""

    def __init__(self, plan: Plan, run: Run, steps: Repeated, backward: bool) -> None:
        self.plan, self.run, self.steps, self._backward = plan, run, steps, backward
        self._single = SingleSteps(plan, run)

    def __exit__(self, *error: object) -> None:
        """See :class:`Steps`."""
        self._single.__exit__(*error)
        if self._backward:
            self.run.repeated = None
        elif self.steps.refused is not None:
            self.run.stepper = "single"
            self.run.why = f"operations of func cannot be repeated without calling it: {self.steps.refused}"

    def forward(self, task: Task) -> Filled:
        """See :class:`Steps`; the first and the last step of a solve may have no state or no slope to be found."""
        scheme, field, work = self.plan.scheme, self.plan.field, self._single.work(task, backward=False)
        work.take(task.sums)
        apart = scheme.sums > 1
        states = torch.empty_like(task.sums[:, 0]) if apart else task.sums[:, 0]
        local, placed = self._single.weights(task), states.view(-1, *work.shape) if apart else None
        if self.plan.callback is not None:  # it has been called after the last block, and may have changed func
            self.steps.doubt()
        for k, n in enumerate(task.steps):
            work.add(k)
            x, slope = work.x[k], k not in task.idle
            if k == task.origin:
                z, v = x[0], field.initial(n, x[0]) if slope else None
            elif slope:
                z, v = self.steps(n, x, local[k])
            else:
                z, v = scheme.evaluate(partial(field, n), x, local[k], False)
            if v is None:
                work.slots[k][0].zero_()
            else:
                work.slots[k][0].copy_(v)
            if placed is not None:
                placed[k].copy_(z)
        work.release()
        return Filled(task.sums, states, work.rows(task.block.count)[:, 0])

    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """See :class:`Steps`; steps without a stage or without a slope have operations of their own, and are single."""
        products, count = self.steps.products, task.block.count
        assert products is not None
        work, local = self._single.work(task, backward=True), self._single.weights(task, pull.weigh)
        work.take(task.sums)
        slopes = torch.zeros_like(task.sums[:, 0]) if pull.weigh else None
        for a in range(0, count, products.together):
            part = range(count)[a : a + products.together]
            rows = pull.read_block(task.steps[a : part.stop])
            products.begin(task.steps[a : part.stop])
            self._pull(task, part, work, local, pull, rows, slopes)
            grads, weights, found = products.end(rows.flatten(2), task.sums[a : part.stop].flatten(1))
            pull.totals.add(grads)
            if weights is not None:
                pull.totals.add_locals(task.steps[a : part.stop], weights)
            if slopes is not None and found is not None:
                slopes[a : part.stop] += found.reshape(slopes[a : part.stop].shape)
        work.release()
        return work.rows(count), slopes

    def _pull(
        self,
        task: Task,
        part: range,
        work: Work,
        local: Sequence[Tensor],
        pull: Pull,
        rows: Tensor,
        slopes: Tensor | None,
    ) -> None:
        """Some steps of a block, with these rows."""
        steps, products = self.steps, self.steps.products
        assert products is not None
        own = replace(pull, read=lambda n: rows[task.steps[part[0]] - n])
        lane, sums = Lane(self.plan.field, pull.totals.wanted), per_step(rows.view(*rows.shape[:2], *work.shape))
        for k, x in zip(part, sums, strict=True):
            n, outside = task.steps[k], pull.grads[k]
            if k in task.idle or (steps.moves_state and k == task.origin):
                with torch.enable_grad():
                    pull_step(self.plan.scheme, task, work, k, local[k], own, lane, slopes)
                products.skip(n)
                task.sums[k].zero_()
                continue
            work.add(k)
            by_z = None if outside is None else outside.view(work.shape)
            found = steps.pulled(n, x, local[k], by_z, work.x[k][0])
            for slot, grad in zip(work.slots[k], found, strict=True):
                put(slot, grad, None if steps.moves_state else by_z)
