"""What changes in the course of a training, by the share that is done: the learning rate, and values in stages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neuralfde.errors import InputError

SCHEDULES = ("one-cycle", "cosine", "linear", "constant")


def learning_rate(schedule: str, peak: float, warmup: float, share: float, floor: float = 0.0) -> float:
    """The rate after a share of the training: a linear rise, then a cosine or a line to ``floor`` times the peak.

    One-cycle starts at a 25th. A line leaves higher rates for the end than a cosine, where the solver's step is small.
    """
    if schedule not in SCHEDULES:
        raise InputError(f"schedule={schedule!r} is none of {', '.join(SCHEDULES)}.")
    if share < warmup:
        low = 1 / 25 if schedule == "one-cycle" else 0.0
        return peak * (low + (1 - low) * share / warmup)
    if schedule == "constant":
        return peak
    done = min(1.0, (share - warmup) / (1 - warmup))
    fallen = 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return peak * (floor + (1 - floor) * fallen)


def stages(option: str, early: str, last: Any, read: Callable[[str], Any] = float) -> list[tuple[Any, float]]:
    """The values one after the other, each with the share of the training at which it ends.

    ``early`` reads ``value:share,value:share``: of steps, ``2:0.4,0.5:0.8`` is h=2 up to 40 % of the training, h=0.5
    up to 80 %, then the last one.
    """
    found: list[tuple[Any, float]] = []
    for part in early.split(",") if early else ():
        try:
            value, end = part.split(":")
            stage = read(value), float(end)
        except ValueError:
            raise InputError(f"{option}={early!r} is not of the form value:share,value:share.") from None
        if not (found[-1][1] if found else 0.0) < stage[1] < 1:
            raise InputError(f"{option}={early!r}: the shares must rise and stay below 1.")
        found.append(stage)
    return [*found, (last, 1.0)]


def current(stages: list[tuple[Any, float]], share: float) -> Any:
    """The value after a share of the training."""
    return next((value for value, end in stages if share < end), stages[-1][0])
