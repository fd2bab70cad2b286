"""The cost of output between grid points: 64 series, 120 steps, 1,663 distinct times, on the CPU.

    python benchmarks/irregular.py

One training step (forward and backward, the order learned too) with output on the grid, at 1,663 times for the whole
batch, and with the same times distributed over the series, 26 or 27 each. Processor seconds, in turns within one run;
writes results/irregular.json.
"""

from __future__ import annotations

import argparse
import time

import torch
from report.record import here, put
from report.solver import irregular
from torch import Tensor, nn

import neuralfde as nf
from neuralfde.cli.measuring import least_seconds

SERIES, STEPS, TIMES, END = 64, 120, 1663, 12.0


class Network(nn.Module):
    """A slope of four numbers, by 32 hidden ones."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope."""
        return self.net(z)


def train(func: nn.Module, z0: Tensor, t: Tensor, method: str) -> None:
    """One training step."""
    func.zero_grad()
    order = torch.tensor(0.8, requires_grad=True)
    nf.fdeint(func, z0, t, order, steps=STEPS, method=method).square().mean().backward()


def dealt(times: Tensor) -> Tensor:
    """The times after the first dealt out to the series in turn, (series, times) with NaN at the ends."""
    most = -(-(len(times) - 1) // SERIES)
    own = torch.full((SERIES, most + 1), torch.nan, dtype=times.dtype)
    own[:, 0] = times[0]
    for k in range(SERIES):
        mine = times[1 + k :: SERIES]
        own[k, 1 : 1 + len(mine)] = mine
    return own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    func, z0 = Network(), torch.randn(SERIES, 4)
    inner = (torch.rand(TIMES - 2, dtype=torch.float64) * END).sort().values
    times = torch.cat([torch.zeros(1, dtype=torch.float64), inner, torch.tensor([END], dtype=torch.float64)])
    wanted = {"grid": torch.linspace(0, END, STEPS + 1, dtype=torch.float64), "all": times, "own": dealt(times)}
    rows = []
    for method in ("predictor", "abm", "trapezoid", "gl"):
        calls = {k: lambda t=t, m=method: train(func, z0, t, m) for k, t in wanted.items()}
        found = least_seconds(calls, given.repeats, time.process_time)
        ratios = {f"{k} / grid": found[k] / found["grid"] for k in ("all", "own")}
        rows.append({"method": method, **found, **ratios})
    put("irregular", "training step", rows, **here(), command="python benchmarks/irregular.py")
    print(irregular())


if __name__ == "__main__":
    main()
