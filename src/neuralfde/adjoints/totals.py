"""Gradients as they add up over the steps of a reverse sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .plan import Coefficients, Plan


@dataclass
class Found:
    """The gradients of one backward pass."""

    coefficients: tuple[Tensor | None, ...]
    z0: Tensor
    tensors: tuple[Tensor | None, ...]


class Totals:
    """Gradients of the initial row and of the coefficients, and what each step receives from the outputs."""

    def __init__(
        self, plan: Plan, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None], heads: list[Tensor]
    ) -> None:
        self.plan, self.c, self.initial, self.heads = plan, c, z0, heads
        self.wanted = [x for x in plan.leaves if x.requires_grad]
        self.tensors: list[Tensor | None] = [None] * len(self.wanted)
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

    def weigh(self, n: int, sums: Tensor, local: Tensor | None, slope: Tensor) -> None:
        """Take in the gradients of the coefficients of step ``n``, other than the lag weights."""
        if self.base is not None:
            parts = sums[:1] if n == 0 else sums
            self.base[:, n] = (self.initial * parts.sum(0)).sum(-1)
        if self.start is not None:
            for j, v in enumerate(self.heads[:n]):
                self.start[j, n] = (sums[0] * v).sum(-1)
        if self.local is not None and local is not None:
            (self.local if self.local.ndim == 1 else self.local[n]).add_(local)
        if self.dense is not None:
            assert self.between is not None
            self.dense[:, n] = (self.between * slope).sum(-1)

    def add_captured(self, tensors: Sequence[Tensor | None], local: Tensor | None) -> None:
        """Take in what replayed steps have added up."""
        self.add_tensors(tensors)
        if self.local is not None and local is not None:
            self.local.add_(local)

    def add_tensors(self, tensors: Sequence[Tensor | None]) -> None:
        """Take in gradients of what ``func`` depends on."""
        if not tensors:
            return
        try:
            torch._foreach_add_(self.tensors, tensors)  # type: ignore[arg-type]
        except TypeError:  # there are gaps: the first step, or a tensor that this step did not use
            for k, g in enumerate(tensors):
                if g is not None:
                    known = self.tensors[k]
                    self.tensors[k] = g.clone() if known is None else known.add_(g)

    def found(self, weights: Tensor | None) -> Found:
        """All gradients, in the order of the inputs."""
        if self.between is not None and self.c.base is None:
            self.z0.add_(self.between.sum(0))
        elif self.between is not None:
            assert self.c.base is not None
            tail = slice(self.steps + 1, None)
            self.z0.add_(torch.einsum("iog,ogm->igm", self.c.base[:, tail], self.between))
            if self.base is not None:
                self.base[:, tail] = torch.einsum("igm,ogm->iog", self.initial, self.between)
        supply = iter(self.tensors)
        placed = tuple(next(supply) if x.requires_grad else None for x in self.plan.leaves)
        lags = None if weights is None else weights.movedim(1, -1)  # engines keep (sums, groups, …)
        return Found((lags, self.local, self.start, self.dense, self.base), self.z0, placed)
