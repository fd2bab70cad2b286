"""Learn an unknown right-hand side as a small network from trajectories, then compare its field with the truth.

The data are trajectories of a fractional predator-prey equation, whose form the network does not know. Fields are
compared on states of trajectories that were not used in training (``held out``). Several processes share the
minibatches.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import neuralfde
from neuralfde.cli.experiment import ADJOINTS, METHODS, Options, Report, Row, option
from neuralfde.cli.predator_prey import truth
from neuralfde.fitting import Adam, Fit, Progress, fit

from .processes import Processes

SUMMARY = "an unknown equation, learned as a network"
EXAMPLES = (
    "neuralfde run neural-field",
    "neuralfde run neural-field --adjoint paper --epochs 100",
    "neuralfde run neural-field --learn-order --out out/field",
)
PROCESSES = True
COLUMNS = ("adjoint", "loss", "order", "field_error", "held_out_error", "seconds")


@dataclass(frozen=True)
class Config(Options):
    """Settings of the experiment."""

    epochs: int = option(200, "passes over the trajectories", least=1)
    lr: float = option(0.01, "learning rate of Adam", above=0, most=100)
    width: int = option(32, "hidden units", least=1)
    trajectories: int = option(64, "how many trajectories are measured", least=1)
    batch_size: int = option(16, "trajectories in one step", least=1)
    horizon: float = option(2.0, "length of a trajectory", above=0, most=1e6)
    samples: int = option(10, "measurements of a trajectory", least=1)
    steps: int = option(20, "grid steps of the solver", least=1)
    method: str = option("predictor", "scheme of the solver", choices=METHODS)
    adjoint: str = option("exact", "gradients: exact, paper or direct", choices=ADJOINTS)
    order: float = option(0.8, "the true order", above=0, most=1)
    learn_order: bool = option(False, "find the order too")
    noise: float = option(0.0, "Gaussian noise, as a fraction of the root mean square of each variable")
    target: float = option(0.1, "largest relative error of the field that counts as learned")
    seed: int = option(0, "random seed")


class Network(nn.Module):
    """Two hidden layers; no bias towards any form of the equation."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
            ).double()

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The right-hand side."""
        out: Tensor = self.layers((z - 2.0) / 2.0)
        return out


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row: loss, order and the relative error of the learned field on held-out trajectories."""
    report = Report() if report is None else report
    with Processes.from_environment("cpu") as processes:
        report = processes.quieten(report)
        row = report.case("field", lambda: _one(config, report, processes.group))
    text = f"error {row['field_error']:.4f}"
    report.verdict(f"field within {config.target:g}", row["field_error"] <= config.target, text)
    return [row]


def _one(config: Config, report: Report, group: Any) -> Row:
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(config.seed)
    times = torch.linspace(0, config.horizon, config.samples + 1, dtype=torch.float64)
    half = config.trajectories
    z0 = 0.5 + 2.5 * torch.rand(2 * half, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        states = neuralfde.fdeint(truth, z0, times, config.order, steps=config.steps, method=config.method)
    level = config.noise * states.square().mean((0, 1), keepdim=True).sqrt()
    values = states + level * torch.randn(states.shape, generator=generator, dtype=torch.float64)

    def watch(p: Progress) -> None:
        report.progress("training", p.iteration, p.total, p.loss)
        report.checkpoint("field", p.state)

    found = fit(
        Network(config.width, config.seed),
        times,
        values[:, :half],
        initial=z0[:half],
        order=0.6 if config.learn_order else config.order,
        learn_order=config.learn_order,
        optimiser=Adam(config.epochs, config.lr, config.batch_size, config.seed, group=group),
        intervals=None,
        check_order=False,
        callback=watch,
        resume=report.restored("field"),
        steps=config.steps,
        method=config.method,
        adjoint=config.adjoint,
    )
    held = states[:, half:].reshape(-1, 2)
    with torch.no_grad():
        learned, true = found.model(times[0], held), truth(times[0], held)
        forecast = found.predict(times, z0[half:])
    if report.wants_figures:
        report.figure("field", _draw(found, held))
    return {
        "adjoint": config.adjoint,
        "loss": found.loss,
        "order": found.order,
        "field_error": float((learned - true).norm() / true.norm()),
        "held_out_error": float((forecast - states[:, half:]).norm() / states[:, half:].norm()),
        "parameters": sum(p.numel() for p in found.model.parameters()),
        "seconds": round(time.perf_counter() - began, 3),
    }


def _draw(found: Fit, held: Tensor) -> Any:
    from matplotlib.figure import Figure

    side = torch.linspace(0.5, 3.0, 13, dtype=torch.float64)
    x, y = torch.meshgrid(side, side, indexing="xy")
    grid = torch.stack([x, y], -1)
    with torch.no_grad():
        fields = [truth(torch.tensor(0.0), grid), found.model(torch.tensor(0.0), grid)]
    error = (fields[1] - fields[0]).norm(dim=-1) / fields[0].norm(dim=-1).mean()
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for ax, field, title in zip(axes, fields, ("true field", "learned field"), strict=False):
        ax.quiver(
            x.numpy(), y.numpy(), field[..., 0].numpy(), field[..., 1].numpy(), color="#0072B2", angles="xy", scale=60
        )
        ax.set_title(title)
    shown = axes[2].pcolormesh(x.numpy(), y.numpy(), error.numpy(), cmap="viridis", shading="auto")
    axes[2].plot(held[::7, 0], held[::7, 1], ".", ms=2, color="white", alpha=0.7)
    axes[2].set_title("difference, relative to the mean length")
    figure.colorbar(shown, ax=axes[2])
    for ax in axes:
        ax.set(xlabel="prey", ylabel="predator", xlim=(0.4, 3.1), ylim=(0.4, 3.1))
    return figure
