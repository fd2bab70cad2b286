"""What changes in the course of a training: the learning rate and the solver's step."""

from __future__ import annotations

import math

from neuralfde.errors import InputError

SCHEDULES = ("one-cycle", "cosine", "constant")


def learning_rate(schedule: str, peak: float, warmup: float, share: float) -> float:
    """The rate after a share of all steps: a linear rise, then a cosine to zero (one-cycle starts at a 25th)."""
    if schedule not in SCHEDULES:
        raise InputError(f"schedule={schedule!r} is none of {', '.join(SCHEDULES)}.")
    if share < warmup:
        low = 1 / 25 if schedule == "one-cycle" else 0.0
        return peak * (low + (1 - low) * share / warmup)
    if schedule == "constant":
        return peak
    return peak * 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def solver_step(coarse: str, fine: float, epoch: int) -> float:
    """The solver's step in an epoch: coarse ones first, as ``step:epochs,step:epochs`` tells, then the fine one."""
    for part in coarse.split(",") if coarse else ():
        try:
            step, epochs = (float(x) for x in part.split(":"))
        except ValueError:
            raise InputError(f"coarse={coarse!r} is not of the form step:epochs,step:epochs.") from None
        if epoch < epochs:
            return step
        epoch -= int(epochs)
    return fine
