"""Gradients of what ``func`` depends on, a block of steps at a time.

``θ̄ = Σ_n (∂f/∂θ)ᵀ v̄_n`` does not feed back into the sweep. Where ``func`` can be vectorised over time, the steps of a
block need products with respect to the state alone, and one more product, for all of them at once, gives their part of
``θ̄``: fewer and larger kernels. The first block shows whether ``func`` means the same when it is vectorised.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from .plan import Plan
from .totals import Totals

log = logging.getLogger("neuralfde")

#: Numbers in a state up to which steps are gathered: the graph of a block is that of one step, times the block.
MOST_NUMBERS = 1 << 14
# Steps from which on it pays: the first block is taken step by step.
_FEWEST = 256


class Gathered:
    """Whether steps are gathered (``on``), and how."""

    def __init__(self, plan: Plan, total: Totals) -> None:
        self.plan, self.total = plan, total
        self.on = False
        small = total.z0.numel() <= MOST_NUMBERS and plan.steps >= _FEWEST
        self.undecided = small and bool(total.wanted) and not plan.field.noise.active

    def decide(self, times: Tensor, states: Tensor, slopes: Tensor) -> None:
        """Gather from now on if ``func``, vectorised over these states, gives the slopes it gave step by step."""
        self.undecided = False
        try:
            with torch.no_grad():
                found = self.plan.field.batch(times, states)
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            log.debug("parameter gradients step by step, since func cannot be vectorised over time: %s", reason)
            return
        self.on = same(found, slopes)

    def pull(self, times: Tensor, states: Tensor, bars: Tensor) -> None:
        """Add what the steps with these states and gradients of their slopes, (steps, …) each, give to the totals."""
        with torch.enable_grad():
            v = self.plan.field.batch(times, states)
        if v.requires_grad:
            self.total.add_tensors(torch.autograd.grad(v, self.total.wanted, bars.reshape(v.shape), allow_unused=True))


def same(found: Tensor, slopes: Tensor) -> bool:
    """Whether vectorised slopes are those of single steps, up to rounding that may have grown."""
    tol = 1e-4 if slopes.dtype == torch.float32 else 1e-9
    return found.shape == slopes.shape and largest(found - slopes) <= tol * largest(slopes)


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(torch.linalg.vector_norm(x, math.inf))
