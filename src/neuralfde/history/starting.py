"""Starting weights: some schemes weigh the first slopes differently. Also their transpose."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Block, Memory, Wrapped


class Starting(Wrapped):
    """Adds the first slopes with their starting weights, (sums, starts, steps + 1, groups), to the first sums."""

    def __init__(self, memory: Memory, start: Tensor) -> None:
        super().__init__(memory)
        self.start = start.permute(0, 3, 1, 2).triu(1).permute(0, 2, 3, 1)  # a slope contributes only to later steps
        self.heads = start.new_zeros(0)  # those of the first slopes that are known so far, (count, groups, width)

    def _extra(self, rows: Tensor, first: int, slopes: Tensor) -> Tensor:
        """Add these slopes, with their starting weights, to the sums ``rows`` (count, sums, …) from step ``first``."""
        if slopes.shape[0]:
            weights = self.start[:, : slopes.shape[0], first : first + rows.shape[0]]
            rows[:, : len(weights)] += torch.einsum("sjng,jgm->nsgm", weights, slopes)
        return rows

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        found = self.memory.recall(block, out)
        assert found is not None  # the wrapped memory adds the initial values
        return self._extra(found, block.start, self.heads[: block.start])

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        found, early = self.memory.inner(block), min(self.start.shape[1], block.stop) - block.start
        if early <= 0:
            return found
        extra = self.start[:, block.start : block.start + early, block.start : block.stop].permute(3, 0, 2, 1)
        found = found.clone()
        found[:, :, : extra.shape[1], :early, 0] += extra.transpose(1, 2)
        return found

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        missing = self.start.shape[1] - block.start
        if missing > 0 and self.heads.shape[0] <= block.start:
            first = rows[:missing, 0].clone()
            self.heads = first if block.start == 0 else torch.cat([self.heads, first])
        super().record(block, rows, slopes)

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        return self._extra(self.memory.replay(first, count), first, self.heads)


class StartingGradient(Wrapped):
    """The transpose of :class:`Starting`: gradients of the first slopes, and of the starting weights themselves."""

    def __init__(self, memory: Memory, steps: int, start: Tensor, heads: Tensor, weigh: bool) -> None:
        super().__init__(memory)
        self.steps, self.start, self.heads = steps, start, heads
        self.early = torch.zeros_like(heads)
        self.start_grad = torch.zeros_like(start) if weigh else None

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`; the first slopes belong to the last steps of the pass."""
        found = self.memory.recall(block, out)
        low, heads = self.steps + 1 - block.stop, self.heads.shape[0]
        if low < heads:
            if found is None:
                found = self.early.new_zeros(block.count, 1, *self.early.shape[1:]) if out is None else out.zero_()
            count = min(heads - low, block.count)
            found[block.count - count :, 0] += self.early[low : low + count].flip(0)
        return found

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        found = self.memory.inner(block)
        low, high = self.steps + 1 - block.stop, self.steps - block.start
        early = min(self.heads.shape[0], high + 1) - low
        if early <= 0:
            return found
        extra = self.start[:, low : low + early, low : high + 1].permute(3, 0, 2, 1).tril(-1)  # group, sum, step, head
        found = found.clone()
        found[:, block.count - early :, 0, :, : extra.shape[1]] += extra.flip(2, 3).permute(0, 3, 2, 1)
        return found

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        low, high = self.steps + 1 - block.stop, self.steps - block.start
        first = rows[:, : len(self.start)].flip(0)  # steps low … high
        before = min(low, self.heads.shape[0])
        if before:
            self.early[:before] += torch.einsum("sjng,nsgm->jgm", self.start[:, :before, low : high + 1], first)
        if self.start_grad is not None:
            count = self.heads.shape[0]
            steps = torch.arange(low, high + 1, device=first.device)
            later = (torch.arange(count, device=first.device)[:, None] < steps)[..., None]
            found = torch.einsum("jgm,nsgm->sjng", self.heads, first)
            self.start_grad[:, :count, low : high + 1] = torch.where(later, found, 0.0)
        super().record(block, rows, slopes)
