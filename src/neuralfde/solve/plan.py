"""What a solve was asked for (:class:`Plan`, frozen), its numbers (:class:`Coefficients`), and what became of it
(:class:`Run`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..history import History
from ..history.wrappers import Tables
from ..rhs.field import Called, Field
from ..schemes import Scheme, Stages
from ..storage import Storage
from .delays import Delays


class Coefficients(NamedTuple):
    """The numbers of the scheme; see :class:`~neuralfde.weights.kernel.Kernel`.

    ``dense`` holds the weights of the slopes at output times between nodes, (times, steps + 1, parts): for each group,
    or for each sample of it. Where ``base`` is given, the initial values are a stack (initials, groups, width), and
    the rows of ``base`` beyond the last step belong to those output times: (initials, steps + 1 + times, groups).
    """

    weights: Tensor
    local: Tensor
    start: Tensor | None = None
    dense: Tensor | None = None
    base: Tensor | None = None


#: How many tensors a solve passes before the initial values.
COEFFICIENTS = len(Coefficients._fields)


@dataclass(frozen=True)
class Plan:
    """One solve: the right-hand side, the scheme and how its history and its rows are kept.

    Attributes:
        nodes: the grid points at which the state is returned, ascending.
        first: the first slope that enters the history.
        train: whether a backward pass may follow.
        weigh: whether it needs gradients of the coefficients, that is of the order.
        leaves: the tensors ``func`` depends on: parameters, then the tensors among ``args``, cut off from their graphs.
        called: ``func`` as it is now, for the backward pass.
        stepper: how blocks of steps are taken, or a name or ``"auto"``.
        known: the past of a resumed solve, in place of the initial row: (steps + 1, sums, groups, width).
        advice: what would take less memory, to be asked when there is none left.
        keep_slopes: whether the slopes are wanted afterwards, to go on from here or to estimate errors.
        backward_weights: lag weights of the reverse equation where they are not the forward ones (paper).
        order: the order of the equation, None if it is not a number; for advice alone.
        tables: weights inside a block that later solves with the same numbers will find again, or None.
        delays: which earlier states ``func`` gets, or None.
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
    stepper: Any = "auto"
    callback: Callable[[int, int], None] | None = None
    check_finite: bool = True
    backward_weights: Tensor | None = None
    leaves: tuple[Tensor, ...] = ()
    called: Called | None = None
    known: Tensor | None = None
    advice: Callable[[], str] | None = None
    keep_slopes: bool = False
    tables: Tables | None = None
    order: Tensor | None = None
    delays: Delays | None = None


@dataclass
class Run:
    """What became of a solve, as it goes: which stepper ran and why, what was held, what is kept for later.

    Attributes:
        vectorised: False once ``func`` was seen not to give the same values when it is vectorised over time.
        stages: what solves implicit stages, with the factors that it holds.
        kernel: the steps as a kernel, or why there is none; None: not tried.
        instead: why another stepper than the one asked for takes the steps.
    """

    stepper: str = ""
    why: str = ""
    history_bytes: int = 0
    slopes: list[Tensor] = field(default_factory=list)
    vectorised: bool = True
    stages: Stages | None = None
    kernel: Any = None
    instead: str = ""
