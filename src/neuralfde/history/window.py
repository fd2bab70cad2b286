"""Short memory: only the most recent steps count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import whole
from .base import History, Memory
from .full import Blocked
from .matrices import Rows, Toeplitz


@dataclass(frozen=True)
class Window(History):
    """The short-memory principle (Podlubny 1999): sums include only the last ``length`` steps, in both passes.

    The result solves a different, windowed system, and its gradient is exact for that system. A forward pass takes
    O(length · d) memory for d elements, whatever the horizon.
    """

    length: int
    block: int = 64
    snapshots = True

    def __post_init__(self) -> None:
        forgets = "A window of no steps forgets everything; history='full' has the whole past."
        whole("Window.length", self.length, hint=forgets)
        whole("Window.block", self.block)

    def lags(self, weights: Tensor, steps: int) -> Tensor:
        """See :class:`History`."""
        seen = torch.arange(steps + 1, device=weights.device) <= self.length
        return torch.where(seen[:, None], weights, 0.0)

    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Blocked:
        """See :class:`History`."""
        return self._open(weights, steps, row, False, False)

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Blocked:
        """See :class:`History`."""
        return self._open(weights, steps, row, True, weigh)

    def _open(self, weights: Tensor, steps: int, row: Tensor, backward: bool, weigh: bool) -> Blocked:
        reach = min(self.length, steps)
        # a new block needs the last `reach` rows, and the gradient of the weights those of the block before it
        kept = reach + self.block
        capacity = min(steps + 1, 2 * kept + self.block)
        held = weights.clone()
        held[:, reach + 1 :] = 0
        count = weights.shape[0] if backward else 1
        inputs = [
            Rows(torch.empty(capacity, *row.shape, dtype=row.dtype, device=row.device), False, kept)
            for _ in range(count)
        ]
        return Blocked(Toeplitz(held, self.block + 1), inputs, steps, self.block, backward, reach, weigh)
