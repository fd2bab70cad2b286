"""The adjoint of the paper, kept because its experiments were made with it. It is biased."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..history import precise
from ..loop import sweep
from .again import Replay
from .forward import Record
from .plan import COEFFICIENTS, Coefficients, Plan
from .totals import Found


@dataclass(frozen=True)
class Paper:
    """``λ_n = λ(T) + Σ_{j>n} w_{j-n} λ_j ∂f/∂z_j`` and ``θ̄ = h Σ_{j≥1} λ_j ∂f/∂θ_j`` (eqs. back_pred1, back_pred2).

    An approximation: it starts from ``λ(T) = ∂L/∂z(T)``, while the multiplier of the continuous problem is singular
    like ``(T-t)^{β-1}``. Refining the step does not remove the error. The factor h is missing in the printed
    eq. back_pred2. The reverse equation uses the rectangle rule, whatever scheme the forward pass uses.
    """

    stores_graph = False

    def pull(
        self, plan: Plan, record: Record, c: Coefficients, z0: Tensor, grads: tuple[Tensor, Tensor | None]
    ) -> Found:
        """See :class:`Adjoint`."""
        assert record.tape is not None
        assert plan.backward_weights is not None
        spare = record.tape.engine if isinstance(record.tape, Replay) else None
        engine = plan.history.reverse(plan.backward_weights.to(z0), plan.steps, z0, spare, False)
        node = {n: k for k, n in enumerate(plan.nodes)}
        wanted = [x for x in plan.leaves if x.requires_grad]
        totals = [torch.zeros_like(x) for x in wanted]
        terminal = torch.zeros_like(z0)  # the sum of ∂L/∂z at this node and later ones
        multiplier = terminal

        def visit(n: int, past: Tensor | None) -> tuple[Tensor | None, None]:
            nonlocal multiplier
            if n in node:
                terminal.add_(grads[0][node[n]])
            multiplier = terminal.clone() if past is None else terminal + past[0]
            if plan.callback is not None:
                plan.callback(plan.steps - n, plan.steps)
            if n == 0:
                return None, None
            assert record.tape is not None
            z, _ = plan.scheme.evaluate(plan.field, n, record.tape.read(n), c.local, slope=False)
            z = z.detach().requires_grad_()
            with torch.enable_grad():
                v = plan.field(n, z)
            if not v.requires_grad:
                return torch.zeros_like(z)[None], None
            found = torch.autograd.grad(v, [z, *wanted], multiplier, allow_unused=True)
            for t, g in zip(totals, found[1:], strict=True):
                if g is not None:
                    t.add_(g, alpha=plan.step)
            return (torch.zeros_like(z) if found[0] is None else found[0])[None], None

        sweep(precise(engine, z0), range(plan.steps, -1, -1), visit)
        supply = iter(totals)
        placed = tuple(next(supply) if x.requires_grad else None for x in plan.leaves)
        return Found((None,) * COEFFICIENTS, multiplier, placed)
