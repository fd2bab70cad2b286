"""How a fit is run: which optimiser, which data it sees, and when it stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..base.checks import real
from ..errors import InputError, InputTypeError, nearest
from .data import Data
from .optimisers import OPTIMISERS, STOPPED, Optimiser, Path, Progress
from .problem import UNSOLVABLE, Problem
from .steps import until

#: Up to this many unknowns the exact Jacobian is cheap: Levenberg-Marquardt is the default and intervals are given.
SMALL = 60

Callback = Callable[[Progress], bool | None]


def search(
    problem: Problem, guesses: Sequence[Tensor], optimiser: str | Optimiser, stages: Sequence[float],
    validation: float, seed: int, patience: int | None, callback: Callback | None, resume: dict[str, Any] | None,
) -> Path:  # fmt: skip
    """From the first guesses to the best minimum: early data first where stages are asked for, then all of them."""
    chosen = _optimiser(optimiser, problem.unknowns.size)
    if not isinstance(resume, Mapping | None):
        got = type(resume).__name__
        raise InputTypeError(f"resume must be the .state of a Progress, which callback= gets; got {got}.")
    trained, held = hold_out(problem, validation, seed)
    judge, best, failure, ended = held or trained, None, None, False

    def told(progress: Progress) -> bool:
        nonlocal ended
        ended = callback is not None and bool(callback(progress))
        return ended

    early: list[tuple[Problem, Problem | None]] = [(part, None) for part in _early(trained, stages)]
    for flat in guesses if resume is None else guesses[:1]:
        try:
            for part, check in [*(early if resume is None else []), (trained, held)]:
                path = _minimise(part, check, chosen, flat, patience, told, resume)
                flat = problem.unknowns.to_value(path.free)
                if ended:  # by the callback: no further stage, and no further guess
                    if part is not trained:
                        path.converged, path.message = False, STOPPED
                    break
            with torch.no_grad():
                loss = float(judge.loss(problem.unknowns.to_value(path.free))) if len(guesses) > 1 else 0.0
        except UNSOLVABLE as error:  # the solution blows up from this guess; another may do
            failure = error
            continue
        if best is None or loss < best[0]:
            best = (loss, path)
        if ended:
            break
    if best is None:
        assert failure is not None
        raise failure
    return best[1]


def _optimiser(given: str | Optimiser, size: int) -> Optimiser:
    if given == "auto":
        return OPTIMISERS["lm" if size <= SMALL else "adam"]
    if isinstance(given, str):
        if given not in OPTIMISERS:
            raise InputError(f"unknown optimiser {given!r}. {nearest(given, [*OPTIMISERS, 'auto'])}")
        return OPTIMISERS[given]
    check_optimiser(given)
    return given


def check_optimiser(given: Any) -> None:
    """Raise unless this is an optimiser."""
    if not callable(getattr(given, "minimise", None)) or isinstance(given, type):
        got = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InputTypeError(f"optimiser must be a name or an object such as Adam(), got {got}.")


def hold_out(problem: Problem, fraction: float, seed: int) -> tuple[Problem, Problem | None]:
    """What estimates are made from, and what decides when to stop."""
    if not 0 <= real("validation", fraction, hint="It is a fraction in [0, 1).") < 1:
        raise InputError(f"validation={fraction:g} must be a fraction in [0, 1).")
    if fraction == 0:
        return problem, None
    generator = torch.Generator().manual_seed(seed)
    back = torch.rand(problem.data.scale.shape, generator=generator, dtype=torch.float64) < fraction
    kept = replace(problem.data, scale=torch.where(back, 0.0, problem.data.scale))
    held = replace(problem.data, scale=torch.where(back, problem.data.scale, 0.0))
    if not kept.count or not held.count:
        raise InputError(f"validation={fraction:g} leaves nothing to train on or nothing to validate with.")
    return replace(problem, data=kept), replace(problem, data=held)


def _early(problem: Problem, stages: Sequence[float]) -> list[Problem]:
    """The problem cut off after each fraction of the time span but the whole."""
    if not isinstance(stages, list | tuple):
        raise InputTypeError(f"stages={stages!r:.60} must be a list of fractions, such as (0.25, 0.5, 1.0).")
    stages = [real("stages", fraction) for fraction in stages]
    if not stages or list(stages) != sorted(stages) or not stages[0] > 0 or stages[-1] != 1:
        raise InputError(f"stages={tuple(stages)} must be increasing fractions that end with 1.")
    data, found = problem.data, []
    start, span = float(data.times[0]), float(data.times[-1] - data.times[0])
    for fraction in stages[:-1]:
        count = int((data.times <= start + fraction * span * (1 + 1e-9)).sum())
        if count < 2:
            continue
        cut = Data(data.times[:count], data.values[:count], data.scale[:count], data.calibrated)
        if cut.count:
            options = until(problem.options, data.times, float(cut.times[-1]))
            found.append(replace(problem, data=cut, options=options))
    return found


def _minimise(
    problem: Problem, held: Problem | None, optimiser: Optimiser, flat: Tensor, patience: int | None,
    callback: Callback, resume: dict[str, Any] | None,
) -> Path:  # fmt: skip
    best = (float("inf"), flat, 0)

    def watch(k: int, total: int, free: Tensor, loss: float, state: dict[str, Any]) -> bool:
        nonlocal best
        held_loss = None
        values = problem.unknowns.to_value(free)
        if held is not None:
            with torch.no_grad():
                held_loss = float(held.loss(values))
        judged = loss if held_loss is None else held_loss
        if judged < best[0] * (1 - 1e-6):
            best = (judged, free.clone(), k)
        stop = patience is not None and k - best[2] >= patience
        return bool(callback(Progress(k, total, loss, held_loss, values, state))) or stop

    path = optimiser.minimise(problem, problem.unknowns.to_free(flat), watch, resume)
    if held is not None and best[0] < float("inf"):
        path.free = best[1]
    return path
