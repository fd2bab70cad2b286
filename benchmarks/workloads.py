"""What the benchmarks solve: the paper's image model on a GPU, a perceptron on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuralfde.models.image import ConvFDE


class TimeChannel(nn.Module):
    """A 3×3 convolution of a state with the time laid out as one more channel, as torchfde's example has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width + 1, width, 3, padding=1)

    def forward(self, t: Tensor, z: Tensor, taps: Tensor) -> Tensor:
        """As :class:`neuralfde.models.image.TimeConv2d`, which needs no such channel."""
        return self.conv(torch.cat([t.expand(z.shape[0], 1, *z.shape[2:]), z], dim=1))


def image_model(**options: Any) -> ConvFDE:
    """The paper's image model, but with the time laid out as a channel; ``options`` are those of ``ConvFDE``."""
    model = ConvFDE(**options)
    model.fde.func.convs = nn.ModuleList(TimeChannel(64) for _ in range(2))
    return model


class Perceptron(nn.Module):
    """A field of two layers for states of ``width`` numbers a sample."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope of the state."""
        return self.b(torch.tanh(self.a(z))) - 0.1 * z


def image_problem(device: torch.device, batch: int = 128) -> tuple[Tensor, Tensor]:
    """Images and labels; random, since only time and memory are looked at."""
    torch.manual_seed(0)
    return torch.rand(batch, 1, 28, 28, device=device), torch.randint(10, (batch,), device=device)


@dataclass(frozen=True)
class Work:
    """An equation: its function, initial state, order and step."""

    name: str
    func: nn.Module
    z0: Tensor
    order: float
    step: float

    def anew(self, dtype: torch.dtype = torch.float32) -> Work:
        """The same without anything that solvers keep with a function, in this precision."""
        func, z0 = copy.deepcopy(self.func).to(dtype), self.z0.detach().to(dtype).requires_grad_()
        return Work(self.name, func, z0, self.order, self.step)

    def gradient(self, solve: Callable[[Work, int], Tensor], steps: int) -> list[Tensor]:
        """One training step; the gradients of parameters and initial state."""
        loss = solve(self, steps).square().mean()
        return list(torch.autograd.grad(loss, [self.z0, *self.func.parameters()]))
