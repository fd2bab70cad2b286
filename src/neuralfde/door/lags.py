"""Delays as a user gives them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..adjoints import Paper
from ..base.checks import number
from ..base.structure import Structure
from ..base.torch_transforms import refuse_mapped
from ..errors import InputError, InputTypeError
from ..solve.delays import Delays
from ..solve.steppers import Single
from .observed import Observed
from .validation import Options, Problem


def read_lags(given: Options, problem: Problem, more: bool) -> Delays:
    """The delays, or an error that says what to change; ``more``: rows are to be kept for later."""
    lags, single = lags_of(given.lags)
    grid, shortest = problem.request.grid, min(float(x.detach()) for x in lags)
    longest = grid.extremes[1]
    if shortest < longest * (1 - 1e-9):
        raise InputError(
            f"a lag of {shortest:g} is shorter than the longest step, {longest:g}: the state of then is not known when "
            f"the step is taken. Use steps={math.ceil(float(grid.elapsed[-1]) / shortest)} or more."
        )
    _refuse(given, problem, more)
    times = grid.elapsed if grid.moving is None else grid.moving
    return delays_of(lags, single, problem.structure, problem.observed, times)


def lags_of(given: Any) -> tuple[tuple[Tensor, ...], bool]:
    """The lags, 0-d, float64, and whether there is one that is not in a list."""
    single = isinstance(given, int | float) or (isinstance(given, Tensor) and given.ndim == 0)
    listed = isinstance(given, list | tuple) or (isinstance(given, Tensor) and given.ndim == 1)
    if not (single or listed) or (listed and len(given) == 0):
        raise InputTypeError(
            "lags= is a positive number, or several: a list, or a 1-D tensor. One that depends on the state is not "
            "known before the step is taken."
        )
    lags = []
    for lag in [given] if single else list(given):
        number("lags", lag, "")
        lags.append(torch.as_tensor(lag, dtype=torch.float64, device="cpu").reshape(()))
    refuse_mapped("lags=", *lags)
    if not all(0 < float(x.detach()) < math.inf for x in lags):
        raise InputError(f"lags= must be positive and finite, got {[float(x.detach()) for x in lags]}.")
    return tuple(lags), single


def delays_of(
    lags: tuple[Tensor, ...], single: bool, structure: Structure, observed: Observed | None, times: Tensor
) -> Delays:
    """What ``func`` gets at these times; before them, what was observed."""
    like = torch.empty(0, dtype=structure.dtype, device=structure.device)
    back = torch.zeros(0, dtype=torch.float64) if observed is None else -observed.back[:-1]
    before = like.reshape(0, 1, 1) if observed is None else observed.rows[:-1]
    return Delays(lags, single, structure, times, back, before)


def _refuse(given: Options, problem: Problem, more: bool) -> None:
    """Raise where a solve that keeps the graph of every step is no answer to what is asked."""
    if given.horizon is not None or more or isinstance(problem.adjoint, Paper):
        raise InputError(
            "lags= need adjoint='exact' or 'direct', and no horizon=, resume=, solve as past= or "
            "estimate_error='embedded'."
        )
    if problem.storage.recomputes or given.storage == "host" or given.stepper not in ("auto", "single", Single()):
        raise InputError(
            "lags= keep the graph of every step, taken one after the other: use storage='device' and stepper='single'."
        )
