"""The reverse sweep for small states: a whole block of steps in a few calls.

In the backward pass the states of a block are known. One call of ``func``, vectorised over time, gives their slopes and
one batched product the Jacobians ``J_n``, so that the recursion ``v̄_n = Σ w μ``, ``μ_n = ḡ_n + J_nᵀ v̄_n`` is two small
matrix-vector products a step; with all ``v̄_n`` known, one more product gives the block's part of ``θ̄``.
"""

from __future__ import annotations

import bisect
import logging

import torch
from torch import Tensor

from ..history import Blocked
from ..history.blocked import Toeplitz
from ..schemes import OneStage
from .again import Replay
from .forward import Record
from .plan import Plan
from .totals import Totals

log = logging.getLogger("neuralfde")

#: Numbers in a state up to which ``auto`` takes Jacobians: a Jacobian costs as many products as the state has numbers.
MOST_NUMBERS = 64


class UnbatchableError(Exception):
    """``func`` cannot be vectorised over time, or gives other numbers when it is."""


def suits(plan: Plan, record: Record, engine: object, total: Totals, asked: bool | None) -> bool:
    """Whether this solve can be done in blocks: an explicit scheme with one sum, rows kept, no noise, small states."""
    if asked is False or not isinstance(engine, Blocked) or not isinstance(record.tape, Replay):
        return False
    possible = (
        isinstance(plan.scheme, OneStage)
        and not plan.scheme.implicit
        and plan.first == 0
        and engine.reach is None
        and total.between is None
        and total.c.base is None
        and not total.heads
        and isinstance(engine.toeplitz, Toeplitz)
        and not plan.field.noise.active
    )
    small = total.z0.numel() <= MOST_NUMBERS and plan.steps >= engine.block
    return possible and (asked is True or small)


def sweep_blocks(plan: Plan, record: Record, engine: Blocked, total: Totals) -> None:
    """All steps from the last to the first; raises :class:`UnbatchableError` before anything has been changed."""
    assert isinstance(record.tape, Replay)
    recursion = _Recursion(engine, total.z0)
    for first in range(0, plan.steps + 1, engine.block):
        high = plan.steps - first
        low = max(0, high + 1 - engine.block)
        rows = record.tape.read_block(low, high)
        traced = high + 1 - low - (high == plan.steps)  # the last state has no slope
        try:
            v, jacobians = _linearise(plan, low, rows[:traced])
        except Exception as error:
            raise UnbatchableError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        if first == 0:
            _compare(v, record.tape.buffer[low : low + traced])
        far = engine.recall_block(first)
        mu, bars = recursion.solve(far, _incoming(total, low, high), jacobians)
        _pull_tensors(total, v, bars[high + 1 - low - traced :].flip(0))
        slopes = torch.zeros_like(mu)
        slopes[mu.shape[0] - traced :] = v.detach().reshape(traced, -1).flip(0)
        shape = (mu.shape[0], *total.z0.shape)
        engine.record_block(first, mu.flip(0).view(shape), slopes.view(shape))
        total.z0.add_(mu.sum(0).view_as(total.z0))
        if plan.callback is not None:
            for i in range(first, first + mu.shape[0]):
                plan.callback(i, plan.steps)


def _linearise(plan: Plan, low: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes of consecutive rows (with their graph) and Jacobians (steps, outputs, inputs)."""
    count, numbers = rows.shape[0], rows[0].numel() if rows.shape[0] else 0
    z = rows.detach().clone().requires_grad_()
    if count == 0:
        return z, z.new_zeros(0, 0, 0)
    with torch.enable_grad():
        v = plan.field.batch(plan.field.times[low : low + count], z)
    if v.shape != z.shape:
        raise ValueError(f"func returned shape {tuple(v.shape)} for states of shape {tuple(z.shape)}")
    if not v.requires_grad:
        return v, z.new_zeros(count, numbers, numbers)
    basis = torch.eye(numbers, dtype=z.dtype, device=z.device).view(numbers, 1, *z.shape[1:]).expand(-1, *z.shape)
    (found,) = torch.autograd.grad(v, z, basis, retain_graph=True, allow_unused=True, is_grads_batched=True)
    if found is None:
        return v, z.new_zeros(count, numbers, numbers)
    return v, found.reshape(numbers, count, numbers).transpose(0, 1)


def _compare(v: Tensor, known: Tensor) -> None:
    """The slopes of the forward pass must come out again: a check that ``func`` means the same when vectorised."""
    tol = 1e-3 if v.dtype == torch.float32 else 1e-8
    if not torch.allclose(v.detach(), known, rtol=tol, atol=tol * float(known.abs().max()) if known.numel() else 0.0):
        raise UnbatchableError("func gives other values when it is vectorised over time")


def _incoming(total: Totals, low: int, high: int) -> Tensor:
    """Gradients of the states low … high as the loss gives them, the latest first: (steps, numbers)."""
    grads = total.z0.new_zeros(high + 1 - low, total.z0.numel())
    a, b = bisect.bisect_left(total.plan.nodes, low), bisect.bisect_right(total.plan.nodes, high)
    if b > a:
        place = torch.tensor([high - n for n in total.plan.nodes[a:b]], device=grads.device)
        grads[place] = total.out[a:b].reshape(b - a, -1).to(grads)
    return grads


def _pull_tensors(total: Totals, v: Tensor, bars: Tensor) -> None:
    if total.wanted and v.requires_grad:
        total.add_tensors(torch.autograd.grad(v, total.wanted, bars.reshape(v.shape), allow_unused=True))


class _Recursion:
    """``v̄_i = far_i + Σ_{i'<i} w_{i-i'} μ_{i'}``, ``μ_i = ḡ_i + J_iᵀ v̄_i`` inside a block."""

    def __init__(self, engine: Blocked, row: Tensor) -> None:
        size, self.groups = engine.block, row.shape[0]
        lags = engine.toeplitz.lags[0, :, 1:size].flip(-1)  # (groups, lag), largest lag first
        self.mu = row.new_zeros(size, row.numel())
        self.bars = torch.zeros_like(self.mu)
        self.mu_rows, self.bar_rows = self.mu.unbind(0), self.bars.unbind(0)
        width = lags.shape[1]
        if self.groups == 1:
            self.weights = [lags[0, width - q :] for q in range(min(size, width + 1))]
            self.past = [self.mu[:q].t() for q in range(size)]
        else:
            spread = lags.t().repeat_interleave(row.shape[1], dim=1)  # (lag, numbers)
            self.weights = [spread[width - q :] for q in range(min(size, width + 1))]
            self.past = [self.mu[:q] for q in range(size)]

    def solve(self, far: Tensor | None, grads: Tensor, jacobians: Tensor) -> tuple[Tensor, Tensor]:
        """The rows μ and v̄ of one block; Jacobians come in step order, and may leave out the latest step."""
        count = grads.shape[0]
        skip = count - jacobians.shape[0]
        base = torch.zeros_like(grads) if far is None else far.reshape(count, -1)
        transposed = jacobians.transpose(1, 2).flip(0).unbind(0)
        far_rows, grad_rows = base.unbind(0), grads.unbind(0)
        for q in range(count):
            if q < skip:
                self.mu_rows[q].copy_(grad_rows[q])
                continue
            bar, past, weights = self.bar_rows[q], self.past[q], self.weights[q]
            if self.groups == 1:
                torch.addmv(far_rows[q], past, weights, out=bar)
            else:
                torch.add(far_rows[q], (past * weights).sum(0), out=bar)
            torch.addmv(grad_rows[q], transposed[q - skip], bar, out=self.mu_rows[q])
        return self.mu[:count], self.bars[:count]
