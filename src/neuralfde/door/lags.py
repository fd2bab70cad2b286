"""Reading and checking the delays that a user gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..adjoints import Paper
from ..base.policy import JUMP_LENGTH
from ..base.structure import Structure
from ..errors import InputError
from ..solve.delays import Delays, lags_of
from ..solve.steppers import Single
from .observed import Observed
from .validation import Options, Problem


def read_lags(given: Options, problem: Problem, more: bool) -> Delays:
    """The delays, or an error that says what to change; ``more``: all rows are to be kept, which is refused."""
    lags, single = lags_of(given.lags)
    grid, shortest = problem.request.grid, min(float(x.detach()) for x in lags)
    longest = grid.extremes[1]
    if shortest < longest * (1 - 1e-9):
        raise InputError(
            f"a lag of {shortest:g} is shorter than the longest step, {longest:g}: the delayed state is not known yet "
            f"when the step is taken. Use steps={math.ceil(float(grid.elapsed[-1]) / shortest)} or more."
        )
    _refuse(given, problem, more)
    times = grid.elapsed if grid.moving is None else grid.moving
    return delays_of(lags, single, problem.structure, problem.observed, times, float(grid.elapsed[-1]))


def delays_of(
    lags: tuple[Tensor, ...],
    single: bool,
    structure: Structure,
    observed: Observed | None,
    times: Tensor,
    horizon: float,
) -> Delays:
    """The delays on a grid with these ``times``, which ends at ``horizon``; before it, the state is as observed."""
    like = torch.empty(0, dtype=structure.dtype, device=structure.device)
    back = torch.zeros(0, dtype=torch.float64) if observed is None else -observed.back[:-1]
    before = like.reshape(0, 1, 1) if observed is None else observed.rows[:-1]
    return Delays(lags, single, structure, times, back, before, jump=1.5 * JUMP_LENGTH * horizon)


def _refuse(given: Options, problem: Problem, more: bool) -> None:
    """Raise if an option does not work with delays, for which the graph of every step is kept."""
    if given.horizon is not None or more or isinstance(problem.adjoint, Paper):
        raise InputError(
            "lags= need adjoint='exact' or 'direct', and allow no horizon=, resume=, estimate_error='embedded' or "
            "resumed solve as past=."
        )
    if problem.storage.recomputes or given.storage == "host" or given.stepper not in ("auto", "single", Single()):
        raise InputError(
            "lags= keep the graph of every step, taken one after the other: use storage='device' and stepper='single'."
        )
