"""The reverse sweep of the discrete scheme: exact by construction, for every scheme and every history."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..loop import sweep
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

    def visit(n: int, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        local = record.local_at(n)
        traced = _trace(plan, record, n, local, c.dense is not None)
        grad_z, grad_v = total.incoming(n, past)
        found = plan.scheme.pull(
            n, traced.x, traced.z, traced.v, local, grad_z, grad_v, total.wanted, keep=bool(record.traces)
        )
        slope = None if traced.v is None else traced.v.detach()
        total.add(n, found.sums, found.tensors, found.local, slope)
        if plan.callback is not None:
            plan.callback(plan.steps - n, plan.steps)
        return found.sums, torch.zeros_like(like) if slope is None else slope

    sweep(engine, range(plan.steps, -1, -1), visit)
    return total.found(engine.weights_grad)


def _trace(plan: Plan, record: Record, n: int, local: Tensor, dense: bool) -> Trace:
    if record.traces:
        return record.traces[n]
    assert record.tape is not None
    return traced_step(plan, n, record.tape.read(n), local, plan.needs_slope(n, dense))


class _Totals:
    """Gradients as they add up over the steps, and what each step receives from the outputs."""

    def __init__(
        self, plan: Plan, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None], heads: list[Tensor]
    ) -> None:
        self.plan, self.c, self.initial, self.heads = plan, c, z0, heads
        self.out, self.between = grads
        self.node = {n: k for k, n in enumerate(plan.nodes)}
        self.wanted = [x for x in plan.leaves if x.requires_grad]
        self.tensors: list[Tensor | None] = [None] * len(self.wanted)
        self.z0 = torch.zeros_like(z0)
        self.early = [torch.zeros_like(v) for v in heads]  # gradients of the slopes that have starting weights
        self.local = torch.zeros_like(c.local) if plan.weigh else None
        self.base = torch.zeros_like(c.base) if plan.weigh and c.base is not None else None
        self.start = torch.zeros_like(c.start) if plan.weigh and c.start is not None else None
        self.dense = torch.zeros_like(c.dense) if plan.weigh and c.dense is not None else None

    def incoming(self, n: int, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the state and of the slope of step ``n``."""
        grad_z = self.out[self.node[n]] if n in self.node else None
        if n < self.plan.first:
            return grad_z, None
        grad_v = None if past is None else past[0]
        if n < len(self.early):
            grad_v = self.early[n] if grad_v is None else grad_v + self.early[n]
        if self.between is not None and self.c.dense is not None:
            direct = torch.einsum("og,ogm->gm", self.c.dense[:, n], self.between)
            grad_v = direct if grad_v is None else grad_v + direct
        return grad_z, grad_v

    def add(
        self, n: int, sums: Tensor, tensors: tuple[Tensor | None, ...], local: Tensor | None, slope: Tensor | None
    ) -> None:
        """Take in what step ``n`` hands back."""
        self._add_initial(n, sums)
        self._add_tensors(tensors)
        for j, v in enumerate(self.heads[:n]):
            assert self.c.start is not None
            self.early[j].addcmul_(self.c.start[j, n, :, None], sums[0])
            if self.start is not None:
                self.start[j, n] = (sums[0] * v).sum(-1)
        if self.local is not None and local is not None:
            (self.local if self.local.ndim == 1 else self.local[n]).add_(local)
        if self.dense is not None and slope is not None:
            assert self.between is not None
            self.dense[:, n] = (self.between * slope).sum(-1)

    def _add_initial(self, n: int, sums: Tensor) -> None:
        parts = sums[:1] if n == 0 else sums  # at the start every sum is the initial value itself, counted once
        if self.c.base is None:
            for part in parts:
                self.z0.add_(part)
            return
        total = parts.sum(0)
        self.z0.addcmul_(self.c.base[:, n, :, None], total)
        if self.base is not None:
            self.base[:, n] = (self.initial * total).sum(-1)

    def _add_tensors(self, tensors: tuple[Tensor | None, ...]) -> None:
        if any(g is None for g in tensors) or any(t is None for t in self.tensors):
            for k, g in enumerate(tensors):
                if g is not None:
                    known = self.tensors[k]
                    self.tensors[k] = g.clone() if known is None else known.add_(g)
        elif tensors:
            torch._foreach_add_(self.tensors, tensors)  # type: ignore[arg-type]

    def found(self, weights: Tensor | None) -> Found:
        """All gradients, in the order of the inputs."""
        if self.between is not None and self.c.base is None:
            self.z0.add_(self.between.sum(0))
        elif self.between is not None:
            assert self.c.base is not None
            tail = slice(self.plan.steps + 1, None)
            self.z0.add_(torch.einsum("iog,ogm->igm", self.c.base[:, tail], self.between))
            if self.base is not None:
                self.base[:, tail] = torch.einsum("igm,ogm->iog", self.initial, self.between)
        supply = iter(self.tensors)
        placed = tuple(next(supply) if x.requires_grad else None for x in self.plan.leaves)
        lags = None if weights is None else weights.movedim(1, -1)  # engines keep (sums, groups, …)
        return Found((lags, self.local, self.start, self.dense, self.base), self.z0, placed)
