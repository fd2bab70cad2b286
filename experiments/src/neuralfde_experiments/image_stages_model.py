"""An image classifier of several fractional stages whose weights change with time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralfde import FDEBlock
from neuralfde.errors import InputError

#: Added to t / piece before it is rounded down: 0.7 / 0.1 is 6.9999998 in single precision.
ROUNDING = 1e-3


class StageField(nn.Module):
    """``f(t, z) = -K(t)ᵀ σ(norm(K(t) z))``: a convolution, instance norm, SiLU, and the transposed convolution.

    Ruthotto and Haber, "Deep Neural Networks Motivated by Partial Differential Equations", 2020: the parabolic network,
    with weights that are constant on each piece of time. The piece is chosen on the device, so that it also works in a
    captured solve. Scales are stored as the difference from 1, so that weight decay pulls them to 1.

    Args:
        width: channels of the state.
        hidden: channels between the two convolutions.
        pieces: the number of equally long pieces of time, each with its own weights.
        t: the horizon.
        channels_last: the state has its channels last, so that convolutions read and write it without copies.

    Shapes:
        ``t`` 0-d, ``z`` (batch, width, rows, columns), or (batch, rows, columns, width), to the same.
    """

    def __init__(self, width: int, hidden: int, pieces: int, t: float, channels_last: bool = False) -> None:
        super().__init__()
        self.rate, self.last, self.channels_last = pieces / t, pieces - 1, channels_last
        # 9 taps of all channels in: a view with channels last, which convolutions of such states take without a copy
        self.kernel = nn.Parameter(torch.empty(pieces, hidden, 9 * width).normal_(std=math.sqrt(2 / (9 * hidden))))
        self.affine = nn.Parameter(torch.zeros(pieces, 2, hidden))  # scale - 1 and shift of the norm
        self.bias = nn.Parameter(torch.zeros(pieces, width))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The derivative at time ``t`` in state ``z``."""
        piece = (t * self.rate + ROUNDING).long().clamp(max=self.last).view(1)
        kernel, affine, bias = (x.index_select(0, piece)[0] for x in (self.kernel, self.affine, self.bias))
        kernel = kernel.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2)
        z = z.permute(0, 3, 1, 2) if self.channels_last else z
        z = F.conv2d(z, kernel, padding=1)
        z = F.silu(F.group_norm(z, z.shape[1], 1 + affine[0], affine[1]))  # a group for each channel: instance norm
        z = -F.conv_transpose2d(z, kernel, bias, padding=1)
        return z.permute(0, 2, 3, 1) if self.channels_last else z


class StagedFDE(nn.Module):
    """A convolution, fractional stages with a strided convolution between any two, and a linear head.

    From stage to stage the sides of the image are halved and the channels doubled.

    Args:
        shape: channels, rows and columns of an image.
        classes: the number of classes.
        width: channels of the first stage.
        expansion: channels between the convolutions of a field, per channel of its state.
        halvings: strided convolutions; there is one stage more.
        pieces: sets of weights of a field, each for an equal part of the time.
        t: the horizon T of each stage.
        channels_last: keep states with their channels last.
        options: further options of ``neuralfde.FDEBlock``: ``order``, ``step``, ``adjoint``, …

    Shapes:
        images (batch, channels, rows, columns) to logits (batch, classes).
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        width: int = 24,
        expansion: int = 2,
        halvings: int = 2,
        pieces: int = 10,
        t: float = 1.0,
        channels_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if min(shape[1:]) < 2 << halvings:
            raise InputError(f"downsamplings={halvings} leaves less than two pixels of {min(shape[1:])}; use fewer.")
        self.channels_last = channels_last
        widths = [width << k for k in range(halvings + 1)]
        self.stem = nn.Conv2d(shape[0], width, 3, padding=1)
        fields = [StageField(w, expansion * w, pieces, t, channels_last) for w in widths]
        self.stages = nn.ModuleList(FDEBlock(f, t=t, **options) for f in fields)
        self.between = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(1, w), nn.ReLU(), nn.Conv2d(w, 2 * w, 3, stride=2, padding=1))
            for w in widths[:-1]
        )
        last = widths[-1]
        self.head = nn.Sequential(
            nn.GroupNorm(1, last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits of a batch of images."""
        z = self.stem(images)
        for k, stage in enumerate(self.stages):
            z = self.between[k - 1](z) if k else z
            z = z.to(self.stem.weight.dtype)  # the state keeps its precision under autocast
            if self.channels_last:
                z = stage(z.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)
            else:
                z = stage(z)
        with torch.autocast(z.device.type, enabled=False):  # the head is small: full precision for the logits
            logits: Tensor = self.head(z)
        return logits
