"""What a solve needs to know, frozen: everything but the tensors that get gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..field import Field
from ..history import History
from ..schemes import Scheme
from ..storage import Storage

_T = TypeVar("_T")


class Coefficients(NamedTuple):
    """The numbers of the scheme in the dtype of the state; see :class:`neuralfde.tableaux.Kernel`.

    ``dense`` holds the weights of the slopes at output times between nodes, (times, steps + 1, groups). Where ``base``
    is given, the initial values are a stack (initials, groups, width), and the rows of ``base`` beyond the last step
    belong to those output times: (initials, steps + 1 + times, groups).
    """

    weights: Tensor
    local: Tensor
    start: Tensor | None = None
    dense: Tensor | None = None
    base: Tensor | None = None

    def local_at(self, n: int) -> Tensor:
        """The weight (groups,) of the slope of step ``n`` in its own row."""
        return self.local if self.local.ndim == 1 else self.local[n]

    def lift(self, initial: Tensor, rows: int | slice) -> Tensor:
        """What the initial values contribute to these rows: ``Σ_i base_{i,n} z_0^{(i)}``; or just ``z_0``."""
        if self.base is None:
            return initial
        if isinstance(rows, int):
            return torch.einsum("ig,igm->gm", self.base[:, rows], initial)
        return torch.einsum("ing,igm->ngm", self.base[:, rows], initial)

    def cast(self, like: Tensor) -> Coefficients:
        """All of it in the dtype and on the device of ``like``, without gradients; numbers that get none are so."""
        return Coefficients(*[c if c is None or not c.requires_grad else c.detach().to(like) for c in self])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plan:
    """One solve: the right-hand side, the scheme and how its history and its rows are kept.

    Attributes:
        nodes: the grid points at which the state is returned, ascending.
        first: the first slope that enters the history.
        train: whether a backward pass may follow.
        weigh: whether it needs gradients of the coefficients, that is of the order.
        leaves: the tensors ``func`` depends on: parameters, then the tensors among ``args``, cut off from their graphs.
        known: what is added to the history sums of each row in place of the initial row, (steps + 1, sums, groups,
            width): the past of a resumed solve.
        slopes: where the slopes are to be left, for a solve that goes on from here.
        graphs: whether steps are replayed as CUDA graphs: True, False or "auto".
        backward_weights: lag weights of the reverse equation where they are not the forward ones (paper).
        tables: what follows from the numbers of the scheme alone; a solve with the same numbers finds it again.
    """

    field: Field
    scheme: Scheme
    history: History
    storage: Storage
    steps: int
    step: float
    nodes: tuple[int, ...]
    first: int
    train: bool
    weigh: bool
    callback: Callable[[int, int], None] | None = None
    check_finite: bool = True
    backward_weights: Tensor | None = None
    leaves: tuple[Tensor, ...] = ()
    graphs: bool | str = False
    known: Tensor | None = None
    slopes: list[Tensor] | None = None
    tally: dict[str, int] = dataclasses.field(default_factory=dict)
    tables: dict[Hashable, Any] = dataclasses.field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The table of this name, made where it is not there yet; nobody writes to it."""
        if key not in self.tables:
            self.tables[key] = make()
        found: _T = self.tables[key]
        return found

    def needs_slope(self, n: int, dense: bool) -> bool:
        """Whether ``v_n`` is used by any later row, by the stage itself or by output between nodes."""
        if n < self.first:
            return False
        return n < self.steps or self.scheme.implicit or (dense and self.scheme.uses_next_slope)


#: How many tensors a solve passes before the initial values.
COEFFICIENTS = len(Coefficients._fields)


def coefficients_from(tensors: tuple[Tensor | None, ...]) -> Coefficients:
    """The inverse of passing coefficients one by one through an autograd Function."""
    return Coefficients(*tensors)  # type: ignore[arg-type]
