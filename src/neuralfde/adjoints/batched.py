"""The reverse sweep for small states: a whole block of steps in a few calls.

In the backward pass the states of a block are known, and one call of ``func``, vectorised over time, gives the graph of
all its steps. What remains is linear: ``v̄ = c + Wᵀ μ``, ``μ = Jᵀ (z̄, v̄)``, with Wᵀ strictly triangular. As in
:mod:`.sweeps` it is iterated for all steps at once until it stands still; one more product then gives the block's part
of ``θ̄``. An implicit step adds ``w_0 μ`` to its own ``v̄``.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from ..history import Blocked
from .again import Replay
from .forward import Record
from .gathered import same
from .plan import Plan
from .sweeps import BLIND, MOST_NUMBERS, excess, most_sweeps
from .totals import Totals

log = logging.getLogger("neuralfde")


class UnbatchableError(Exception):
    """``func`` cannot be vectorised over time, or gives other numbers when it is; or the sweeps do not settle."""

    @classmethod
    def of(cls, error: Exception) -> UnbatchableError:
        """What went wrong, in one line."""
        return cls(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def suits(plan: Plan, record: Record, engine: object, total: Totals, asked: bool | None) -> bool:
    """Whether this solve can be done in blocks: one order, rows kept, no noise, small states."""
    if asked is False or not isinstance(engine, Blocked) or record.tape is None or plan.scheme.stages == 0:
        return False
    possible = total.between is None and total.c.base is None and plan.known is None and not plan.field.noise.active
    if total.z0.device.type == "cpu":
        small = "swept" in plan.tally
    else:
        small = total.z0.numel() <= MOST_NUMBERS and plan.steps >= engine.block
    return possible and engine.toeplitz.groups == 1 and (asked is True or small)


def sweep_blocks(plan: Plan, record: Record, engine: Blocked, total: Totals) -> None:
    """All steps from the last to the first; raises :class:`UnbatchableError` where the steps must be taken singly."""
    for first in range(0, plan.steps + 1, engine.block):
        count = min(engine.block, plan.steps + 1 - first)
        block = _Block(plan, record, total, plan.steps - first, count)
        far = engine.recall_block(first)
        bars = total.z0.new_zeros(count, total.z0.shape[1]) if far is None else far.view(count, -1)
        weights = engine.toeplitz.block(first, count, first, first + count, latest_first=False)[:, 0]
        mu = block.solve(bars, weights, total)
        block.add_to(total, mu)
        rows = mu.flip(1) if engine.latest_first else mu
        engine.record_block(first, rows.unsqueeze(2), block.slopes() if plan.weigh else None)
        if plan.callback is not None:
            for i in range(first, first + count):
                plan.callback(i, plan.steps)


class _Block:
    """Steps ``high``, ``high`` - 1, … with the graph of all of them; rows are in this order."""

    def __init__(self, plan: Plan, record: Record, total: Totals, high: int, count: int) -> None:
        self.plan, self.c, self.low, self.high = plan, total.c, high + 1 - count, high
        self.implicit, width = plan.scheme.implicit, total.z0.shape[1]
        local = self.c.local.expand(plan.steps + 1, 1) if self.c.local.ndim == 1 else self.c.local
        local = self.down(local)[:, 0].clone()
        if self.low == 0:
            local[-1] = 0.0  # the first state is given: no stage
        self.x = self.read(record, local, width).requires_grad_()
        self.local = local.requires_grad_(plan.weigh and not self.implicit)
        times = self.down(plan.field.times)
        try:
            with torch.enable_grad():
                z, v = plan.scheme.evaluate(lambda _, z: plan.field.batch(times, z), 1, self.x, self.local)
        except Exception as error:
            raise UnbatchableError.of(error) from error
        assert v is not None
        if isinstance(record.tape, Replay) and high == plan.steps:
            known = self.down(record.tape.buffer)[1:, 0]
            if count > 1 and not same(v.detach()[1:], known):
                raise UnbatchableError("func gives other values when it is vectorised over time")
        self.z, self.v = z, v
        self.steps = torch.arange(high, self.low - 1, -1, device=z.device)
        self.later = torch.arange(len(total.heads), device=z.device)[:, None] < self.steps
        if self.c.start is not None:
            known = self.c.start[: len(total.heads), self.low : high + 1, 0].flip(1)
            self.start = torch.where(self.later, known, 0.0)
        self.grad_z = torch.zeros_like(z)
        for n, k in total.node.items():
            if self.low <= n <= high:
                self.grad_z[high - n] = total.out[k, 0]

    def read(self, record: Record, local: Tensor, width: int) -> Tensor:
        """What the steps start from, (sums, steps, width)."""
        tape, count = record.tape, local.shape[0]
        if isinstance(tape, Replay):
            sums = tape.read_sums(self.low, self.high).reshape(-1, count, width)
            return self.plan.scheme.restore(sums, self.down(tape.buffer)[:, 0], local)
        assert tape is not None
        return torch.cat([tape.read(n).reshape(-1, 1, width).clone() for n in range(self.high, self.low - 1, -1)], 1)

    def down(self, table: Tensor) -> Tensor:
        """What a table of all steps says of these, in their order."""
        return table[self.low : self.high + 1].flip(0)

    def slopes(self) -> Tensor:
        """The slopes that enter the history, (steps, groups, width)."""
        v = self.v.detach().unsqueeze(1)
        return v if self.low >= self.plan.first else torch.cat([v[:-1], torch.zeros_like(v[-1:])])

    def pull(self, wanted: list[Tensor], keep: bool) -> tuple[Tensor | None, ...]:
        """Products with the transposed Jacobians of all steps."""
        outputs: tuple[Tensor, ...] = (self.z,)
        grads: tuple[Tensor, ...] = (self.grad_z,)
        if self.v.requires_grad:
            outputs, grads = (self.z, self.v), (self.grad_z, self.bars)
        try:
            # what torch.autograd.grad does, without its checks, which take as long as a small layer
            return _engine_run_backward(
                outputs, grads, keep, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
            )
        except Exception as error:  # a checkpoint inside func evaluates it again now, when nothing vectorises it
            raise UnbatchableError.of(error) from error

    def solve(self, far: Tensor, weights: Tensor, total: Totals) -> Tensor:
        """The rows μ (sums, steps, width); ``bars`` are left as the gradients of the slopes."""
        count, width = far.shape
        weights = weights.clone()
        for j, early in enumerate(total.early):
            if self.low <= j <= self.high:
                far[self.high - j].add_(early[0])
                weights[0, self.high - j].add_(self.start[j])
        if self.implicit:
            weights[0].diagonal().add_(self.local)
        if self.low < self.plan.first:
            weights[:, -1], far[-1] = 0.0, 0.0
        weights, self.bars = weights.transpose(0, 1).reshape(count, -1), far
        tol, mu = 4 * torch.finfo(far.dtype).eps, None
        for k in range(2 * most_sweeps(self.plan.scheme, count)):
            (found,) = self.pull([self.x], keep=True)
            assert found is not None
            if mu is not None and k > BLIND and k % 2 and excess(mu.flatten(0, 1), found.flatten(0, 1), tol) <= 0:
                return found
            mu = found
            self.bars = torch.addmm(far, weights, mu.reshape(-1, width))
        raise UnbatchableError("the sweeps do not settle")

    def add_to(self, total: Totals, mu: Tensor) -> None:
        """Take in what these steps give to all that gets a gradient."""
        wanted = [*total.wanted] + ([self.local] if self.local.requires_grad else [])
        found = self.pull(wanted, keep=False) if wanted else ()
        total.add_tensors(found[: len(total.wanted)])
        total.z0.add_(mu.sum((0, 1)))
        for j, early in enumerate(total.early):
            early.add_(self.start[j] @ mu[0])
        if total.start is not None:
            inner = torch.cat(total.heads) @ mu[0].t()
            total.start[:, self.low : self.high + 1, 0] = torch.where(self.later, inner, 0.0).flip(1)
        grad = (mu[0] * self.v.detach()).sum(-1) if self.implicit else found[-1] if self.local.requires_grad else None
        if total.local is not None and grad is not None:
            grad = grad * (self.steps > 0)
            if total.local.ndim == 1:
                total.local.add_(grad.sum())
            else:
                total.local[self.low : self.high + 1, 0] = grad.flip(0)
