"""Batches of time series with different times and lengths, missing values and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..base.checks import reals
from ..errors import InputError, InputTypeError


class Series(NamedTuple):
    """A batch: times (batch, time), values (batch, time, variables), inputs (batch, time, inputs) or None.

    Shorter series are padded with NaN; NaN also marks missing values.
    """

    times: Tensor
    values: Tensor
    inputs: Tensor | None = None

    @property
    def observed(self) -> Tensor:
        """A mask of the values that are not missing, (batch, time, variables)."""
        return ~self.values.isnan()

    @property
    def elapsed(self) -> Tensor:
        """The time since the beginning of each series, (batch, time); NaN after its end."""
        return self.times - self.times[:, :1]

    def to(self, *where: Any, **options: Any) -> Series:
        """Move values and inputs to a device or dtype; times keep theirs."""
        moved = (None if x is None else x.to(*where, **options) for x in (self.values, self.inputs))
        return Series(self.times, *moved)  # type: ignore[arg-type]


def collate(items: Sequence[Any]) -> Series:
    """Combine series into one batch, for ``DataLoader(series, collate_fn=collate)``.

    Each series is a pair (times, values) or a triple (times, values, inputs): times (time,) in ascending order, values
    (time,) or (time, variables) with NaN for missing ones, inputs in the same layout but known at every time. Two or
    three nested tensors work too.
    """
    return items if isinstance(items, Series) else exact(items).to(torch.get_default_dtype())


def read(series: Any) -> Series:
    """Series as a model takes them: a list of them in float64, or a batch, which may have been made by hand."""
    if not isinstance(series, Series):
        return exact(series)
    times = series.times
    for x, axes in ((times, 2), (series.values, 3), (series.inputs, 3)):
        if x is not None and not (isinstance(x, Tensor) and x.ndim == axes and x.shape[:2] == times.shape[:2]):
            raise InputError(
                "a Series has times (batch, time), values (batch, time, variables) and inputs (batch, time, inputs) or "
                "None. Make it of a list of series: collate(series)."
            )
    gone, late = times.isnan(), times.nan_to_num(torch.inf)
    if bool(gone[:, 0].any() | times.isinf().any() | (late[:, 1:] < late[:, :-1]).any()):
        raise InputError("times of a Series must be finite and must not decrease; NaN fills the ends of shorter rows.")
    return series


def exact(items: Sequence[Any]) -> Series:
    """As ``collate``, in float64."""
    if isinstance(items, list | tuple) and items and all(isinstance(x, Tensor) and x.is_nested for x in items):
        items = list(zip(*(x.unbind() for x in items), strict=True))
    if not isinstance(items, list | tuple) or not items:
        raise InputTypeError("series are a list of pairs (times, values), or of triples with inputs.")
    read = [_read(k, item) for k, item in enumerate(items)]
    for name, which in (("values", 1), ("inputs", 2)):
        widths = {None if one[which] is None else one[which].shape[1] for one in read}  # type: ignore[union-attr]
        if len(widths) > 1:
            raise InputError(f"series have different numbers of {name}: {sorted(map(str, widths))}.")
    times, values = (pad_sequence([one[k] for one in read], True, torch.nan) for k in (0, 1))  # type: ignore[misc]
    known = read[0][2] is not None
    inputs = pad_sequence([one[2] for one in read], True, torch.nan) if known else None  # type: ignore[misc]
    return Series(times, values, inputs)


def _read(k: int, item: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        raise InputTypeError(f"series {k} must be (times, values) or (times, values, inputs).")
    times = reals(f"times of series {k}", item[0]).double()
    if times.ndim != 1 or len(times) < 2 or not bool(times.isfinite().all()) or bool((times.diff() < 0).any()):
        raise InputError(f"times of series {k} must be at least two finite numbers in ascending order; sort them.")
    rows = []
    for name, given in zip(("values", "inputs"), item[1:], strict=False):
        found = reals(f"{name} of series {k}", given).double()
        found = found[:, None] if found.ndim == 1 else found
        if found.ndim != 2 or len(found) != len(times):
            raise InputError(f"{name} of series {k} have shape {tuple(found.shape)}, and there are {len(times)} times.")
        rows.append(found)
    if bool(rows[0].isinf().any()):
        raise InputError(f"values of series {k} contain infinity; mark missing values by NaN.")
    if len(rows) == 2 and not bool(rows[1].isfinite().all()):
        raise InputError(f"inputs of series {k} must be known at every time; fill the gaps, for example with the last.")
    return times, rows[0], rows[1] if len(rows) == 2 else None


def resampled(times: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """Values (batch, time, …) at ``times`` (batch, time), linear in between and constant beyond: (wanted, batch, …).

    NaN times at the end of a series are no knots.
    """
    knots = times.nan_to_num(torch.inf)
    last = (knots.isfinite().sum(1, keepdim=True) - 1).clamp(min=1)
    right = torch.searchsorted(knots, wanted.expand(len(times), -1).contiguous()).clamp(min=1).minimum(last)
    a, b = times.gather(1, right - 1), times.gather(1, right)
    share = ((wanted - a) / (b - a).clamp(min=torch.finfo(times.dtype).tiny)).clamp(0, 1)[..., None].to(values)
    rows = torch.arange(len(times), device=values.device)[:, None]
    right = right.to(values.device)
    return torch.lerp(values[rows, right - 1], values[rows, right], share).transpose(0, 1)
