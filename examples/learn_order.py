"""Find the order and the parameters of a fractional oscillator from noisy samples.

    python examples/learn_order.py [--quick]

The data follow ``D^β x = v``, ``D^β v = -k x - c v`` with β = 0.8, k = 4, c = 0.3.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from neuralfde import FDEBlock

TRUE = {"order": 0.8, "stiffness": 4.0, "damping": 0.3}


class Oscillator(nn.Module):
    """A spring and a damper; their constants are positive, so their logarithms are trained."""

    def __init__(self, stiffness: float, damping: float) -> None:
        super().__init__()
        self.logs = nn.Parameter(torch.tensor([stiffness, damping], dtype=torch.float64).log())

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """f(t, (x, v))."""
        stiffness, damping = self.logs.exp()
        return torch.stack([z[1], -stiffness * z[0] - damping * z[1]])


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    times = torch.linspace(0, 3 if quick else 6, 31, dtype=torch.float64)
    steps = 60 if quick else 240
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    truth = FDEBlock(Oscillator(4.0, 0.3), order=0.8, t=times, steps=steps, method="abm")
    with torch.no_grad():
        data = truth(start)
        data = data + 0.01 * torch.randn_like(data)

    model = FDEBlock(Oscillator(3.0, 1.0), order=0.95, learn_order=True, t=times, steps=steps, method="abm").double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(start) - data).square().mean()
        loss.backward()
        return loss

    for _ in range(1 if quick else 3):
        loss = optimizer.step(closure)
    stiffness, damping = model.func.logs.detach().exp().tolist()
    found = {"order": model.order.item(), "stiffness": stiffness, "damping": damping}
    for name, value in found.items():
        print(f"{name:>10}: {value:.3f} (true {TRUE[name]})")
    print(f"{'misfit':>10}: {closure().item():.1e} (first {loss.item():.1e}, noise 1.0e-04)")
    return found


if __name__ == "__main__":
    main()
