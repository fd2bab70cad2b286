"""Small states, whose steps are mostly overhead: Lotka–Volterra, 16 trajectories, N = 2000, on the CPU.

    python benchmarks/small_states.py

Compares one training step, vectorised over time, with the same training step taken step by step, in one run. The second
uses a ``func`` that reads its time in Python and so cannot be vectorised: one evaluation and one vector-Jacobian
product per step. Processor seconds; writes results/small-states.json.
"""

from __future__ import annotations

import argparse
import time

import torch
from report.record import here, put
from report.solver import small_states
from torch import Tensor, nn

import neuralfde as nf
from neuralfde.cli.measuring import least_seconds


class LotkaVolterra(nn.Module):
    """``x' = x (a - b y)``, ``y' = y (c x - d)`` with learned rates."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.tensor([1.3, 0.9, 0.8, 1.8]))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope of (prey, predator)."""
        x, y = z.unbind(-1)
        a, b, c, d = self.rates
        return torch.stack([x * (a - b * y), y * (c * x - d)], dim=-1)


class OneByOne(LotkaVolterra):
    """The same, and never for several times at once."""

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """See above."""
        t.item()
        return super().forward(t, z)


def train(func: nn.Module, z0: Tensor, steps: int, order: Tensor | float, adjoint: nf.Exact) -> list[Tensor]:
    """One training step; returns the gradients."""
    func.zero_grad()
    states = nf.fdeint(func, z0, 10.0, order, steps=steps, adjoint=adjoint)
    (states**2).sum().backward()
    return [p.grad.clone() for p in func.parameters()]


def solve(func: nn.Module, z0: Tensor, steps: int) -> None:
    """The forward pass alone."""
    with torch.no_grad():
        nf.fdeint(func, z0, 10.0, 0.8, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    z0 = 1 + 0.2 * torch.rand(given.trajectories, 2, dtype=torch.float64)
    one, all_ = OneByOne().double(), LotkaVolterra().double()
    slow, fast = (train(func, z0, given.steps, 0.8, nf.Exact()) for func in (one, all_))
    difference = max(float((a - b).norm() / b.norm()) for a, b in zip(fast, slow, strict=True))
    times = least_seconds(
        {
            "step by step": lambda: train(one, z0, given.steps, 0.8, nf.Exact()),
            "vectorised": lambda: train(all_, z0, given.steps, 0.8, nf.Exact()),
            "forward only": lambda: solve(all_, z0, given.steps),
        },
        given.repeats,
        time.process_time,
    )
    result = {**times, "ratio": times["vectorised"] / times["step by step"], "gradient difference": difference}
    row = {"steps": given.steps, "trajectories": given.trajectories, **result}
    put("small-states", "training step", [row], **here(), command="python benchmarks/small_states.py")
    print(small_states())


if __name__ == "__main__":
    main()
