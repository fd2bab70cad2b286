"""Several first guesses: a search that ends in a local minimum from one may not from another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.checks import reals, whole
from ..errors import InputError, nearest
from .unknowns import Bound, Unknowns

Starts = int | Sequence[Mapping[str, Any]]


def all_starts(unknowns: Unknowns, flat: Tensor, starts: Starts, seed: int) -> list[Tensor]:
    """The first guess, and those that were asked for beside it: a number of random ones, or given ones."""
    if not (isinstance(starts, list | tuple) and all(isinstance(start, Mapping) for start in starts)):
        count = whole("starts", starts, hint="It is the number of first guesses, or a list of dictionaries.")
        generator = torch.Generator().manual_seed(seed)
        return [flat, *(_random(unknowns, flat, generator) for _ in range(count - 1))]
    return [flat, *(_given(unknowns, flat, start) for start in starts)]


def _random(unknowns: Unknowns, flat: Tensor, generator: torch.Generator) -> Tensor:
    parts = {n: _around(v, unknowns.bounds[n], generator) for n, v in unknowns.split(flat).items()}
    return unknowns.pack(parts)


def _around(value: Tensor, bound: Bound, generator: torch.Generator) -> Tensor:
    """Anywhere between two bounds; otherwise at another distance from the bound, or from zero, by a factor like e."""
    if math.isfinite(bound.low) and math.isfinite(bound.high):
        share = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        return bound.low + (bound.high - bound.low) * (0.01 + 0.98 * share)
    origin = bound.low if math.isfinite(bound.low) else bound.high if math.isfinite(bound.high) else 0.0
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return torch.where(value == origin, noise, origin + (value - origin) * noise.exp())


def _given(unknowns: Unknowns, flat: Tensor, start: Mapping[str, Any]) -> Tensor:
    values = unknowns.split(flat)
    for name, given in start.items():
        if name not in values:
            raise InputError(f"starts= names {name!r}, which is not an unknown of this fit. {nearest(name, values)}")
        value, shape = reals(f"starts[{name!r}]", given).double(), values[name].shape
        if value.ndim > 0 and value.shape != shape:
            raise InputError(
                f"a start of {name!r} has shape {tuple(value.shape)}; it must be {tuple(shape)}, or a number."
            )
        value = value.expand(shape)
        if not unknowns.bounds[name].inside(value):
            raise InputError(f"a start of {name!r}, {value.tolist()}, is not strictly inside its bounds.")
        values = {**values, name: value}
    return unknowns.pack(values)
