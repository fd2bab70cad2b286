"""Mean and spread over all trajectories of a parameter that is estimated for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .intervals import student


@dataclass(frozen=True)
class Population:
    """A parameter with one value per trajectory, by the method of moments (DerSimonian and Laird 1986).

    Attributes:
        mean: the mean of the population, with its 95 % ``interval``.
        spread: the standard deviation between trajectories, corrected for the noise of the single estimates.
        shrunken: the estimate of each trajectory, shrunk towards the mean according to its uncertainty.
    """

    mean: float
    interval: tuple[float, float]
    spread: float
    shrunken: list[float]


def population(estimates: Tensor, variances: Tensor) -> Population:
    """From estimates and their variances, (trajectories,) each; those that the data do not determine are left out."""
    known = variances.isfinite() & (variances >= 0)
    count = int(known.sum())
    if count < 2:
        raise InputError("a population needs at least two trajectories whose parameter the data determine.")
    x, v = estimates[known], variances[known].clamp(min=1e-300)
    weights = 1 / v
    centre = (weights * x).sum() / weights.sum()
    excess = (weights * (x - centre).square()).sum() - (count - 1)
    between = (excess / (weights.sum() - weights.square().sum() / weights.sum())).clamp(min=0)
    weights = 1 / (v + between)
    mean = float((weights * x).sum() / weights.sum())
    half = student(count - 1) * float(weights.sum()) ** -0.5
    share = between / (between + torch.where(known, variances, torch.inf))
    drawn = mean + torch.where(known, share * (estimates - mean), 0.0)
    return Population(mean, (mean - half, mean + half), float(between.sqrt()), drawn.tolist())
