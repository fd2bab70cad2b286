"""What the paper's adjoint requires, and the weights of its backward equation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..base.caches import to_device
from ..base.grid import Request
from ..base.structure import Structure
from ..errors import InputError
from ..history import History
from ..orders import Caputo, Operator
from ..weights import uniform


def refuse_paper(operator: Operator, known: Mapping[str, Tensor], wanted: Request, more: bool) -> None:
    """Raise if it is not defined for this solve; ``more``: there is a velocity, a past or a horizon."""
    if any(x.requires_grad for x in known.values()) and torch.is_grad_enabled():
        raise InputError(
            "adjoint='paper' has no gradient for the order. Use adjoint='exact' to learn it, or pass order.detach()."
        )
    if len(wanted.between):
        raise InputError(
            "adjoint='paper' is defined on the grid only, but t has times between grid points "
            f"(step {wanted.grid.step:g}). Use adjoint='exact', or a step that meets every time."
        )
    if not isinstance(operator, Caputo) or more or not wanted.grid.uniform:
        raise InputError(
            "adjoint='paper' is defined for a Caputo derivative of order up to 1 on a uniform grid, without horizon=, "
            "velocity= and past=. Use adjoint='exact'."
        )


def paper_weights(structure: Structure, wanted: Request, order: Tensor, history: History) -> Tensor:
    """The weights of its backward equation."""
    weights = uniform.rectangle(order.detach(), wanted.grid.step, wanted.grid.steps)
    like = torch.empty(0, dtype=structure.dtype, device=structure.device)
    return to_device(history.tabulate(weights[None]), like)
