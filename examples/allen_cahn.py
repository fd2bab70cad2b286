"""Learn the reaction of a time-fractional Allen-Cahn equation on a periodic plane from three snapshots.

    python examples/allen_cahn.py [--quick] [--device cuda] [--points 256] [--steps 1000]

``D^β u = ε² Δu + r(u)``, β = 0.8, with r(u) = u - u³ in the data and a small network in the model. The diffusion is
implicit and diagonal in a Fourier transform, the network is explicit: the grid does not limit the step size. Prints the
error of the learned reaction and the time of a training step.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from neuralfde import fdeint, linear

EPSILON, ORDER, END = 0.05, 0.8, 2.0


class Reaction(nn.Module):
    """The same small network at every point."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        """r(u)."""
        return self.net(u.unsqueeze(-1)).squeeze(-1)


def true_reaction(t: Tensor, u: Tensor) -> Tensor:
    """The reaction in the data."""
    return u - u**3


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    points, steps, epochs = (12, 12, 40) if given.quick else (given.points, given.steps, 200)
    torch.manual_seed(0)
    start = 0.6 * torch.randn(points, points, device=given.device)
    diffusion = linear.laplacian((points, points), 1 / points, EPSILON**2, like=start)
    times = torch.tensor([0.0, END / 4, END / 2, END], device=given.device)
    start = fdeint(None, start, 0.2, ORDER, linear=diffusion)  # a smooth field of random spots
    start = 0.6 * start / start.std()
    seen = fdeint(true_reaction, start, times, ORDER, steps=2 * steps, linear=diffusion)
    model = Reaction().to(given.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    began = time.perf_counter()
    for _ in range(epochs):
        optimiser.zero_grad()
        found = fdeint(model, start, times, ORDER, steps=steps, linear=diffusion)
        loss = (found - seen).square().mean()
        loss.backward()
        optimiser.step()
    seconds = (time.perf_counter() - began) / epochs
    u = torch.linspace(-1, 1, 41, device=given.device)
    with torch.no_grad():
        off = float((model(times[0], u) - true_reaction(times[0], u)).square().mean().sqrt())
    print(f"{points}² points, {steps} steps: loss {loss.item():.2e}, reaction off by {off:.4f}, {seconds:.2f} s a step")
    return off


if __name__ == "__main__":
    main()
