"""Measure solves and gradients on this machine: time, peak memory and the error of each gradient.

The equation is a small network on a batch of states; every gradient is compared with direct differentiation. Memory is
the peak of a forward and a backward pass, with what PyTorch's own graphs hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..api import fdeint
from .measuring import clock, peak_mib
from .options import METHODS, Options, device_option, option, place
from .report import Report, Row

SUMMARY = "time, memory and gradients on this machine"
EXAMPLES = ("neuralfde bench", "neuralfde bench --steps 2000 --device cuda --json")
COLUMNS = ("adjoint", "steps", "forward_s", "backward_s", "peak_mib", "gradient_error")


@dataclass(frozen=True)
class Config(Options):
    """Settings of the measurement."""

    steps: int = option(400, "grid steps of a solve", least=1)
    batch: int = option(32, "states in the batch", least=1)
    width: int = option(16, "variables of a state", least=1)
    order: float = option(0.6, "order of the equation", above=0, most=1)
    method: str = option("predictor", "scheme of the solver", choices=METHODS)
    device: str = device_option("cpu")
    repeats: int = option(3, "runs of which the fastest counts", least=1)
    seed: int = option(0, "random seed")


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each adjoint."""
    report = Report() if report is None else report
    device = place(config.device)
    torch.manual_seed(config.seed)
    net = nn.Sequential(nn.Linear(config.width, 64), nn.Tanh(), nn.Linear(64, config.width)).to(device)
    z0 = torch.randn(config.batch, config.width, device=device)
    reference: dict[str, Tensor] = {}

    def field(t: Tensor, z: Tensor) -> Tensor:
        out: Tensor = net(z)
        return out

    def one(adjoint: str) -> Row:
        best = [float("inf")] * 2

        def step() -> None:
            nonlocal best
            net.zero_grad()
            began = clock(device)
            end = fdeint(
                field, z0, 1.0, config.order, steps=config.steps, method=config.method, adjoint=adjoint,
                params=net.parameters(),
            )  # fmt: skip
            middle = clock(device)
            end.square().mean().backward()
            best = [min(best[0], middle - began), min(best[1], clock(device) - middle)]

        for _ in range(config.repeats):
            step()
        peak = peak_mib(step, device)
        gradient = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        reference.setdefault("direct", gradient)
        error = float((gradient - reference["direct"]).norm() / reference["direct"].norm())
        return {
            "adjoint": adjoint,
            "steps": config.steps,
            "forward_s": round(best[0], 5),
            "backward_s": round(best[1], 5),
            "peak_mib": peak,
            "gradient_error": error,
        }

    rows = []
    for k, adjoint in enumerate(("direct", "exact", "paper")):
        rows.append(report.case(adjoint, lambda a=adjoint: one(a)))  # type: ignore[misc]
        report.progress("adjoints", k + 1, 3, text=f"{adjoint}: {rows[-1]['backward_s']} s backward")
    return rows
