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
        self.add_tensors(tensors)
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

    def add_captured(self, tensors: Sequence[Tensor | None], local: Tensor | None) -> None:
        """Take in what replayed steps have added up."""
        self.add_tensors(tensors)
        if self.local is not None and local is not None:
            self.local.add_(local)

    def add_tensors(self, tensors: Sequence[Tensor | None]) -> None:
        """Take in gradients of what ``func`` depends on."""
        if not tensors:
            return
        if any(g is None for g in tensors) or any(t is None for t in self.tensors):
            for k, g in enumerate(tensors):
                if g is not None:
                    known = self.tensors[k]
                    self.tensors[k] = g.clone() if known is None else known.add_(g)
        else:
            torch._foreach_add_(self.tensors, tensors)  # type: ignore[arg-type]

    def found(self, weights: Tensor | None) -> Found:
        """All gradients, in the order of the inputs."""
        if self.between is not None:
            self.z0.add_(self.between.sum(0))
        supply = iter(self.tensors)
        placed = tuple(next(supply) if x.requires_grad else None for x in self.plan.leaves)
        lags = None if weights is None else weights.permute(0, 2, 1)  # (sums, groups, lag) as engines keep it
        return Found((lags, self.local, self.start, self.dense), self.z0, placed)
