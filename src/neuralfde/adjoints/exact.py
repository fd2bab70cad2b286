"""The adjoint of the discrete scheme, exact by construction: with each step's graph made again, or kept."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..solve import loop
from ..solve.loop import Gradients, Record
from ..solve.plan import Coefficients, Plan, Run


class _Discrete:
    """What is differentiated is the scheme itself, step by step, so that the gradient is that of autograd."""

    exact = True

    def pull(
        self, plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """Gradients of everything from gradients of the outputs."""
        return loop.backward(plan, run, record, c, z0, grads)


@dataclass(frozen=True)
class Exact(_Discrete):
    """The adjoint of the discrete scheme; each step's graph is made again when the backward pass reaches it.

    Memory: one step's graph and N rows, or less, as the history and the storage have it.
    """

    stores_graph = False


@dataclass(frozen=True)
class Direct(_Discrete):
    """The exact gradient from graphs kept since the forward pass, with memory for N graphs of ``func``."""

    stores_graph = True
