"""The reverse sweep of the discrete scheme: exact by construction, for every scheme and every history."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..history import precise
from ..loop import sweep
from .again import Replay
from .forward import Record
from .plan import Coefficients, Plan
from .step import Trace, traced_step


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
    engine = plan.history.reverse(c.weights, plan.steps, z0, spare, plan.weigh)
    total = _Totals(plan, c, z0, grads, record.v0)
    local = record.local

    def visit(n: int, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        traced = _trace(plan, record, n, local, c.dense is not None)
        grad_z, grad_v = total.incoming(n, past)
        found = plan.scheme.pull(
            n, traced.x, traced.z, traced.v, local, grad_z, grad_v, total.wanted, keep=bool(record.traces)
        )
        slope = None if traced.v is None else traced.v.detach()
        total.add(n, found.sums, found.tensors, found.local, slope)
        if plan.callback is not None:
            plan.callback(plan.steps - n, plan.steps)
        return found.sums, torch.zeros_like(z0) if slope is None else slope

    sweep(precise(engine, z0), range(plan.steps, -1, -1), visit)
    return total.found(engine.weights_grad)


def _trace(plan: Plan, record: Record, n: int, local: Tensor, dense: bool) -> Trace:
    if record.traces:
        return record.traces[n]
    assert record.tape is not None
    return traced_step(plan, n, record.tape.read(n), local, plan.needs_slope(n, dense))


class _Totals:
    """Gradients as they add up over the steps, and what each step receives from the outputs."""

    def __init__(
        self, plan: Plan, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None], v0: Tensor | None
    ) -> None:
        self.plan, self.c, self.v0 = plan, c, v0
        self.out, self.between = grads
        self.node = {n: k for k, n in enumerate(plan.nodes)}
        self.wanted = [x for x in plan.leaves if x.requires_grad]
        self.tensors: list[Tensor | None] = [None] * len(self.wanted)
        self.z0 = torch.zeros_like(z0)
        self.head = torch.zeros_like(z0) if c.start is not None else None
        self.local = torch.zeros_like(c.local) if plan.weigh else None
        self.start = torch.zeros_like(c.start) if plan.weigh and c.start is not None else None
        self.dense = torch.zeros_like(c.dense) if plan.weigh and c.dense is not None else None

    def incoming(self, n: int, past: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the state and of the slope of step ``n``."""
        grad_z = self.out[self.node[n]] if n in self.node else None
        if n < self.plan.first:
            return grad_z, None
        grad_v = None if past is None else past[0]
        if n == 0 and self.head is not None:
            grad_v = self.head if grad_v is None else grad_v + self.head
        if self.between is not None and self.c.dense is not None:
            direct = torch.einsum("og,ogm->gm", self.c.dense[:, n], self.between)
            grad_v = direct if grad_v is None else grad_v + direct
        return grad_z, grad_v

    def add(
        self, n: int, sums: Tensor, tensors: tuple[Tensor | None, ...], local: Tensor | None, slope: Tensor | None
    ) -> None:
        """Take in what step ``n`` hands back."""
        self.z0.add_(sums[0])
        if n > 0:  # at the start every sum is the initial value itself, counted once
            for extra in sums[1:]:
                self.z0.add_(extra)
        self._add_tensors(tensors)
        if self.head is not None and n > 0:
            assert self.c.start is not None
            self.head.addcmul_(self.c.start[n, :, None], sums[0])
            if self.start is not None and self.v0 is not None:
                self.start[n] = (sums[0] * self.v0).sum(-1)
        if self.local is not None and local is not None:
            self.local.add_(local)
        if self.dense is not None and slope is not None:
            assert self.between is not None
            self.dense[:, n] = (self.between * slope).sum(-1)

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
        if self.between is not None:
            self.z0.add_(self.between.sum(0))
        supply = iter(self.tensors)
        placed = tuple(next(supply) if x.requires_grad else None for x in self.plan.leaves)
        lags = None if weights is None else weights.permute(0, 2, 1)  # (sums, groups, lag) as engines keep it
        return Found((lags, self.local, self.start, self.dense), self.z0, placed)
