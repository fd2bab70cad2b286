"""Time-fractional Allen-Cahn on a periodic plane with a small network as its reaction: order, step, time of a gradient.

    python benchmarks/allen_cahn.py                                                   # 32 × 32 points, on a CPU
    python benchmarks/allen_cahn.py --device cuda --points 256 --steps 1000 --out OUT

Order: differences between solutions in float64 with N, 2N and 4N steps. The first step size is a hundred times the
limit of an explicit scheme, ``(2^β / λ)^{1/β}`` with λ the largest eigenvalue of the diffusion; tried: 0.8 times this
limit is stable, twice is not. Also the distance of a float32 solution from the float64 one, and the seconds of a
gradient. Writes results/pde.json, or OUT/pde-allen-cahn.json.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from report.record import here, put
from torch import Tensor, nn

import neuralfde as nf
from neuralfde import linear
from neuralfde.cli.measuring import clock, machine

EPSILON, ORDER, END = 0.05, 0.8, 1.0
TIMES = 100  # how much longer the longest step is than an explicit one


class Reaction(nn.Module):
    """u - u³, and a small network beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        """r(u)."""
        return u - u**3 + 0.1 * self.net(u.unsqueeze(-1)).squeeze(-1)


def initial(points: int, device: torch.device) -> Tensor:
    """A smooth field, the same on every grid."""
    x = torch.arange(points, dtype=torch.float64, device=device) / points * 2 * math.pi
    return 0.4 * torch.sin(x)[:, None] * torch.cos(2 * x) + 0.3 * torch.cos(3 * x)[:, None] + 0.1 * torch.sin(5 * x)


def measured(device: torch.device, points: int, steps: int) -> dict[str, Any]:
    """One row."""
    torch.manual_seed(0)
    model, start = Reaction().to(device), initial(points, device)

    def part(like: Tensor) -> linear.Spectral:
        return linear.laplacian((points, points), 1 / points, EPSILON**2, like=like)

    def solved(z: Tensor, count: int, end: float = END, **options: Any) -> Tensor:
        model.to(z.dtype)
        return nf.fdeint(model, z, end, ORDER, steps=count, linear=part(z), **options)

    explicit = (2**ORDER / -float(part(start).eigenvalues.min())) ** (1 / ORDER)
    few = max(8, math.floor(END / (TIMES * explicit)))
    with torch.no_grad():
        ladder = [solved(start, few * 2**k) for k in range(3)]
        gaps = [float((a - b).abs().max()) for a, b in zip(ladder[1:], ladder, strict=False)]
        rough = float((solved(start.float(), steps).double() - solved(start, steps)).abs().max())
        stable = [
            float(solved(start, 400, 400 * share * explicit, method="predictor", check_finite=False).abs().max()) < 10
            for share in (0.8, 2.0)
        ]
    seconds, z = [], start.float()
    for _ in range(2):  # the first one warms up
        model.zero_grad()
        began = clock(device)
        solved(z, steps).square().mean().backward()
        seconds.append(clock(device) - began)
    return {
        "points": points, "explicit step": explicit, "explicit bears 0.8": stable[0], "explicit bears 2": stable[1],
        "steps of the ladder": few, "times longer": END / few / explicit, "gaps": gaps,
        "observed order": math.log2(gaps[0] / gaps[1]), "float32 off by": rough, "steps": steps,
        "seconds": min(seconds),
    }  # fmt: skip


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("--device", default="cpu", type=torch.device)
    read.add_argument("--points", type=int, default=32)
    read.add_argument("--steps", type=int, default=200)
    read.add_argument("--out", type=Path)
    given = read.parse_args()
    row = measured(given.device, given.points, given.steps)
    command = f"python benchmarks/allen_cahn.py --device {given.device} --points {given.points} --steps {given.steps}"
    print(json.dumps(row))
    if given.out is None:
        put("pde", f"allen-cahn {given.points}", [row], **here(), command=command)
    else:
        found = {"machine": machine(given.device), "command": command, "rows": [row]}
        (given.out / f"pde-allen-cahn-{given.points}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
