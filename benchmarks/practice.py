"""The time of everyday work: a small fit, an epoch over ragged series with a network, a model of series in few lines.

    python benchmarks/practice.py

Processor seconds on one thread, the least of several turns. The lines that are counted are those of the recipe for
series that make the model, train it and forecast. Writes results/practice.json.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from report.record import asked, here, put
from report.solver import practice
from torch import Tensor, nn

import neuralfde as nf
from neuralfde.cli.measuring import least_seconds
from neuralfde.fitting import Adam

POINTS, SERIES, EPOCHS = 60, 64, 3
PAGE = Path(__file__).parents[1] / "docs" / "recipes" / "series.md"


def toward(t: Tensor, z: Tensor, rate: float, level: float) -> Tensor:
    """Relaxation to a level."""
    return rate * (level - z)


def saturating(t: Tensor, z: Tensor, source: float, rate: float, loss: float) -> Tensor:
    """Growth that a linear and a quadratic term hold back."""
    return source - rate * z - loss * z**2


def noisy(model: Callable[..., Tensor], start: float, **known: float) -> tuple[Tensor, Tensor]:
    """60 noisy values after the first one, of order 0.8, from a grid sixteen times as fine as that of the fit."""
    times = torch.linspace(0, 6, POINTS + 1, dtype=torch.float64)
    z0 = torch.tensor([[start]], dtype=torch.float64)
    clean = nf.fdeint(lambda t, z: model(t, z, **known), z0, times, 0.8, steps=1920, method="abm")
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return times, clean + 0.005 * noise


RELAXED, GROWN = noisy(toward, 3.0, rate=1.0, level=0.5), noisy(saturating, 0.1, source=1.0, rate=0.5, loss=0.3)


def small_fit() -> None:
    """A rate, a level, the initial value and the order, with intervals."""
    guess = {"rate": 0.7, "level": 0.2}
    found = nf.fit(toward, *RELAXED, params=guess, order=0.9, learn_order=True, learn_initial=True)
    assert found.converged
    assert found.profile is None, found


def profiled_fit() -> None:
    """Three rates that can stand in for each other: the fit looks how far the order is determined."""
    guess = {"source": 0.7, "rate": 0.7, "loss": 0.2}
    found = nf.fit(saturating, *GROWN, params=guess, order=0.9, learn_order=True)
    assert found.converged
    assert found.profile is not None, found


class Slope(nn.Module):
    """A slope of two numbers, by 32 hidden ones."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope."""
        return self.net(z)


def ragged(epochs: int) -> None:
    """So many epochs over 64 series with 16 to 40 times of their own, by minibatches of 16."""
    torch.manual_seed(0)
    times, values = [], []
    for k in range(SERIES):
        inner = torch.rand(15 + k % 25, dtype=torch.float64).sort().values * 4
        times.append(torch.cat([torch.zeros(1, dtype=torch.float64), inner]))
        turn = 3 * times[-1][:, None] + torch.tensor([0.0, 1.57]) + k
        values.append(torch.exp(-0.3 * times[-1])[:, None] * turn.cos())
    nf.fit(Slope(), times, values, order=0.9, learn_order=True, optimiser=Adam(epochs=epochs, batch_size=16), steps=100)


def lines() -> int:
    """How long the model of series is in the recipe, without blank lines."""
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[1]
    return len([line for line in block.splitlines() if line.strip()])


def main() -> None:
    asked(__doc__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    jobs = {"fit": small_fit, "profiled": profiled_fit, "one": lambda: ragged(1), "more": lambda: ragged(1 + EPOCHS)}
    found = least_seconds(jobs, 5, time.process_time)
    rows = [
        {"what": "fit", "seconds": found["fit"]},
        {"what": "profiled", "seconds": found["profiled"]},
        {"what": "epoch", "seconds": (found["more"] - found["one"]) / EPOCHS},
        {"what": "lines", "count": lines()},
    ]
    put("practice", "everyday", rows, **here(), command="python benchmarks/practice.py")
    print(practice())


if __name__ == "__main__":
    main()
