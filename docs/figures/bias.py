"""Why the paper's adjoint is biased: the multiplier it computes, and the gradient error that follows.

python docs/figures/bias.py

Beside the picture it writes the errors, ``benchmarks/results/bias.json``.
"""

import functools
import sys
from pathlib import Path

import torch
from style import BLUE, GREY, ORANGE, panels, save
from torch import nn

from neuralfde import fdeint

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from report.record import here, put

DOUBLE = torch.float64
STEPS = (10, 20, 40, 80, 160, 320)


def multiplier(
    adjoint: str, order: float, steps: int = 400
) -> tuple[torch.Tensor, torch.Tensor]:
    """∂z(1)/∂u(t) for ``D^β z = -z + u``: the multiplier that weighs every ∂f/∂θ."""
    h = 1 / steps
    u = torch.zeros(steps + 1, dtype=DOUBLE, requires_grad=True)

    def slope(t: torch.Tensor, z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return -z + u[round(float(t) / h)]

    z = fdeint(
        slope,
        torch.ones(1, dtype=DOUBLE),
        1.0,
        order,
        steps=steps,
        adjoint=adjoint,
        args=(u,),
    )
    (grad,) = torch.autograd.grad(z.sum(), u)
    return torch.linspace(0, 1, steps + 1)[1:-1], grad[1:-1] / h


class Mlp(nn.Module):
    """A small right-hand side."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)).double()

    def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """f(t, z)."""
        return self.net(z)


@functools.cache
def gradient(adjoint: str, order: float, steps: int) -> torch.Tensor:
    """∂L/∂θ of a small network."""
    torch.manual_seed(3)
    func, z0 = Mlp(), torch.randn(8, 4, dtype=DOUBLE)
    z = fdeint(func, z0, 1.0, order, steps=steps, adjoint=adjoint, method="abm")
    return torch.cat(
        [
            g.flatten()
            for g in torch.autograd.grad(z.square().sum(), list(func.parameters()))
        ]
    )


def error(adjoint: str, order: float, steps: int) -> float:
    """Relative error against the exact gradient on a fine grid."""
    fine = gradient("exact", order, 2560)
    return float((gradient(adjoint, order, steps) - fine).norm() / fine.norm())


def main() -> None:
    """Draw both panels."""
    fig, (left, right) = panels(2)
    for order, dash in ((0.5, "-"), (0.9, "--")):
        for adjoint, colour in (("exact", BLUE), ("paper", ORANGE)):
            t, value = multiplier(adjoint, order)
            left.plot(t, value, dash, color=colour, label=f"{adjoint}, β = {order}")
    left.set(
        xlabel="t",
        ylabel="weight of ∂f/∂θ at time t",
        ylim=(0, 4),
        title="The multiplier of $D^βz=-z+u$, T = 1",
    )
    left.legend()
    for order, dash in ((0.3, ":"), (0.5, "-"), (0.9, "--")):
        for adjoint, colour in (("exact", BLUE), ("paper", ORANGE)):
            right.loglog(
                [1 / n for n in STEPS],
                [error(adjoint, order, n) for n in STEPS],
                dash,
                color=colour,
            )
        right.plot([], [], dash, color=GREY, label=f"β = {order}")
    right.set(
        xlabel="step h",
        ylabel="relative error of ∂L/∂θ",
        title="A small network: refining helps one of them",
    )
    right.legend()
    save(fig, "bias")
    put(
        "bias", "small network", rows(), **here(), command="python docs/figures/bias.py"
    )


def rows() -> list[dict]:
    """Errors of both adjoints on the coarsest and on the finest grid."""
    return [
        {"problem": "small network, T = 1", "order": order, "steps": steps}
        | {adjoint: error(adjoint, order, steps) for adjoint in ("exact", "paper")}
        for order in (0.3, 0.5, 0.9)
        for steps in (STEPS[0], STEPS[-1])
    ]


if __name__ == "__main__":
    main()
