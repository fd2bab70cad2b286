"""Gradients of what ``func`` depends on, as they add up over the steps of a backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..base.torch_private import add_each


class Totals:
    """Sums over the steps: of the gradients of the ``wanted`` tensors, and of the local weights.

    Args:
        wanted: tensors that get a gradient.
        local: the local weights, (groups,) or (steps + 1, groups).
        weigh: whether their gradient is wanted.
    """

    def __init__(self, wanted: Sequence[Tensor], local: Tensor, weigh: bool) -> None:
        self.wanted = tuple(wanted)
        self.tensors: list[Tensor | None] = [None] * len(self.wanted)
        self.local = torch.zeros_like(local) if weigh else None

    def add(self, tensors: Sequence[Tensor | None]) -> None:
        """Add gradients of the wanted tensors, None where there is none."""
        if not tensors:
            return
        try:
            add_each(self.tensors, tensors)  # type: ignore[arg-type]
        except TypeError:  # there are gaps: the first step, or a tensor that this step did not use
            for k, g in enumerate(tensors):
                if g is not None:
                    known = self.tensors[k]
                    self.tensors[k] = g.clone() if known is None else known.add_(g)

    def add_local(self, n: int, grad: Tensor | None) -> None:
        """Add the gradient of the local weight of step ``n``."""
        if self.local is not None and grad is not None:
            target = self.local if self.local.ndim == 1 else self.local[n]
            target.add_(grad.reshape(target.shape))
