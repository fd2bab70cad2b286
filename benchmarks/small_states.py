"""Small states, where every step is overhead: Lotka–Volterra, 16 trajectories, N = 2000, on the CPU.

    python benchmarks/small_states.py

Times one training step with the batched backward pass against the step-by-step one, in one run.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import Tensor, nn

import neuralfde as nf


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


def train(func: nn.Module, z0: Tensor, steps: int, order: Tensor | float, adjoint: nf.Exact) -> list[Tensor]:
    """One training step; returns the gradients."""
    func.zero_grad()
    states = nf.fdeint(func, z0, 10.0, order, steps=steps, adjoint=adjoint)
    (states**2).sum().backward()
    return [p.grad.clone() for p in func.parameters()]


def median_time(call, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.manual_seed(0)
    func = LotkaVolterra().double()
    z0 = 1 + 0.2 * torch.rand(given.trajectories, 2, dtype=torch.float64)
    single, batched = nf.Exact(batched=False), nf.Exact(batched=True)
    slow, fast = (train(func, z0, given.steps, 0.8, how) for how in (single, batched))
    difference = max(float((a - b).norm() / b.norm()) for a, b in zip(fast, slow, strict=True))
    times = {
        name: median_time(lambda how=how: train(func, z0, given.steps, 0.8, how), given.repeats)
        for name, how in (("step by step", single), ("batched", batched))
    }
    with torch.no_grad():
        times["forward only"] = median_time(lambda: nf.fdeint(func, z0, 10.0, 0.8, steps=given.steps), given.repeats)
    result = {**times, "ratio": times["batched"] / times["step by step"], "gradient difference": difference}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
