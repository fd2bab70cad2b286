"""What changes in the course of a training: the learning rate and the solver's step, over the share that is done."""

from __future__ import annotations

import math

from neuralfde.errors import InputError

SCHEDULES = ("one-cycle", "cosine", "linear", "constant")


def learning_rate(schedule: str, peak: float, warmup: float, share: float, floor: float = 0.0) -> float:
    """The rate after a share of the training: a linear rise, then a cosine or a line to ``floor`` times the peak.

    One-cycle starts at a 25th. A line leaves more for the end than a cosine, where the solver's step is the fine one.
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


def stages(coarse: str, fine: float) -> list[tuple[float, float]]:
    """The solver's steps in their order, each with the share of the training at which it ends.

    ``coarse`` reads ``step:share,step:share``: ``2:0.4,0.5:0.8`` is h=2 up to 40 % of the training, h=0.5 up to 80 %,
    then the fine step.
    """
    found: list[tuple[float, float]] = []
    for part in coarse.split(",") if coarse else ():
        try:
            step, share = (float(x) for x in part.split(":"))
        except ValueError:
            raise InputError(f"coarse={coarse!r} is not of the form step:share,step:share.") from None
        if not (found[-1][1] if found else 0.0) < share < 1:
            raise InputError(f"coarse={coarse!r}: the shares must rise and stay below 1.")
        found.append((step, share))
    return [*found, (fine, 1.0)]


def solver_step(coarse: str, fine: float, share: float) -> float:
    """The solver's step after a share of the training; see :func:`stages`."""
    return next((step for step, end in stages(coarse, fine) if share < end), fine)
