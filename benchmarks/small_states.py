"""Small states, whose steps are mostly overhead, on the CPU: many steps at once beside single steps.

    python benchmarks/small_states.py

The first table compares one training step of Lotka–Volterra, 16 trajectories, N = 2000, vectorised over time, with the
same training step taken step by step, in one run. The second uses a ``func`` that reads its time in Python and so
cannot be vectorised: one evaluation and one vector-Jacobian product per step.

The second table shows for networks of growing work which way of taking 200 steps is the fastest, and what ``auto``
takes: steps one by one, the same without calling ``func``, or many at once. Processor seconds; writes
results/small-states.json.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from report.record import here, put
from report.solver import small_states, small_states_by_work
from torch import Tensor, nn

import neuralfde as nf
from neuralfde.cli.measuring import least_seconds
from neuralfde.rhs.fingerprint import Work

#: Networks by the widths of their layers and the number of samples.
NETWORKS = [
    ((8, 32, 8), 4),
    ((2, 16, 2), 32),
    ((2, 64, 64, 2), 4),
    ((2, 32, 2), 32),
    ((2, 64, 2), 32),
    ((8, 64, 64, 8), 8),
    ((2, 64, 64, 2), 16),
    ((2, 64, 64, 2), 32),
    ((32, 64, 32), 64),
    ((64, 128, 64), 32),
]
#: Ways to take the steps: each a stepper.
WAYS = {"single": nf.Single(), "recorded": nf.Recorded(), "at once": nf.Picard(), "auto": "auto"}


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


class Decaying(nn.Module):
    """A network with tanh between its layers, and a decay."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        between = [layer for linear in layers for layer in (linear, nn.Tanh())]
        self.net = nn.Sequential(*between[:-1])

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope."""
        return self.net(z) - 0.3 * z


def by_work(widths: tuple[int, ...], samples: int, repeats: int, steps: int = 200) -> dict[str, Any]:
    """Seconds of a forward pass and of a training step of one network, taken in each way."""
    func, z0 = Decaying(widths), torch.randn(samples, widths[0])
    with torch.no_grad(), Work() as work:
        func(torch.zeros(()), z0)

    def training(stepper: Any) -> None:
        nf.fdeint(func, z0, 5.0, 0.7, steps=steps, stepper=stepper).square().mean().backward()

    def forward(stepper: Any) -> None:
        with torch.no_grad():
            nf.fdeint(func, z0, 5.0, 0.7, steps=steps, stepper=stepper)

    trainings = least_seconds({k: partial(training, way) for k, way in WAYS.items()}, repeats, time.process_time)
    passes = {k: partial(forward, way) for k, way in WAYS.items()}
    return {
        "network": "-".join(map(str, widths)), "samples": samples, "steps": steps, "KiB": work.bytes / 1024,
        "training": trainings, "forward": least_seconds(passes, repeats, time.process_time),
    }  # fmt: skip


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
    about = {**here(), "command": "python benchmarks/small_states.py"}
    put("small-states", "training step", [row], **about)
    rows = [by_work(widths, samples, given.repeats) for widths, samples in NETWORKS]
    put("small-states", "by work", sorted(rows, key=lambda r: r["KiB"]), **about)
    print(small_states(), small_states_by_work(), sep="\n\n")


if __name__ == "__main__":
    main()
