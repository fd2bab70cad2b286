"""The equation that the demo and several experiments find again from data, and how such data are made.

The equation is ``D^β x = x(a - c y)``, ``D^β y = -y(b - d x)`` with [a, b, c, d] = [1.0, 0.5, 1.0, 0.3], and initial
states are drawn from [0.5, 5], as in the paper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..api import fdeint

TRUTH = {"a": 1.0, "b": 0.5, "c": 1.0, "d": 0.3}


def lotka_volterra(t: Tensor, z: Tensor, a: Any, b: Any, c: Any, d: Any) -> Tensor:
    """``x(a - c y), -y(b - d x)`` for states (..., 2)."""
    x, y = z[..., 0], z[..., 1]
    return torch.stack([x * (a - c * y), -y * (b - d * x)], -1)


def truth(t: Tensor, z: Tensor) -> Tensor:
    """The equation the data come from."""
    return lotka_volterra(t, z, **TRUTH)


def measure(
    trajectories: int,
    order: float,
    seed: int,
    *,
    horizon: float = 1.0,
    samples: int = 10,
    steps: int = 10,
    method: str = "predictor",
    noise: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Make data from the true equation.

    Args:
        trajectories: how many there are.
        order: the order β of the equation.
        seed: of the initial states and the noise.
        horizon: length of a trajectory.
        samples: equally spaced measurements after the initial state.
        steps: grid steps of the solver.
        method: scheme of the solver.
        noise: standard deviation of Gaussian noise, as a fraction of the root mean square of each variable.

    Returns:
        Times, noisy states (times, trajectories, 2) and the true initial states.
    """
    generator = torch.Generator().manual_seed(seed)
    z0 = 0.5 + 4.5 * torch.rand(trajectories, 2, generator=generator, dtype=torch.float64)
    times = torch.linspace(0, horizon, samples + 1, dtype=torch.float64)
    with torch.no_grad():
        states = fdeint(truth, z0, times, order, steps=steps, method=method)
    level = noise * states.square().mean((0, 1), keepdim=True).sqrt()
    return times, states + level * torch.randn(states.shape, generator=generator, dtype=torch.float64), z0


def first_guess(seed: int) -> dict[str, float]:
    """Each parameter uniform in [0.2, 1.2], whatever the truth is."""
    drawn = 0.2 + torch.rand(4, generator=torch.Generator().manual_seed(seed + 10_000), dtype=torch.float64)
    return dict(zip("abcd", drawn.tolist(), strict=True))
