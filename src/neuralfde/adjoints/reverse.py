"""The reverse sweep of the discrete scheme: exact by construction, for every scheme and every history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..loop import sweep
from ..schemes import Cotangents
from .forward import Record, Replay, Trace, traced_step
from .plan import Coefficients, Plan


@dataclass
class Found:
    """The gradients of one backward pass."""

    coefficients: tuple[Tensor | None, ...]
    z0: Tensor
    tensors: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Exact:
    """The adjoint of the discrete scheme; each step's graph is made again when the sweep reaches it.

    Memory: one step's graph and N rows, or less, as the history and the storage have it.
    """

    stores_graph = False

    def pull(
        self, plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Found:
        """See :class:`Adjoint`."""
        return reverse_sweep(plan, record, c, z0, grads)


@dataclass(frozen=True)
class Direct:
    """The same gradient from graphs kept since the forward pass: the baseline, with memory for N graphs of ``func``."""

    stores_graph = True

    def pull(
        self, plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Found:
        """See :class:`Adjoint`."""
        return reverse_sweep(plan, record, c, z0, grads)


def reverse_sweep(
    plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
) -> Found:
    """From the last step to the first: the transposed history feeds each step's vector-Jacobian product."""
    spare = record.tape.buffer if isinstance(record.tape, Replay) else None
    like = z0 if c.base is None else z0[0]
    engine = plan.history.reverse(c.weights, plan.steps, like, spare, plan.weigh)
    total = _Totals(plan, c, z0, grads, record.heads)
    wanted = [x for x in plan.leaves if x.requires_grad]
    tensors: list[Tensor | None] = [None] * len(wanted)
    dense, keep = c.dense is not None, bool(record.traces)

    def visit(n: int, past: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x, z, v = _trace(plan, record, n, dense)
        grad_z, grad_v = total.incoming(n, past)
        found = plan.scheme.pull(n, x, z, v, record.local_at(n), grad_z, grad_v, wanted, keep)
        _accumulate(tensors, found.tensors)
        slope = None
        if plan.weigh:
            slope = torch.zeros_like(like) if v is None else v.detach()
            total.weigh(n, found, slope)
        total.add(n, found.sums)
        if plan.callback is not None:
            plan.callback(plan.steps - n, plan.steps)
        return found.sums, slope

    sweep(engine, range(plan.steps, -1, -1), visit)
    supply = iter(tensors)
    placed = tuple(next(supply) if x.requires_grad else None for x in plan.leaves)
    return total.found(engine.weights_grad, placed)


def _trace(plan: Plan, record: Record, n: int, dense: bool) -> Trace:
    if record.traces:
        return record.traces[n]
    assert record.tape is not None
    return traced_step(plan, n, record.tape.read(n), record.local_at(n), plan.needs_slope(n, dense))


def _accumulate(totals: list[Tensor | None], found: Sequence[Tensor | None]) -> None:
    if None not in found and None not in totals:
        if totals:
            torch._foreach_add_(totals, found)  # type: ignore[arg-type]
        return
    for k, g in enumerate(found):
        if g is not None:
            known = totals[k]
            totals[k] = g.clone() if known is None else known.add_(g)


class _Totals:
    """Gradients of the initial row and of the coefficients, and what each step receives from the outputs."""

    def __init__(
        self, plan: Plan, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None], heads: list[Tensor]
    ) -> None:
        self.c, self.initial, self.heads = c, z0, heads
        self.first, self.steps = plan.first, plan.steps
        self.out, self.between = grads
        self.node = {n: k for k, n in enumerate(plan.nodes)}
        self.z0 = torch.zeros_like(z0)
        self.early = [torch.zeros_like(v) for v in heads]  # gradients of the slopes that have starting weights
        self.local = torch.zeros_like(c.local) if plan.weigh else None
        self.base = torch.zeros_like(c.base) if plan.weigh and c.base is not None else None
        self.start = torch.zeros_like(c.start) if plan.weigh and c.start is not None else None
        self.dense = torch.zeros_like(c.dense) if plan.weigh and c.dense is not None else None

    def incoming(self, n: int, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the state and of the slope of step ``n``."""
        grad_z = self.out[self.node[n]] if n in self.node else None
        if n < self.first:
            return grad_z, None
        grad_v = None if past is None else past[0]
        if n < len(self.early):
            grad_v = self.early[n] if grad_v is None else grad_v + self.early[n]
        if self.between is not None and self.c.dense is not None:
            direct = torch.einsum("og,ogm->gm", self.c.dense[:, n], self.between)
            grad_v = direct if grad_v is None else grad_v + direct
        return grad_z, grad_v

    def add(self, n: int, sums: Tensor) -> None:
        """Take in the gradients of the history sums of step ``n``."""
        parts = sums[:1] if n == 0 else sums  # at the start every sum is the initial value itself, counted once
        if self.c.base is None:
            for part in parts:
                self.z0.add_(part)
        else:
            self.z0.addcmul_(self.c.base[:, n, :, None], parts.sum(0))
        for j in range(min(n, len(self.early))):
            assert self.c.start is not None
            self.early[j].addcmul_(self.c.start[j, n, :, None], sums[0])

    def weigh(self, n: int, found: Cotangents, slope: Tensor) -> None:
        """Take in the gradients of the coefficients of step ``n``, other than the lag weights."""
        if self.base is not None:
            parts = found.sums[:1] if n == 0 else found.sums
            self.base[:, n] = (self.initial * parts.sum(0)).sum(-1)
        if self.start is not None:
            for j, v in enumerate(self.heads[:n]):
                self.start[j, n] = (found.sums[0] * v).sum(-1)
        if self.local is not None and found.local is not None:
            (self.local if self.local.ndim == 1 else self.local[n]).add_(found.local)
        if self.dense is not None:
            assert self.between is not None
            self.dense[:, n] = (self.between * slope).sum(-1)

    def found(self, weights: Tensor | None, tensors: tuple[Tensor | None, ...]) -> Found:
        """All gradients, in the order of the inputs."""
        if self.between is not None and self.c.base is None:
            self.z0.add_(self.between.sum(0))
        elif self.between is not None:
            assert self.c.base is not None
            tail = slice(self.steps + 1, None)
            self.z0.add_(torch.einsum("iog,ogm->igm", self.c.base[:, tail], self.between))
            if self.base is not None:
                self.base[:, tail] = torch.einsum("igm,ogm->iog", self.initial, self.between)
        lags = None if weights is None else weights.movedim(1, -1)  # engines keep (sums, groups, …)
        return Found((lags, self.local, self.start, self.dense, self.base), self.z0, tensors)
