"""Trajectories measured at different times: each at its own, in place of all at the union of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Data


@dataclass(frozen=True)
class OwnTimes:
    """Times (B, K), and values and scales (K, B, m) there; what fills a row up is the last time, with scale zero.

    So every part of the trajectories is solved on the grid of all of them.
    """

    times: Tensor
    values: Tensor
    scale: Tensor

    def of(self, rows: Tensor) -> OwnTimes:
        """Those of some trajectories."""
        return OwnTimes(self.times[rows], self.values[:, rows], self.scale[:, rows])


def own_times(data: Data) -> OwnTimes | None:
    """None where trajectories share most of their times."""
    seen = data.seen.any(-1).T.clone()
    seen[:, 0] = True  # the initial time
    counts = seen.sum(1)
    most = int(counts.max()) + 1
    if 2 * most > len(data.times):
        return None
    where = seen.int().argsort(dim=1, descending=True, stable=True)[:, :most]  # those first, in the order of time
    there = torch.arange(most) < counts[:, None]
    where = torch.where(there, where, len(data.times) - 1)
    rows = torch.arange(len(where))[:, None]
    scale = torch.where(there[..., None], data.scale.transpose(0, 1)[rows, where], 0.0)
    values = data.values.transpose(0, 1)[rows, where]
    return OwnTimes(data.times[where], values.transpose(0, 1), scale.transpose(0, 1))
