"""The same gradient from kept graphs: the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..solve import loop
from ..solve.loop import Gradients, Record
from ..solve.plan import Coefficients, Plan, Run


@dataclass(frozen=True)
class Direct:
    """The exact gradient from graphs kept since the forward pass, with memory for N graphs of ``func``."""

    stores_graph = True

    def pull(
        self, plan: Plan, run: Run, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Gradients:
        """See :class:`~neuralfde.solve.function.Adjoint`."""
        return loop.backward(plan, run, record, c, z0, grads)
