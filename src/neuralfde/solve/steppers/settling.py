"""When an iteration of many steps has settled, and whether what it settled to are the steps of the scheme."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...base.policy import STAGE_GROWTH, STAGE_NEAR
from ...schemes.stage_solvers import roughness, rounded
from ..plan import Plan
from .base import largest
from .block import BlockOfSteps
from .samples import Samples


class Settling:
    """What one pass knows of the size of its states; ``scale`` are the largest so far."""

    def __init__(self, plan: Plan, like: Tensor, tol: float) -> None:
        self.samples, self.tol, self.scale = Samples(plan), tol, like.new_zeros(())

    def grow(self, states: Tensor) -> None:
        """These states count from now on."""
        self.scale = torch.maximum(self.scale, states.abs().amax(-2, keepdim=True))

    def settled(self, before: Tensor, now: Tensor) -> bool | None:
        """Whether no state changes beyond rounding, relative to the largest one up to it; None: it never will.

        Later states do not count: what happens at the end of a block must not end the iteration for its beginning.
        """
        late, last = before.narrow(-2, -1, 1), now.narrow(-2, -1, 1)  # which settles last, and is cheap to look at
        excess = float((last - late).abs_().sub_(torch.maximum(last.abs(), self.scale), alpha=self.tol).max())
        if excess > 0:
            return False if math.isfinite(excess) else None
        size = torch.maximum(now.abs().cummax(-2).values, self.scale)
        excess = float((now - before).abs_().sub_(size, alpha=self.tol).max())
        return excess <= 0 if math.isfinite(excess) else None

    def rough(
        self, block: BlockOfSteps, steps: tuple[int, int], stages: Tensor, slopes: Tensor, moved: Tensor, still: bool
    ) -> bool:
        """Whether no sample moves by more than rounding makes it: of states, or, if it stands ``still``, inside func.

        On a GPU products of matrices and convolutions may have ten bits.
        """
        a, b = steps
        if not largest(moved) <= STAGE_NEAR * largest(stages[-1]):
            return False
        times, weights = block.times(a, b, len(stages)), block.weights(a, b).abs().sum(-1).max() + block.w0.abs().max()
        m = self.samples.numbers(block.task.steps[a], block.row(stages[-1], 0))

        def by_samples(x: Tensor) -> Tensor:
            return (x if block.one else x.transpose(0, 1)).abs().reshape(b - a, -1, m).amax((0, 2))

        def noise(bend: bool) -> Tensor:
            return by_samples(roughness(lambda x: block.evaluate(times, x), stages, slopes, bend)[-1] * weights)

        size = by_samples(moved)
        return bool(rounded(torch.ones_like(size, dtype=torch.bool), size, noise, still).all())

    def continued(self, block: BlockOfSteps, a: int, states: Tensor, slopes: Tensor) -> bool:
        """Whether each step has the solution that is continued from the step before, as single steps would have it.

        Two solutions of a stage have ``w_0 (f(b) - f(a)) = b - a``; a move along which the slope grows less met one.
        """
        before = block.state(a - 1)
        if before is None:
            return True
        count = states.shape[-2]
        earlier = torch.cat([before if block.one else before.unsqueeze(1), states[..., :-1, :]], -2)
        d = states - earlier
        there = block.evaluate(block.times(a, a + count, 1), earlier[None])[0]
        grown = block.w0[..., a : a + count, :] * (slopes - there)
        if bool((d.sign() * grown <= STAGE_GROWTH * d.abs()).all()):
            return True
        m = self.samples.numbers(block.task.steps[a], block.row(earlier, 0))
        d, grown = ((x if block.one else x.transpose(0, 1)).reshape(count, -1, m) for x in (d, grown))
        size = d.abs().amax(-1, keepdim=True)
        return not bool(((d / size) * (grown - STAGE_GROWTH * d) / size).sum(-1).gt(0).any())
