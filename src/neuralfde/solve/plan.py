"""What was requested of a solve (:class:`Plan`, frozen), its weights (:class:`Coefficients`), what happened
(:class:`Run`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..history import History
from ..history.wrappers import Tables
from ..rhs.field import Called, Field
from ..rhs.repeated import Repeated
from ..schemes import Scheme, Stages
from ..storage import Storage
from .delays import Delays


class Coefficients(NamedTuple):
    """The weights of the scheme; see :class:`~neuralfde.weights.kernel.Kernel`.

    ``dense`` are the weights of the slopes at output times between grid points, (times, steps + 1, parts), where a part
    is a group, or one sample of a group. If ``base`` is given, the initial values are a stack (initials, groups,
    width), and ``base`` also has entries for those output times: (initials, steps + 1 + times, groups).
    """

    weights: Tensor
    local: Tensor
    start: Tensor | None = None
    dense: Tensor | None = None
    base: Tensor | None = None


#: The number of tensors that precede the initial values among the inputs of a solve.
COEFFICIENTS = len(Coefficients._fields)


@dataclass(frozen=True)
class Plan:
    """One solve: the right-hand side, the scheme, and how its history and its rows are kept.

    Attributes:
        nodes: the grid points at which the state is returned, ascending.
        first: the first slope that enters the history.
        train: whether a backward pass may follow.
        weigh: whether it needs gradients of the coefficients, from which that of the order is computed.
        leaves: the tensors ``func`` depends on: parameters, then the tensors among ``args``, detached.
        called: ``func`` as it is now, for the backward pass.
        stepper: how blocks of steps are taken; None for ``auto``.
        known: the contribution of the past of a resumed solve, in place of the initial row: (steps + 1, sums, groups,
            width).
        advice: a function that says what would take less memory, called when memory runs out.
        keep_slopes: whether the slopes are kept, to resume the solve or to estimate errors.
        backward_weights: lag weights of the backward equation if they differ from the forward ones (paper).
        order: the order of the equation, None if it is not a number; used in messages only.
        tables: weights inside a block, kept for later solves with the same weights, or None.
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
    stepper: Any = None
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
    """What happened in a solve: which stepper ran and why, how many bytes were held, what is kept for later.

    Attributes:
        vectorised: False once ``func`` turned out to give other values when it is vectorised over time.
        stages: the solver of implicit stages, with its factors.
        kernel: the steps as a kernel, or why there is none; None if it was not tried.
        repeated: the operations of ``func`` and of its products with Jacobians, recorded in the forward pass.
        instead: why another stepper than the requested one takes the steps.
        start: the largest absolute value of the initial state; 0 if it is not known.
    """

    stepper: str = ""
    why: str = ""
    history_bytes: int = 0
    slopes: list[Tensor] = field(default_factory=list)
    vectorised: bool = True
    stages: Stages | None = None
    kernel: Any = None
    repeated: Repeated | None = None
    instead: str = ""
    start: float = 0.0
