"""What the benchmarks solve: the paper's image model on a GPU, a perceptron on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import neuralfde as nf


class ConcatConv(nn.Module):
    """A 3×3 convolution that sees the time as one more channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels + 1, channels, 3, padding=1)

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        """Shapes stay as they are."""
        return self.conv(torch.cat([t.expand(x.shape[0], 1, *x.shape[2:]), x], dim=1))


class ImageField(nn.Module):
    """norm-relu-conv-norm-relu-conv-norm on (batch, 64, 6, 6)."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))
        self.convs = nn.ModuleList(ConcatConv(channels) for _ in range(2))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope of the state."""
        z = self.convs[0](t, torch.relu(self.norms[0](z)))
        z = self.convs[1](t, torch.relu(self.norms[1](z)))
        return self.norms[2](z)


class ImageModel(nn.Module):
    """28×28 images to ten classes: three convolutions, the fractional block, a linear head."""

    def __init__(self, field: nn.Module, **block: object) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 64, 3), nn.GroupNorm(32, 64), nn.ReLU(), nn.Conv2d(64, 64, 4, 2, 1), nn.GroupNorm(32, 64),
            nn.ReLU(), nn.Conv2d(64, 64, 4, 2, 1),
        )  # fmt: skip
        self.block = nf.FDEBlock(field, **block)  # type: ignore[arg-type]
        self.head = nn.Sequential(
            nn.GroupNorm(32, 64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.block(self.stem(images)))


class Perceptron(nn.Module):
    """A field of two layers for states of ``width`` numbers a sample."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope of the state."""
        return self.b(torch.tanh(self.a(z))) - 0.1 * z


class StateModel(nn.Module):
    """The block alone; its loss is that of its last state."""

    def __init__(self, field: nn.Module, **block: object) -> None:
        super().__init__()
        self.block = nf.FDEBlock(field, **block)  # type: ignore[arg-type]

    def forward(self, z: Tensor) -> Tensor:
        """The last state."""
        return self.block(z)


def image_problem(device: torch.device, batch: int = 128) -> tuple[Tensor, Tensor]:
    """Images and labels; random, since only time and memory are looked at."""
    torch.manual_seed(0)
    return torch.rand(batch, 1, 28, 28, device=device), torch.randint(10, (batch,), device=device)
