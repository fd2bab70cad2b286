"""One case, solved by the package and by the reference: values and all gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import neuralfde
from tests import reference

from .cases import STEP, Case, options
from .histories import remembered
from .kinds import F64, Grid


class Field(nn.Module):
    """Depends on time, on parameters and on an argument; all numbers are coupled, by a rank of one."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(7)
        self.own = nn.Parameter(0.5 + 0.3 * torch.rand(shape[-1:], dtype=F64, generator=g))
        self.read = nn.Parameter(torch.randn(shape, dtype=F64, generator=g))
        self.write = nn.Parameter(torch.randn(shape, dtype=F64, generator=g) / 2)
        self.read.data /= self.read.numel() ** 0.5

    def forward(self, t: Tensor, z: Tensor, a: Tensor) -> Tensor:
        level = torch.tanh((self.read * z).sum() / self.read.numel() ** 0.5 + 0.3)
        return torch.sin(self.own * z + a * torch.cos(2 * t)) - 0.3 * z + self.write * level


@dataclass(frozen=True)
class Found:
    """States, and the gradient of each tensor by name."""

    ys: Tensor
    grads: dict[str, Tensor]


def leaves_of(case: Case, field: Field) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(11)
    shape = case.shape
    found = {
        "z0": torch.randn(shape, dtype=F64, generator=g).requires_grad_(),
        "a": torch.rand(shape[-1:], dtype=F64, generator=g).requires_grad_(),
        **case.kind.leaves(shape),
    }
    return {**found, **dict(field.named_parameters())}


def grid_of(case: Case) -> Grid:
    # a number T integrates from 0; with times the solve may begin anywhere
    start = 0.0 if case.output == "end" else 0.5
    return Grid(start, STEP, case.steps, case.kind.grading, len(case.shape))


def nodes_of(case: Case) -> list[int]:
    n = case.steps
    return [n] if case.output == "end" else sorted({0, n // 3, n - 1, n})


def finished(ys: Tensor, leaves: dict[str, Tensor]) -> Found:
    factor = torch.cos(torch.arange(1, ys.numel() + 1, dtype=F64)).reshape(ys.shape).to(ys.device)
    loss = (factor * ys).sum() + 0.5 * ys.square().sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return Found(ys.detach().cpu(), {k: g.cpu() for k, g in zip(leaves, grads, strict=True)})


def arguments(case: Case, field: Field, leaves: dict[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    grid, device = grid_of(case), case.device
    t: Any = grid.steps * grid.step if case.output == "end" else grid.start + grid.elapsed[nodes_of(case)]
    order = case.kind.order(leaves, not case.implicit)
    given = {k: leaves[k].to(device) if k == "velocity" else leaves[k] for k in case.kind.given}
    return (
        (field, leaves["z0"].to(device), t, order),
        {**options(case), **given, "args": (leaves["a"].to(device),)},
    )


def solved(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """The states at the nodes as the package has them, and what they depend on."""
    field = Field(case.shape).to(case.device)
    leaves = leaves_of(case, field)
    positional, named = arguments(case, field, leaves)
    ys = neuralfde.fdeint(*positional, **named)
    return ys[None] if case.output == "end" else ys, leaves


def by_package(case: Case) -> Found:
    return finished(*solved(case))


def by_reference(case: Case) -> Found:
    field = Field(case.shape)
    leaves, grid = leaves_of(case, field), grid_of(case)
    weights = case.kind.weights(case.method, leaves, grid)
    positional, named = arguments(case, field, leaves)
    matrix = remembered(weights, neuralfde.plan(*positional, **named).history)
    times = grid.start + grid.elapsed
    horizon = leaves.get("horizon", torch.ones((), dtype=F64))
    initial = [leaves["z0"], *([leaves["velocity"]] if "velocity" in leaves else [])]
    slope = lambda n, z: field(horizon * times[n], z, leaves["a"])
    zs = reference.solve(slope, initial, matrix, weights.stage, weights.base)
    return finished(torch.stack([zs[n] for n in nodes_of(case)]), leaves)


def distances(a: Found, b: Found) -> dict[str, float]:
    """The largest difference in each tensor, relative to its largest number."""
    largest = max(float(g.abs().max()) for g in b.grads.values())
    found = {"ys": _apart(a.ys, b.ys, 0.0)}
    # a gradient far smaller than all others is a difference of numbers of their size
    return {**found, **{k: _apart(a.grads[k], b.grads[k], 1e-3 * largest) for k in b.grads}}


def _apart(a: Tensor, b: Tensor, least: float) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max()) / max(float(b.abs().max()), least)
