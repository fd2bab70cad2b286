"""The whole past, exactly: the history ``full``, and the memory by blocks behind ``full``, ``fft`` and windows.

When a block of steps begins, one matrix product sums the contributions of all earlier rows. Fed from the last step to
the first, the same object applies the transposed matrix: reversing time transposes a Toeplitz matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import whole
from ..base.policy import WIDE_ROW
from .base import Block, History, Memory
from .host_rows import HostRows
from .matrices import Rows, Toeplitz, Triangular, product
from .panels import FEWEST_STEPS, Panels, panels_for


@dataclass(frozen=True)
class Full(History):
    """The whole past, summed exactly by matrix products, block by block.

    For N steps of d elements it takes O(N²·d) work, at the speed of a GEMM, and N·d memory, plus a few blocks of rows.
    Blocks of wide rows are a quarter as long.

    Args:
        block: the number of steps in a block.
        host: keep the rows in host memory and fetch them in parts for every sum: this takes almost no GPU memory, but
            the time of N²/2 transfers of a row each way. ``storage="host"`` sets it.
        states: also keep the states, in the storage, so that the backward pass need not sum the past again for them: a
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
        return _open(weights, steps, row, self.block_for(row.numel()), self.host)

    def reverse(self, weights: Tensor, steps: int, row: Tensor, spare: Memory | None, weigh: bool) -> Blocked:
        """See :class:`History`."""
        return _open(weights, steps, row, self.block_for(row.numel()), self.host, spare, weigh, backward=True)

    def block_for(self, width: int) -> int:
        """The number of steps in a block of rows with ``width`` elements."""
        return self.block if width <= WIDE_ROW else max(1, self.block // 4)


class Blocked(Memory):
    """One pass of a lower triangular matrix over rows that arrive block by block.

    Args:
        matrix: the weights; forward, each of its sums is an output; backward, each is an input.
        inputs: where the rows are kept, one :class:`Rows` per input.
        steps: rows are numbered 0 … steps.
        block: steps in a block.
        backward: from the last row to the first, with the transposed matrix.
        reach: sums go back this many steps; None: to the beginning.
        weigh: in a backward pass, also accumulate the gradient of the weights.
        panels: moments of distant rows, one :class:`Panels` per input, which are summed in place of these rows.
    """

    def __init__(
        self,
        matrix: Toeplitz | Triangular,
        inputs: Sequence[Rows],
        steps: int,
        block: int,
        backward: bool = False,
        reach: int | None = None,
        weigh: bool = False,
        panels: Sequence[Panels] = (),
    ) -> None:
        self.matrix, self.inputs, self.steps, self.block = matrix, inputs, steps, block
        self.backward, self.reach, self.panels = backward, reach, panels
        self.weights_grad = torch.zeros_like(matrix.lags) if weigh else None

    def recall(self, block: Block, out: Tensor | None = None) -> Tensor | None:
        """See :class:`Memory`."""
        oldest = self._oldest(block.start)
        if oldest == block.start:
            return None
        far = self.product(block.start, block.count, oldest, block.start)
        return far if out is None else out.copy_(far)

    def inner(self, block: Block) -> Tensor:
        """See :class:`Memory`."""
        return self.matrix.inner(block.start, block.count, self.backward)

    def record(self, block: Block, rows: Tensor, slopes: Tensor | None = None) -> None:
        """See :class:`Memory`."""
        for own, part in zip(self.inputs, rows.unbind(1), strict=True):
            own.make_room(block.start, block.count)
            own.write(block.start, part)
        if self.weights_grad is not None and slopes is not None:
            self._correlate(block, slopes)

    def replay(self, first: int, count: int) -> Tensor:
        """See :class:`Memory`."""
        return self.product(first, count, 0, first + count)

    def kept(self, n: int) -> Tensor:
        """See :class:`Memory`."""
        return self.inputs[0].buffer[n]

    def kept_rows(self, steps: range) -> Tensor:
        """See :class:`Memory`."""
        return self.inputs[0].buffer[steps[-1] : steps[0] + 1].flip(0)

    @property
    def bytes(self) -> int:
        """See :class:`Memory`."""
        moments = sum(panels.buffer.numel() * panels.buffer.element_size() for panels in self.panels)
        return moments + sum(rows.bytes for rows in self.inputs)

    @property
    def snapshot_rows(self) -> int:
        """See :class:`Memory`: the rows within the window, or all."""
        return self.steps if self.reach is None else self.reach

    def snapshot(self, n: int) -> tuple[Tensor, ...]:
        """See :class:`Memory`."""
        first = self._oldest(n)
        return torch.tensor(first), self.inputs[0].slice(first, n).clone()

    def restore(self, kept: tuple[Tensor, ...] | None) -> None:
        """See :class:`Memory`."""
        rows = self.inputs[0]
        rows.offset = 0 if kept is None else int(kept[0])
        if kept is not None:
            rows.buffer[: kept[1].shape[0]].copy_(kept[1])

    def product(self, first: int, count: int, a: int, b: int) -> Tensor:
        """Contributions of times [a, b) to rows first … first+count-1: (count, outputs, groups, width)."""
        distant = self.panels[0].table.count(first) if self.panels and a == 0 else 0
        if distant:
            a = distant * self.panels[0].table.length
        blocks = self.matrix.block(first, count, a, b, self.inputs[0].backward)
        near = self._joined(blocks, lambda k, weights: self.inputs[k].weighted(weights, a, b))
        return near if distant == 0 else near.add_(self._distant(first, count, distant))

    def _distant(self, first: int, count: int, panels: int) -> Tensor:
        """The contribution of the first panels to these rows, from their moments."""
        for own, rows in zip(self.panels, self.inputs, strict=True):
            while own.done < panels:
                start = own.done * own.table.length
                own.take(rows.slice(start, start + own.table.length))
        blocks = self.panels[0].table.block(first, count, panels, self.inputs[0].backward)
        return self._joined(blocks, lambda k, weights: product(weights, self.panels[k].slice(panels)))

    def _joined(self, blocks: Tensor, weighted: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Products with blocks (sums, groups, count, times): an output per sum, or, backward, the total over inputs."""
        if not self.backward:
            return weighted(0, blocks)
        parts = [weighted(k, own[None]) for k, own in enumerate(blocks)]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def _oldest(self, i: int) -> int:
        return 0 if self.reach is None else max(0, i - self.reach)

    def _correlate(self, block: Block, slopes: Tensor) -> None:
        """Add ``⟨v_i, μ_{i'}⟩`` to the gradient of the weight of lag ``i - i'`` for the slopes of one block."""
        assert self.weights_grad is not None
        a = self._oldest(block.start)
        times = torch.arange(a, block.stop, device=slopes.device)
        own = torch.arange(block.start, block.stop, device=slopes.device)
        times = times.flip(0) if self.inputs[0].backward else times
        for k, rows in enumerate(self.inputs):
            inner = rows.inner_products(slopes, a, block.stop)
            self.matrix.correlate(self.weights_grad[k], inner, own, times, self.reach or self.steps)


def _open(
    weights: Tensor,
    steps: int,
    row: Tensor,
    block: int,
    host: bool,
    spare: Memory | None = None,
    weigh: bool = False,
    backward: bool = False,
) -> Blocked:
    inputs = room_for(weights, steps, row, host, spare, backward)
    if weights.ndim > 3:
        return Blocked(Triangular(weights, backward), inputs, steps, block, backward, weigh=weigh)
    matrix, panels = Toeplitz(weights, block), []
    if steps >= FEWEST_STEPS and not host:
        assert spare is None or isinstance(spare, Blocked)
        known = None if spare is None else (spare.matrix.lags, spare.panels)
        panels = panels_for(matrix.lags, steps, row, backward, known)
    return Blocked(matrix, inputs, steps, block, backward, weigh=weigh, panels=panels)


def room_for(weights: Tensor, steps: int, row: Tensor, host: bool, spare: Memory | None, backward: bool) -> list[Rows]:
    """A buffer for all rows of each input; the first input takes over the buffer of the ``spare`` memory."""
    assert spare is None or isinstance(spare, Blocked)
    place: dict[str, Any] = {"device": "cpu", "pin_memory": row.is_cuda} if host else {}
    rooms = [] if spare is None else [spare.inputs[0].buffer]
    while len(rooms) < (weights.shape[0] if backward else 1):
        rooms.append(row.new_empty(steps + 1, *row.shape, **place))
    return [(HostRows if host else Rows)(room, backward) for room in rooms]
