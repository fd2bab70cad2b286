"""A whole block of plain steps as one CUDA graph, forward and backward.

A replay per step still leaves the host a thin product and a few copies to launch, which take as long as the kernels of
a small network. A block with static rows is one launch: the same steps as in :mod:`.plain`, captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..history import BlockEngine, add_thin
from ..structure import replace_tensors
from .captured import Captured, capture_stream, substituted
from .plan import Coefficients, Plan

# Solves of fewer blocks than this replay single steps: their first and last blocks would run eagerly.
FEWEST_BLOCKS = 4


class CapturedBlocks(Captured):
    """Static: the rows of a block, their times, what they contribute to each other, and the arguments.

    Forward, ``rows`` are the sums of a block and become its states, and ``work`` becomes its slopes. Backward,
    ``states`` are given, ``bars`` are the sums and become the gradients of the slopes, ``work`` holds the gradients of
    the loss and becomes the rows μ. ``bars`` are ``rows`` under another name: the two are never needed at once.
    """

    def __init__(self, plan: Plan, c: Coefficients, z0: Tensor, size: int) -> None:
        super().__init__(plan, c, z0)
        self.size, width = size, z0.numel()
        self.times = plan.field.times[-1:].repeat(size)
        self.rows, self.work = z0.new_zeros(size, width), z0.new_zeros(size, width)
        self.lags = {latest_first: z0.new_zeros(1, size - 1) for latest_first in (False, True)}
        self.bars = self.rows
        self.states = self.slopes = self.rows[:0]
        self.blocks: dict[bool, torch.cuda.CUDAGraph] = {}

    def take_weights(self, engine: BlockEngine) -> None:
        """Take in what the rows of a block contribute to each other."""
        self.lags[engine.latest_first].copy_(engine.thin[self.size - 1])

    def capture_forward(self) -> None:
        """The steps of a block from its sums."""
        plan = self._plan()

        def call() -> None:
            with torch.no_grad():
                for k, add in enumerate(self._inside(self.rows, latest_first=False)):
                    add()
                    x = self.rows[k].view(1, *self._row)
                    _, v = plan.scheme.evaluate(self._field(k, self.args), 1, x, self.local.detach(), True)
                    assert v is not None
                    self.work[k].copy_(v.view(-1))

        self.step, _ = self._capture(call)

    def advance(self, first: int) -> None:
        """Replay the block that begins at step ``first``."""
        plan = self._plan()
        self.times.copy_(plan.field.times[first : first + self.size])
        plan.field.evaluations += self.size
        assert self.step is not None
        self.step.replay()

    def capture_backward_of(self, engine: BlockEngine) -> None:
        """The graphs a reverse sweep of this engine will need."""
        if self.states.shape[0] == 0:
            self.states = torch.zeros_like(self.rows)
        if self._plan().weigh and self.slopes.shape[0] == 0:
            self.slopes = torch.zeros_like(self.rows)
        if engine.latest_first not in self.blocks:
            self.blocks[engine.latest_first] = self._capture_retreat(engine.latest_first)
        self.take_weights(engine)

    def take_grads(self, grads: dict[int, Tensor], latest_first: bool) -> None:
        """Gradients of the loss with respect to these states of the block, and of no others."""
        self.work.zero_()
        for k, grad in grads.items():
            self.work[self._slot(k, latest_first)].copy_(grad.view(-1))

    def retreat(self, top: int, latest_first: bool) -> None:
        """Replay the block from step ``top`` down; gradients of parameters go to the totals."""
        plan = self._plan()
        self.times.copy_(plan.field.times[top + 1 - self.size : top + 1].flip(0))
        plan.field.evaluations += self.size
        self.blocks[latest_first].replay()

    def _capture_retreat(self, latest_first: bool) -> torch.cuda.CUDAGraph:
        """Two streams take the steps in turn: evaluating ``func`` at a known state need not wait for the step before.

        A small network leaves most of a GPU idle, and so the evaluation costs little beside that step's product.
        """
        plan = self._plan()
        lanes = [(self.stream, self._leaves()), (capture_stream(self.x.device, lane=1), self._leaves())]

        def call() -> None:
            lanes[1][0].wait_stream(self.stream)
            for k, add in enumerate(self._inside(self.bars, latest_first)):
                (lane, leaves), (other, _) = lanes[k % 2], lanes[1 - k % 2]
                with torch.cuda.stream(lane):
                    x = self.states[k].view(1, *self._row).detach().requires_grad_()
                    with torch.enable_grad(), substituted(plan.field.func, leaves.own):
                        z, v = plan.scheme.evaluate(self._field(k, leaves.args), 1, x, self.local, True)
                    assert v is not None
                    lane.wait_stream(other)
                    add()
                    bar = self.bars[k].view(self._row)
                    found = plan.scheme.pull(1, x, z, v, self.local, None, bar, leaves.wanted)
                    self._accumulate(found.tensors, None)
                    self.work[self._slot(k, latest_first)].add_(found.sums.reshape(-1))
                    if plan.weigh:
                        self.slopes[k].copy_(v.detach().reshape(-1))
            self.stream.wait_stream(lanes[1][0])

        return self._capture(call)[0]

    @property
    def _row(self) -> tuple[int, int]:
        return self._plan().field.structure.row_shape

    def _slot(self, k: int, latest_first: bool) -> int:
        return self.size - 1 - k if latest_first else k

    def _field(self, k: int, args: list[Tensor]) -> Any:
        field = self._plan().field
        return field.with_clock(self.times[k], replace_tensors(field.args, args))

    def _inside(self, sums: Tensor, latest_first: bool) -> list[Callable[[], None]]:
        """For each row of the block: add what the rows before it contribute."""
        size, lags, work = self.size, self.lags[latest_first], self.work

        def adding(k: int) -> Callable[[], None]:
            weights = lags[:, :k] if latest_first else lags[:, size - 1 - k :]
            past = work[size - k :] if latest_first else work[:k]

            def add() -> None:
                if k > 0:
                    add_thin(sums[k : k + 1], weights, past)

            return add

        return [adding(k) for k in range(size)]
