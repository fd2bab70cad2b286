"""An irregular time series driven by a known input: fit on scattered samples, predict between them.

    python examples/irregular.py [--quick]

The true system is ``D^0.7 z = tanh(u(t)) - z``; the model learns its right-hand side and its order.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from neuralfde import FDEBlock, fdeint


def drive(t: Tensor, phase: Tensor) -> Tensor:
    """The input of each series, known at any time."""
    return 2 * torch.sin(2 * t + phase)


class Slope(nn.Module):
    """The right-hand side: a network of the state and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t: Tensor, z: Tensor, phase: Tensor) -> Tensor:
        """f(t, z, phase), with ``z`` of shape (series, 1)."""
        return self.net(torch.cat([z, drive(t, phase)[:, None]], dim=1))


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    series, end = 12, 4.0
    phase = 2 * torch.pi * torch.rand(series)
    start = torch.zeros(series, 1)
    inner = torch.rand(20).sort().values * (end - 0.1) + 0.05
    times = torch.cat([torch.zeros(1), inner, torch.tensor([end])])

    def truth(t: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(drive(t, phase))[:, None] - z

    data = fdeint(truth, start, times, 0.7, steps=400, method="abm")
    data = data + 0.02 * torch.randn_like(data)

    model = FDEBlock(Slope(), order=0.9, learn_order=True, t=times, steps=40, method="abm")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(60 if quick else 300):
        optimizer.zero_grad()
        loss = (model(start, phase) - data).square().mean()
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            print(f"epoch {epoch:4d}  loss {loss.item():.5f}  order {model.order.item():.3f}")

    fine = torch.linspace(0, end, 81)
    with torch.no_grad():
        want = fdeint(truth, start, fine, 0.7, steps=400, method="abm")
        got = fdeint(model.func, start, fine, model.order, steps=80, method="abm", args=(phase,))
    error = float((got - want).square().mean().sqrt())
    print(f"error between the samples {error:.3f}, order {model.order.item():.3f} (true 0.7)")
    return error


if __name__ == "__main__":
    main()
