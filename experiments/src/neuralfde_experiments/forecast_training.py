"""Training one forecaster on one set for one horizon, and the error of a naive forecast."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neuralfde.cli.experiment import Row
from neuralfde.errors import InputError

from .data.series import Panel
from .forecast_models import PATCH, Forecaster, build, size

#: The number of past steps that every model sees.
WINDOW = 336
#: The number of windows that are forecast at once in validation and test.
MANY = 512
#: Validation uses at most this many windows, evenly spread; the test uses all.
VALIDATION = 1024

#: The learning rate of orders, relative to that of weights: orders are logits, which have to change by more.
ORDERS = 10.0


class Batch(NamedTuple):
    """A batch of windows: inputs (patches, batch, inputs), level (batch, 1), target (batch, horizon)."""

    inputs: Tensor
    level: Tensor
    target: Tensor


class Windows:
    """All windows of a set for one horizon; the forecasts of a part are inside it, their inputs may begin before it."""

    def __init__(self, panel: Panel, horizon: int) -> None:
        if horizon % PATCH or horizon < 1:
            raise InputError(f"a horizon is a multiple of {PATCH} steps, got {horizon}.")
        self.panel, self.horizon = panel, horizon
        self.inputs = 2 + PATCH * (1 + panel.known.shape[1]) + panel.phases.shape[1]

    def part(self, number: int) -> Tensor:
        """The windows of training (0), validation (1) or test (2): (windows, 2), series and first time ahead."""
        ends = (0, *self.panel.ends)
        first, last = max(ends[number], WINDOW), ends[number + 1] - self.horizon
        if last < first:
            raise InputError(f"part {number} of the series is shorter than a window and {self.horizon} steps ahead.")
        series = torch.arange(len(self.panel.values))
        return torch.cartesian_prod(series, torch.arange(first, last + 1)).reshape(-1, 2)

    def batch(self, which: Tensor) -> Batch:
        """Some of the windows."""
        series, now = which[:, :1], which[:, 1:]
        times = now + torch.arange(-WINDOW, self.horizon)
        values = self.panel.values[series, times]
        past, target = values[:, :WINDOW], values[:, WINDOW:]
        level = past[:, -self.panel.seasons[0] :].mean(1, keepdim=True)
        seen = torch.cat([past - level, torch.zeros_like(target)], 1).unflatten(1, (-1, PATCH))
        patches = seen.shape[1]
        flags = (torch.arange(patches) < WINDOW // PATCH).to(seen).expand(len(which), -1)
        told = [seen, flags[..., None], level[:, None].expand(-1, patches, 1)]
        told += [self.panel.known[times].unflatten(1, (-1, PATCH)).flatten(2), self.panel.phases[times[:, ::PATCH]]]
        return Batch(torch.cat(told, -1).transpose(0, 1).contiguous(), level, target)


def train(
    model: str,
    windows: Windows,
    seed: int,
    latent: int = 32,
    width: int = 64,
    lr: float = 2e-3,
    iterations: int = 600,
    batch: int = 128,
    every: int = 25,
    patience: int = 8,
    tell: Callable[[int, float], None] = lambda done, loss: None,
    before: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> Row:
    """Train until the validation error no longer improves, and test the best model.

    After each validation ``keep`` gets a state from which a later call continues, as ``before``, with the same results.
    """
    began = time.perf_counter()
    torch.manual_seed(seed)
    forecaster = build(model, windows.inputs, latent, width)
    draw = torch.Generator().manual_seed(seed)
    training, held_out = windows.part(0), windows.part(1)
    held_out = held_out[torch.linspace(0, len(held_out) - 1, min(len(held_out), VALIDATION)).long()]
    optimiser = _optimiser(forecaster, lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    best, kept, at, done = torch.inf, dict[str, Tensor](), 0, 0
    parts: dict[str, Any] = {"model": forecaster, "optimiser": optimiser, "falling": falling}
    if before is not None:
        for name, part in parts.items():
            part.load_state_dict(before[name])
        draw.set_state(before["draw"])
        best, kept, at, done = (before[name] for name in ("best", "kept", "at", "done"))
    for k in range(done + 1, iterations + 1):
        now = windows.batch(training[torch.randint(len(training), (batch,), generator=draw)])
        loss = (forecaster(now.inputs, windows.horizon) + now.level - now.target).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(forecaster.parameters(), 1.0)
        optimiser.step()
        falling.step()
        if k % every == 0 or k == iterations:
            found = errors(forecaster, windows, held_out)["mse"]
            tell(k, found)
            if found < best:
                best, kept, at = found, copy.deepcopy(forecaster.state_dict()), k
            elif k - at >= patience * every:
                break
            now_at = {"draw": draw.get_state(), "best": best, "kept": kept, "at": at, "done": k}
            keep({name: part.state_dict() for name, part in parts.items()} | now_at)
    if not at:
        raise InputError(f"{model} has no finite validation error with seed {seed}. Lower the learning rate, --lr.")
    forecaster.load_state_dict(kept)
    row = {"validation_mse": best, **errors(forecaster, windows, windows.part(2)), "iterations": at, "stopped": k}
    row |= {"parameters": size(forecaster), "seconds": round(time.perf_counter() - began, 2)}
    orders = forecaster.orders
    return row | ({"order": sum(orders) / len(orders), "orders": [min(orders), max(orders)]} if orders else {})


def _optimiser(forecaster: Forecaster, lr: float) -> torch.optim.Optimizer:
    named = dict(forecaster.named_parameters())
    orders = [p for name, p in named.items() if name.endswith("raw_order")]
    others = [p for name, p in named.items() if not name.endswith("raw_order")]
    groups = [{"params": others, "weight_decay": 1e-3}, {"params": orders, "lr": ORDERS * lr, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups[: 1 + bool(orders)], lr=lr)


@torch.no_grad()
def errors(forecaster: Forecaster, windows: Windows, which: Tensor) -> Row:
    """Mean squared and mean absolute error over all steps ahead, on the normalised scale."""

    def forecast(now: Batch, _: Tensor) -> Tensor:
        return forecaster(now.inputs, windows.horizon) + now.level  # type: ignore[no-any-return]

    return _errors(forecast, windows, which)


def naive(windows: Windows) -> Row:
    """Repeat the last season; if a set has several seasons, the one that is best in the test itself."""
    panel, ahead = windows.panel, torch.arange(windows.horizon)

    def repeats(season: int) -> Callable[[Batch, Tensor], Tensor]:
        return lambda now, which: panel.values[which[:, :1], which[:, 1:] - season + ahead % season]

    found = [_errors(repeats(s), windows, windows.part(2)) | {"season": s} for s in panel.seasons]
    return min(found, key=lambda row: row["mse"])  # type: ignore[no-any-return]


@torch.no_grad()
def _errors(forecast: Callable[[Batch, Tensor], Tensor], windows: Windows, which: Tensor) -> Row:
    sums = torch.zeros(2, dtype=torch.float64)
    for part in which.split(MANY):
        now = windows.batch(part)
        rest = (forecast(now, part) - now.target).double()
        sums += torch.stack([rest.square().mean(1).sum(), rest.abs().mean(1).sum()])
    squared, absolute = (sums / len(which)).tolist()
    return {"mse": squared, "mae": absolute}
