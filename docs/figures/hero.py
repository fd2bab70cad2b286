"""The figure of the front page: what an order does, and what an exact gradient is worth.

python docs/figures/hero.py      while no training of three stages is in the results
python benchmarks/render.py      afterwards
"""

from typing import Any

import torch
from style import BLUE, GREEN, ORANGE, PURPLE, panels, save

from neuralfde import fdeint
from neuralfde_experiments.image_stages import draw_accuracy

DOUBLE = torch.float64


def relax(order: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``D^β z = -z`` from 1."""
    t = torch.linspace(0, 8, 321, dtype=DOUBLE)
    return t, fdeint(
        lambda t, z: -z,
        torch.ones((), dtype=DOUBLE),
        t,
        order,
        steps=320,
        method="trapezoid",
    )


def descend(adjoint: str, rounds: int = 150) -> list[float]:
    """Fit the rate of ``D^0.4 z = -k z`` to z(2) of k = 1.5 by plain gradient descent on the trajectory."""
    k = torch.tensor(0.2, dtype=DOUBLE, requires_grad=True)
    times = torch.linspace(0, 2, 6, dtype=DOUBLE)

    def path(k: torch.Tensor, adjoint: str) -> torch.Tensor:
        one = torch.ones((), dtype=DOUBLE)
        return fdeint(
            lambda t, z, k: -k * z,
            one,
            times,
            0.4,
            steps=50,
            adjoint=adjoint,
            args=(k,),
        )

    target = path(torch.tensor(1.5, dtype=DOUBLE), "exact") + 0.05 * torch.sin(
        7 * times
    )

    def value(x: float) -> float:
        return float(
            (path(torch.tensor(x, dtype=DOUBLE), "exact") - target).square().sum()
        )

    low, high = 1.0, 2.0
    for _ in range(
        40
    ):  # the loss has one minimum there: keep the two thirds that hold it
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if value(a) < value(b) else (a, high)
    best = value(low)
    losses = []
    for _ in range(rounds):
        loss = (path(k, adjoint) - target).square().sum()
        losses.append(float(loss.detach()) - best)
        (g,) = torch.autograd.grad(loss, k)
        k = (k - 0.5 * g).detach().requires_grad_()
    return losses


def picture(trainings: list[dict[str, Any]]) -> Any:
    """Both panels; the right one shows these trainings of three stages, or, without any, the fit of a rate."""
    fig, (left, right) = panels(2)
    fig.set_layout_engine("constrained")
    for order, colour in ((1.0, BLUE), (0.8, GREEN), (0.6, PURPLE), (0.4, ORANGE)):
        left.plot(*relax(order), color=colour, label=f"β = {order}")
    left.set(
        xlabel="t",
        ylabel="z(t)",
        title="$D^β z = -z$: the lower the order, the longer the memory",
    )
    left.legend()
    if trainings:
        draw_accuracy(right, trainings)
        title = "Three fractional stages, Fashion-MNIST, β = 0.6"
        right.set(title=title)
        return fig
    for adjoint, colour in (("exact", BLUE), ("paper", ORANGE)):
        right.semilogy(descend(adjoint), color=colour, label=f"adjoint = {adjoint!r}")
    right.set(
        xlabel="gradient steps",
        ylabel="loss above its minimum",
        title="Fitting a rate to noisy data, β = 0.4",
    )
    right.set_ylim(1e-9, 1)
    right.legend()
    return fig


def main() -> None:
    """Draw it as long as nothing was trained."""
    save(picture([]), "hero")


if __name__ == "__main__":
    main()
