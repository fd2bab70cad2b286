"""Time-fractional Allen-Cahn on a periodic plane with a small network as its reaction: order, step, time of a gradient.

    python benchmarks/allen_cahn.py --device cuda --points 256 --steps 1000
    python benchmarks/allen_cahn.py --points 32 --steps 40

Order: differences between solutions with N, 2N and 4N steps in float64, which say what the scheme does, and how far a
float32 solution with N steps is from that. Step: that of N steps against the largest that an explicit scheme bears,
``(2^β / λ)^{1/β}`` with λ the largest eigenvalue of the diffusion (and tried: twice that step blows up).
"""

from __future__ import annotations

import argparse
import json
import math
import time

import torch
from torch import Tensor, nn

import neuralfde as nf
from neuralfde import linear

EPSILON, ORDER, END = 0.05, 0.8, 1.0


class Reaction(nn.Module):
    """u - u³, and a small network beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        """r(u)."""
        return u - u**3 + 0.1 * self.net(u.unsqueeze(-1)).squeeze(-1)


def initial(points: int, device: str) -> Tensor:
    """A smooth field, the same on every grid."""
    x = torch.arange(points, dtype=torch.float64, device=device) / points * 2 * math.pi
    return 0.4 * torch.sin(x)[:, None] * torch.cos(2 * x) + 0.3 * torch.cos(3 * x)[:, None] + 0.1 * torch.sin(5 * x)


def main() -> dict[str, float]:
    """Measure, and print one line."""
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("--device", default="cpu")
    read.add_argument("--points", type=int, default=32)
    read.add_argument("--steps", type=int, default=40)
    given = read.parse_args()
    torch.manual_seed(0)
    model, start, n = Reaction().to(given.device), initial(given.points, given.device), given.steps

    def part(like: Tensor) -> linear.Spectral:
        return linear.laplacian((given.points, given.points), 1 / given.points, EPSILON**2, like=like)

    def solved(z: Tensor, steps: int) -> Tensor:
        model.to(z.dtype)
        return nf.fdeint(model, z, END, ORDER, steps=steps, linear=part(z))

    with torch.no_grad():
        few = max(20, n // 10)
        ladder = [solved(start, few * 2**k) for k in range(3)]
        gaps = [float((a - b).abs().max()) for a, b in zip(ladder[1:], ladder, strict=False)]
        rough = float((solved(start.float(), n).double() - solved(start, n)).abs().max())
    top = -float(part(start).eigenvalues.min())
    explicit = (2**ORDER / top) ** (1 / ORDER)
    z = start.float()
    for _ in range(2):  # the first one warms up
        model.zero_grad()
        began = time.perf_counter()
        solved(z, n).square().mean().backward()
        if given.device != "cpu":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    found = {
        "points": given.points, "steps": n, "observed order": math.log2(gaps[0] / gaps[1]),
        "coarsest step over explicit": END / few / explicit, "step over explicit": END / n / explicit,
        "float32 off by": rough, "seconds forward and backward": seconds,
    }  # fmt: skip
    print(json.dumps({k: float(f"{v:.3g}") for k, v in found.items()}))
    return found


if __name__ == "__main__":
    main()
