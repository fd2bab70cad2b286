"""What a history makes of the reference's weights."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from neuralfde import FFT, Exponentials, Full, Window
from neuralfde.history import History
from tests.reference import Weights
from tests.walking import walk


def remembered(weights: Weights, history: History) -> Tensor:
    """The matrix (sums, row, column, ...) of these weights under this history.

    Exact histories and windows are known; any other is asked what it makes of unit rows. How near that is to the true
    weights is held by the tests of the histories.
    """
    whole = weights.matrix
    if isinstance(history, Full | FFT) or (isinstance(history, Exponentials) and history.mesh is not None):
        return whole
    n = torch.arange(whole.shape[1])
    lag = (n[:, None] - n).reshape(len(n), len(n), *[1] * (whole.ndim - 3))
    if isinstance(history, Window):
        return torch.where(lag <= history.length, whole, 0.0)
    counted = (n >= weights.first).reshape(-1, *[1] * (whole.ndim - 3))
    given = torch.where(counted & (lag > 0), weights.lagged, 0.0)
    return whole - given + torch.where(counted, _applied(weights.lags, history), 0.0)


def _applied(lags: Tensor, history: History) -> Tensor:
    """Lag weights (sums, steps + 1, ...) as the history's memory applies them, differentiable in them.

    A memory is linear in the numbers it is opened with: what it does with each of them alone says everything.
    """
    steps = lags.shape[1] - 1
    table = history.tabulate(lags.flatten(2))
    units = _units(history, steps, table.shape[1])
    return torch.einsum("skg,knj->snjg", table, units).reshape(lags.shape[0], steps + 1, steps + 1, *lags.shape[2:])


@lru_cache(maxsize=32)
def _units(history: History, steps: int, count: int) -> Tensor:
    """(number of the table, row, column): a memory with one group for each number, fed with unit rows."""
    rows = torch.eye(steps + 1, dtype=torch.float64).expand(count, -1, -1)
    memory = history.forward(torch.eye(count, dtype=torch.float64)[None], steps, rows[:, 0])
    return walk(memory, rows.transpose(0, 1)[:, None], steps)[:, 0].transpose(0, 1)
