"""A neural FDE classifier on two spirals, with a learned order.

python examples/classify.py [--quick]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from neuralfde import FDEBlock


class Slope(nn.Module):
    """The right-hand side: a small network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, width))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """f(t, z)."""
        return self.net(z)


def spirals(count: int) -> tuple[Tensor, Tensor]:
    """Two interleaved spirals of ``count`` points each."""
    s = torch.linspace(0, 1, count).repeat(2)
    label = torch.arange(2).repeat_interleave(count)
    angle = 0.5 + 5 * s + torch.pi * label
    points = (0.3 + 1.5 * s)[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return points + 0.03 * torch.randn(2 * count, 2), label


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    x, y = spirals(64 if quick else 256)
    model = nn.Sequential(
        nn.Linear(2, 8),
        FDEBlock(Slope(8), order=0.7, learn_order=True, t=1.0, steps=10),
        nn.Linear(8, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(150 if quick else 400):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            print(f"epoch {epoch:4d}  loss {loss.item():.4f}  order {model[1].order.item():.3f}")
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    print(f"accuracy {accuracy:.3f}, order {model[1].order.item():.3f}")
    return accuracy


if __name__ == "__main__":
    main()
