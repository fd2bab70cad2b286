"""Where the solver of a fit steps, as options of ``fdeint``: with half the steps, up to another end, as points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Options = Mapping[str, Any]


def mean_step(options: Options, times: Tensor) -> float:
    """The length of a step over these times, of a mesh the mean."""
    if options.get("step") is not None:
        return float(options["step"])
    count = options["steps"] if options.get("grid") is None else len(options["grid"]) - 1
    return float(times[-1] - times[0]) / count


def halved(options: Options) -> dict[str, Any]:
    """The same with two steps in place of each."""
    step, steps, grid = (options.get(name) for name in ("step", "steps", "grid"))
    if grid is not None:
        grid = torch.cat([grid, (grid[1:] + grid[:-1]) / 2]).sort().values
    return {**options, "step": step and step / 2, "steps": steps and 2 * steps, "grid": grid}


def until(options: Options, times: Tensor, end: float) -> dict[str, Any]:
    """The same up to another end than that of ``times``; a mesh goes on with its last step."""
    if (grid := options.get("grid")) is None:
        count = math.ceil((end - float(times[0])) / mean_step(options, times) - 1e-9)
        return {**options, "step": None, "steps": max(1, count)}
    last = grid[-1] - grid[-2]
    beyond = max(0, math.ceil((end - float(grid[-1])) / float(last)))
    inner = torch.cat([grid, grid[-1] + last * torch.arange(1, beyond + 1).double()])
    return {**options, "grid": torch.cat([inner[inner < end - 1e-9 * float(last)], grid.new_tensor([end])])}


def points(options: Options, times: Tensor, end: float) -> Tensor:
    """The points that the solver steps on, up to the last one that is not beyond ``end``."""
    if options.get("grid") is not None:
        found: Tensor = until(options, times, end)["grid"]
        return found
    h, start = mean_step(options, times), float(times[0])
    return start + h * torch.arange(max(1, math.floor((end - start) / h + 1e-9)) + 1, dtype=torch.float64)
