"""Random changes of image batches, computed on the device for the whole batch at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from neuralfde.errors import InputError, nearest


def augment(images: Tensor, kinds: str, pad: int, generator: torch.Generator) -> Tensor:
    """Apply the named changes one after the other.

    Args:
        images: grey values in [0, 1], background 0.
        kinds: names joined by ``+``: ``crop`` (shift by up to ``pad`` pixels), ``flip`` (left to right), ``affine``
            (turn, scale and shear a little), ``bend`` (the same and bend a little), ``elastic`` (the same by more),
            ``erase`` (a random square becomes 0), ``none``.
        pad: pixels of padding before the crop.
        generator: the source of random numbers, on the device of the images.

    Shapes:
        (batch, 1, rows, columns) to the same.
    """
    for kind in kinds.split("+"):
        if kind == "crop":
            images = random_crop(images, pad, generator)
        elif kind in CHANGES:
            images = CHANGES[kind](images, generator)
        elif kind != "none":
            raise InputError(f"unknown augmentation {kind!r}. {nearest(kind, ('none', 'crop', *CHANGES))}")
    return images


def random_crop(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Pad with background, then crop to the original size at a random position."""
    count, _, rows, columns = images.shape
    shift = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator, device=images.device)
    y = shift[0] + torch.arange(rows, device=images.device)
    x = shift[1] + torch.arange(columns, device=images.device)
    which = torch.arange(count, device=images.device)[:, None, None]
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    return padded[which, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2).contiguous()


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(-1), images)


def random_affine(
    images: Tensor, generator: torch.Generator, degrees: float = 12.0, scale: float = 0.12, shear: float = 0.15
) -> Tensor:
    """Turn by up to ``degrees``, scale each axis by ``1 ± scale`` and shear by up to ``shear``, about the middle."""
    drawn = 2 * torch.rand(4, len(images), generator=generator, device=images.device) - 1
    return F.grid_sample(images, affine_grid(images, drawn, degrees, scale, shear), align_corners=False)


def random_elastic(
    images: Tensor,
    generator: torch.Generator,
    degrees: float = 20.0,
    scale: float = 0.2,
    shear: float = 0.2,
    bend: float = 1.2,
    knots: int = 5,
) -> Tensor:
    """Turn, scale, shear and bend each image by a random share between 0 and 1, in one interpolation.

    Simard et al., "Best practices for convolutional neural networks applied to visual document analysis", 2003. The
    displacements are normally distributed, with a deviation of ``bend`` pixels, at ``knots × knots`` points, and smooth
    between them: with five on 28 pixels, neighbouring pixels move apart by as much as theirs do. The interpolation is
    cubic: a linear one would blur strokes, and test images are not blurred.
    """
    count, _, rows, columns = images.shape
    drawn = torch.rand(5, count, generator=generator, device=images.device)
    share, drawn = drawn[0], drawn[0] * (2 * drawn[1:] - 1)
    moved = torch.randn(count, 2, knots, knots, generator=generator, device=images.device) * share.view(-1, 1, 1, 1)
    moved = F.interpolate(2 * bend * moved, (rows, columns), mode="bicubic", align_corners=True)
    moved = torch.stack([moved[:, 0] / columns, moved[:, 1] / rows], -1)
    grid = affine_grid(images, drawn, degrees, scale, shear) + moved
    return F.grid_sample(images, grid, mode="bicubic", align_corners=False).clamp(0, 1)


def random_bend(images: Tensor, generator: torch.Generator) -> Tensor:
    """:func:`random_elastic` by no more than :func:`random_affine`, and half the bending."""
    return random_elastic(images, generator, degrees=12.0, scale=0.12, shear=0.15, bend=0.6)


def affine_grid(images: Tensor, drawn: Tensor, degrees: float, scale: float, shear: float) -> Tensor:
    """Where each pixel of a turned, scaled and sheared image comes from: (batch, rows, columns, 2).

    ``drawn`` (4, batch) are the shares of the angle, of the scale of either axis and of the shear, from -1 to 1.
    """
    angle = drawn[0] * math.radians(degrees)
    cos, sin, skew = torch.cos(angle), torch.sin(angle), drawn[3] * shear
    sx, sy = 1 + scale * drawn[1], 1 + scale * drawn[2]
    zero = torch.zeros_like(angle)
    turn = torch.stack([cos * sx, (skew * cos - sin) * sy, zero, sin * sx, (skew * sin + cos) * sy, zero], -1)
    return F.affine_grid(turn.view(-1, 2, 3), list(images.shape), align_corners=False)


def random_erase(images: Tensor, generator: torch.Generator, share: float = 0.35) -> Tensor:
    """Blank a square of up to ``share`` of the side at a random place in every image."""
    count, _, rows, columns = images.shape
    drawn = torch.rand(3, count, 1, generator=generator, device=images.device)
    half = drawn[0] * share * rows / 2
    y = (torch.arange(rows, device=images.device) - drawn[1] * rows).abs() < half
    x = (torch.arange(columns, device=images.device) - drawn[2] * columns).abs() < half
    return images.masked_fill((y[:, :, None] & x[:, None, :])[:, None], 0.0)


CHANGES = {
    "flip": random_flip,
    "affine": random_affine,
    "bend": random_bend,
    "elastic": random_elastic,
    "erase": random_erase,
}
KINDS = ("none", "crop", *CHANGES)
