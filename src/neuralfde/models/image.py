"""The image model of the neural FDE paper: a convolutional stem, a fractional equation, a linear head."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralfde.base.checks import real, whole
from neuralfde.errors import InputError, InputTypeError
from neuralfde.nn import FDEBlock

SMALLEST_SIDE = 3  # pixels of the state where automatic downsampling stops


class TimeConv2d(nn.Module):
    """A 3 × 3 convolution that sees the time as one more input channel.

    Chen et al., "Neural Ordinary Differential Equations", 2018, section 3. By linearity

        conv([t, z]) = conv(z) + t · conv(1)

    so the constant channel is never laid out: ``conv(1)`` is one small product with the mask of the taps that fall
    inside the image, and the wide convolution keeps a channel count that suits the hardware.

    Args:
        width: channels in and out.
        time: without it, a plain convolution.

    Shapes:
        ``t`` 0-d, ``z`` (batch, width, rows, columns) to the same.
    """

    def __init__(self, width: int, time: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.time: nn.Parameter | None = None
        if time:
            bound = 1 / math.sqrt(9 * (width + 1))  # as one convolution of width + 1 channels would start
            self.time = nn.Parameter(torch.empty(width, 9).uniform_(-bound, bound))

    def forward(self, t: Tensor, z: Tensor, taps: Tensor) -> Tensor:
        """The convolution of ``[t, z]``; ``taps`` is ``taps_inside`` of the image."""
        out: Tensor = self.conv(z)
        if self.time is None:
            return out
        ramp = (self.time[:, :, None] * taps).sum(1)  # not a product of matrices: autocast would round the time
        return torch.addcmul(out, t, ramp.view(1, -1, *z.shape[-2:]))


def taps_inside(rows: int, columns: int) -> Tensor:
    """For each tap of a padded 3 × 3 kernel, the pixels where it falls inside the image: (9, rows · columns)."""
    return F.unfold(torch.ones(1, 1, rows, columns), 3, padding=1)[0]


class ConvField(nn.Module):
    """``f(t, z)`` of the image model: norm, then ``depth`` times relu, convolution, norm.

    Kang et al., "Efficient Training of Neural Fractional-Order Differential Equation via Adjoint Backpropagation",
    section "Image Classification"; the layers are those of Chen et al., 2018.

    Args:
        width: channels.
        size: rows and columns of the state.
        depth: convolutions.
        time: concatenate the time as a channel.
        channels_last: the state has its channels last, so that convolutions read and write it without copies.

    Shapes:
        ``t`` 0-d, ``z`` (batch, width, rows, columns), or (batch, rows, columns, width), to the same.
    """

    taps: Tensor

    def __init__(
        self, width: int, size: tuple[int, int], depth: int = 2, time: bool = True, channels_last: bool = False
    ) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.norms = nn.ModuleList(norm(width) for _ in range(depth + 1))
        self.convs = nn.ModuleList(TimeConv2d(width, time) for _ in range(depth))
        self.size, there = size, torch.get_default_device()
        with torch.device("cpu"):  # no file holds the mask, so that it has its values also in a model made on meta
            taps = taps_inside(*size)
        self.register_buffer("taps", taps if there.type == "meta" else taps.to(there), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and convert as any module; the mask keeps its values, which ``to_empty`` would leave to chance."""
        super()._apply(fn, recurse)
        with torch.device("cpu"):
            self.taps = taps_inside(*self.size).to(self.taps)
        return self

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The derivative at time ``t`` in state ``z``."""
        if self.channels_last:
            z = z.permute(0, 3, 1, 2)
        z = self.norms[0](z)
        for conv, after in zip(self.convs, list(self.norms)[1:], strict=True):
            z = after(conv(t, F.relu(z), self.taps))
        return z.permute(0, 2, 3, 1) if self.channels_last else z


class ConvFDE(nn.Module):
    """An image classifier whose middle is a fractional equation.

    Kang et al., "Efficient Training of Neural Fractional-Order Differential Equation via Adjoint Backpropagation",
    section "Image Classification". With stem ``g`` and head ``q``

        logits = q(z(T)),    D^β z = f(t, z),    z(0) = g(image)

    Args:
        shape: channels, rows and columns of an image.
        classes: how many classes.
        width: channels of the state.
        depth: convolutions in the field.
        downsamplings: strided convolutions in the stem, each halving the state; default: as many as leave it at least
            3 pixels wide, at most two (28 × 28 gives 6 × 6, as in the paper; 8 × 8 gives 3 × 3).
        order: β; with ``learn_order`` its initial value.
        learn_order: train the order too.
        t: the time T.
        step: the step h.
        time: concatenate the time as a channel in the field.
        channels_last: keep the state with its channels last.
        options: further options of ``neuralfde.FDEBlock``: ``method``, ``adjoint``, ``history``, ``storage``, …

    Shapes:
        images (batch, channels, rows, columns) to logits (batch, classes).
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 28, 28),
        classes: int = 10,
        width: int = 64,
        depth: int = 2,
        downsamplings: int | None = None,
        order: float = 0.5,
        learn_order: bool = False,
        t: float = 1.0,
        step: float | None = 0.1,
        time: bool = True,
        channels_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(shape, tuple | list) or len(shape) != 3:
            raise InputError(f"shape={shape!r} must be (channels, rows, columns) of an image, such as (1, 28, 28).")
        for name, value in (("classes", classes), ("width", width)):
            whole(name, value)
        real("t", t, above=0, hint="The head takes the state at this time.")
        self.channels_last, self.shape = channels_last, tuple(shape)
        halvings, size = state_size(shape[1], shape[2], downsamplings)
        self.size = size if time else None  # without the time as a channel any size will do
        layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3)]
        for _ in range(halvings):
            layers += [norm(width), nn.ReLU(), nn.Conv2d(width, width, 4, stride=2, padding=1)]
        self.stem = nn.Sequential(*layers)
        func = ConvField(width, size, depth, time, channels_last)
        self.fde = FDEBlock(func, order=order, learn_order=learn_order, t=t, step=step, **options)
        self.head = nn.Sequential(
            norm(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits of a batch of images."""
        if images.ndim != 4 or images.shape[1] != self.shape[0]:
            raise InputError(
                f"images have shape {tuple(images.shape)}; they must be (batch, channels, rows, columns), here "
                f"(batch, {', '.join(map(str, self.shape))}). For one image or one of grey values add axes: x[None]."
            )
        own = self.stem[0].weight.dtype
        if not (images.is_floating_point() or images.is_complex()):
            raise InputTypeError(f"images have dtype {images.dtype}, as in a file: use images.float() / 255.")
        if images.dtype != own and not (torch.is_autocast_enabled(images.device.type) and not images.is_complex()):
            raise InputTypeError(f"images have dtype {images.dtype}, the model {own}: convert one with .to(dtype).")
        z = self.stem(images).to(own)  # the state keeps its precision under autocast
        if self.size not in (None, tuple(z.shape[2:])):
            raise InputError(
                f"images of {images.shape[2]} × {images.shape[3]} pixels in a model for {self.shape[1]} × "
                f"{self.shape[2]}: make one for them, ConvFDE({(*images.shape[1:],)}, ...), or with time=False."
            )
        if self.channels_last:
            z = self.fde(z.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)
        else:
            z = self.fde(z)
        with torch.autocast(z.device.type, enabled=False):  # small, and the logits are worth full precision
            logits: Tensor = self.head(z)
        return logits


def state_size(rows: int, columns: int, downsamplings: int | None) -> tuple[int, tuple[int, int]]:
    """How many strided convolutions there are, and the rows and columns of the state."""
    rows, columns = rows - 2, columns - 2
    count = 0
    while count < (2 if downsamplings is None else downsamplings):
        if downsamplings is None and min(rows, columns) // 2 < SMALLEST_SIDE:
            break
        rows, columns, count = rows // 2, columns // 2, count + 1
    if min(rows, columns) < 1:
        raise InputError(f"downsamplings={downsamplings} leaves nothing of the image; use fewer.")
    return count, (rows, columns)


def norm(width: int) -> nn.GroupNorm:
    """Normalisation over groups of two channels, or of more where there would be over 32 groups (the paper's 32 of 64).

    Groups of one channel would leave the head, which averages over the image, next to nothing to see.
    """
    return nn.GroupNorm(math.gcd(32, width, max(1, width // 2)), width)
