"""The adjoint of the discrete scheme: exact by construction, for every scheme and every history."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..solve import loop
from ..solve.loop import Gradients, Record
from ..solve.plan import Coefficients, Plan, Run


@dataclass(frozen=True)
class Exact:
    """The adjoint of the discrete scheme; each step's graph is made again when the backward pass reaches it.

    Memory: one step's graph and N rows, or less, as the history and the storage have it.
    """

    stores_graph = False

    def pull(
        self, plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """See :class:`~neuralfde.solve.function.Adjoint`."""
        return loop.backward(plan, run, record, c, z0, grads)
