"""Output between grid points, and its transpose."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Block, Memory, Wrapped


class Between(Wrapped):
    """Adds slopes, weighted by ``dense`` (times, steps + 1, parts), to the states between grid points.

    ``states`` (times, groups, width) starts as the contribution of the initial values. The parts of a row are its
    groups, or pieces of equal length into which each group is divided.
    """

    def __init__(self, memory: Memory, dense: Tensor, states: Tensor) -> None:
        super().__init__(memory)
        self.dense, self.states = dense, states
        self.parts = states.view(states.shape[0], dense.shape[2], -1)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        weights, parts = self.dense[:, block.start : block.stop], in_parts(rows[:, 0], self.dense)
        self.parts.transpose(0, 1).baddbmm_(weights.permute(2, 0, 1), parts.transpose(0, 1))
        super().record(block, rows, slopes)


class BetweenGradient(Wrapped):
    """The transpose of :class:`Between`, for the gradients ``grads`` (times, groups, width) of these states."""

    def __init__(self, memory: Memory, steps: int, dense: Tensor, grads: Tensor, weigh: bool) -> None:
        super().__init__(memory)
        self.steps, self.dense, self.grads = steps, dense, grads
        self.dense_grad = torch.zeros_like(dense) if weigh else None

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor:
        """See :class:`Memory`."""
        found = self.memory.recall(block, out)
        steps = slice(self.steps + 1 - block.stop, self.steps + 1 - block.start)
        direct = torch.einsum("ong,ogm->ngm", self.dense[:, steps], in_parts(self.grads, self.dense)).flip(0)
        direct = direct.reshape(block.count, 1, *self.grads.shape[1:])
        if found is not None:
            return found.add_(direct)
        return direct if out is None else out.copy_(direct)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        if self.dense_grad is not None and slopes is not None:
            steps = slice(self.steps + 1 - block.stop, self.steps + 1 - block.start)
            grads, parts = in_parts(self.grads, self.dense), in_parts(slopes.flip(0), self.dense)
            self.dense_grad[:, steps] = torch.einsum("ogm,ngm->ong", grads, parts)
        super().record(block, rows, slopes)


def in_parts(rows: Tensor, dense: Tensor) -> Tensor:
    """Rows (n, groups, width) as (n, parts, …), with the parts of ``dense`` (times, steps + 1, parts)."""
    return rows.reshape(rows.shape[0], dense.shape[2], -1)
