"""Histories that keep every row: exact, by matrix products (`full`) or with FFTs for distant blocks (`fft`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import whole
from ..base.policy import WIDE_ROW
from .base import History, Memory
from .blocked import Blocked, HostBlocked
from .matrices import Rows, Toeplitz, Triangular
from .panels import FEWEST_STEPS, Panels, table_for


@dataclass(frozen=True)
class Full(History):
    """The whole past, block by block as matrix products: O(N²·d) work at the speed of a GEMM, N·d memory.

    A few blocks of rows are alive beside the past itself; blocks of wide rows are a quarter as long.

    Args:
        block: steps in a block.
        host: rows are kept in host memory and come back in parts for every sum: next to no memory of a GPU, for the
            time of N²/2 transfers of a row each way. What ``storage="host"`` asks for.
        states: the states are kept too, in the storage, and the backward pass need not sum the past for them again: a
            third less work in sums for N·d more memory.
    """

    block: int = 64
    host: bool = False
    states: bool = False

    def __post_init__(self) -> None:
        whole("Full.block", self.block)

    @property
    def keeps_slopes(self) -> bool:  # type: ignore[override]
        """See :class:`History`."""
        return not self.states

    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Blocked:
        """See :class:`History`."""
        return _open(weights, steps, row, self.levels(row.numel()), host=self.host)

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Blocked:
        """See :class:`History`."""
        return _open(weights, steps, row, self.levels(row.numel()), spare, weigh, backward=True, host=self.host)

    def levels(self, width: int) -> tuple[int, ...]:
        """The block size for rows of this many numbers."""
        return (self.block if width <= WIDE_ROW else max(1, self.block // 4),)


@dataclass(frozen=True)
class FFT(History):
    """The whole past; what distant blocks contribute is computed by FFT: O(N log² N · d) work, N·d memory.

    Blocks grow by ``growth`` from level to level, so that the largest one, which is held in full while it is being
    filled, stays a fraction of the horizon.
    """

    block: int = 64
    growth: int = 8
    keeps_slopes = True

    def __post_init__(self) -> None:
        whole("FFT.block", self.block)
        whole("FFT.growth", self.growth, least=2)

    def forward(self, weights: Tensor, steps: int, row: Tensor) -> Blocked:
        """See :class:`History`."""
        return _open(weights, steps, row, self.levels(steps))

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Blocked:
        """See :class:`History`."""
        return _open(weights, steps, row, self.levels(steps), spare, weigh, backward=True)

    def levels(self, steps: int) -> tuple[int, ...]:
        """Block sizes for this many steps, growing."""
        sizes = [self.block]
        while sizes[-1] * self.growth * 2 <= steps:
            sizes.append(sizes[-1] * self.growth)
        return tuple(sizes)


def _open(
    weights: Tensor,
    steps: int,
    row: Tensor,
    levels: tuple[int, ...],
    spare: Memory | None = None,
    weigh: bool = False,
    backward: bool = False,
    host: bool = False,
) -> Blocked:
    more = weights.shape[0] - 1 if backward else 0  # inputs beside the first, which takes over the spare one's memory
    assert spare is None or isinstance(spare, Blocked)
    place: dict[str, Any] = {"device": "cpu", "pin_memory": row.is_cuda} if host else {}
    rooms = [row.new_empty(steps + 1, *row.shape, **place) for _ in range(more + (spare is None))]
    inputs = [Rows(b, backward) for b in ([] if spare is None else [spare.inputs[0].buffer]) + rooms]
    kind = HostBlocked if host else Blocked
    if weights.ndim > 3:
        return kind(Triangular(weights, backward), inputs, steps, levels, backward, weigh=weigh)
    matrix = Toeplitz(weights, levels[-1])
    if host:
        return kind(matrix, inputs, steps, levels, backward, weigh=weigh)
    known = spare.panels[0].table if spare is not None and spare.panels else None
    if known is None or spare is None or not torch.equal(spare.matrix.lags, matrix.lags):
        known = table_for(matrix.lags, row) if len(levels) == 1 and steps >= FEWEST_STEPS else None
    panels = []
    if known is not None:
        held = spare.panels[0].buffer if spare is not None and spare.panels else known.buffer(steps, row)
        panels = [Panels(known, b, backward) for b in (held, *[torch.empty_like(held) for _ in range(more)])]
    return Blocked(matrix, inputs, steps, levels, backward, weigh=weigh, panels=panels)
