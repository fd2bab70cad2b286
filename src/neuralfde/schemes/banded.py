"""Stage matrices with few diagonals: found by coloured products, solved by cyclic reduction or block elimination."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..base.policy import BAND_BLOCK, BAND_WIDEST
from .jacobian import Jacobian, agrees, irregular
from .linear import Factor, Linear, inverted, weight_of


class _Bands(Factor):
    """Block elimination ``M = (I + L) D (I + U)``: L and U have one block per row, next to the diagonal."""

    def __init__(self, lower: Tensor, middle: Tensor, upper: Tensor, size: int, width: int) -> None:
        # all (samples, blocks, q, q): lower[k] multiplies block k - 1, upper[k] block k + 1; middle is D inverted
        self.parts, self.middle, self.size, self.width = (lower, upper), middle, size, width
        self.lower, self.upper = lower.unbind(1), upper.unbind(1)
        self.samples, self.singular = len(lower), not bool(torch.isfinite(middle).all())
        self.why = _told(2 * width + 1, self.samples, size)

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        if transposed:
            return self._transposed.solve(r)
        samples, blocks, q, _ = self.middle.shape
        y = pad(r.reshape(samples, -1), (0, blocks * q - self.size)).view(samples, blocks, q, 1)
        parts = list(y.unbind(1))
        for k in range(1, blocks):
            parts[k] = torch.baddbmm(parts[k], self.lower[k], parts[k - 1], alpha=-1)
        parts = list((self.middle @ torch.stack(parts, 1)).unbind(1))
        for k in range(blocks - 2, -1, -1):
            parts[k] = torch.baddbmm(parts[k], self.upper[k], parts[k + 1], alpha=-1)
        return torch.stack(parts, 1).reshape(samples, -1)[:, : self.size].reshape(r.shape)

    @cached_property
    def _transposed(self) -> _Bands:
        lower, upper = self.parts[1].mT.roll(1, 1), self.parts[0].mT.roll(-1, 1)
        return _Bands(lower, self.middle.mT, upper, self.size, self.width)


@dataclass(frozen=True)
class Banded(Linear):
    """Few diagonals beside the main one, in the memory order of the elements, as on a one-dimensional grid."""

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor | None:
        """See :class:`Linear`."""
        shape = jacobian.shape
        many = len(shape) > 1 and jacobian.parts != 1
        for samples in dict.fromkeys((shape[0] if many else 1, 1)):
            size = shape.numel() // samples
            found = self._band(jacobian, samples, size)
            if found is not None:
                own = weight_of(w0, shape).reshape(samples, size)
                if found.shape[-1] == 3:
                    reduced = Reduced(own[..., None] * found)
                    if reduced.holds(own):
                        return reduced
                return _eliminated(own, found, size, (found.shape[-1] - 1) // 2)
        return None

    def _band(self, jacobian: Jacobian, samples: int, size: int) -> Tensor | None:
        """``J[i, i + o]`` at (sample, i, b + o) for offsets up to the half width b; None if there is no narrow band."""
        like, place = jacobian.z.detach(), torch.arange(size, device=jacobian.z.device)
        u, far = irregular(like).view(samples, size), 2 * BAND_WIDEST + 2
        seen = jacobian.vjp((u * (place % far == 0)).view(like.shape)).reshape(samples, size)
        apart = torch.minimum(place % far, far - place % far)
        b = int((apart * (seen != 0).any(0)).max())
        if b > BAND_WIDEST or size <= 2 * b + 1:
            return None
        colours = (place % (2 * b + 1) == torch.arange(2 * b + 1, device=place.device)[:, None]).to(like.dtype)
        patterns = colours[:, None].expand(-1, samples, -1).reshape(-1, *like.shape)
        found = jacobian.rows(patterns).reshape(2 * b + 1, samples, size)
        target = place[:, None] + torch.arange(-b, b + 1, device=place.device)  # (row, offset) → column
        inside = (target >= 0) & (target < size)
        band = found[(place % (2 * b + 1))[:, None], :, target.clamp(0, size - 1)].permute(2, 0, 1) * inside
        product = torch.zeros_like(u)
        for o in range(2 * b + 1):
            product.index_add_(1, target[:, o].clamp(0, size - 1), u * band[..., o])
        return band if agrees(product, jacobian.vjp(u.view(like.shape)).reshape(samples, size)) else None


def _eliminated(w0: Tensor, band: Tensor, size: int, b: int) -> _Bands:
    """Block elimination without pivoting between blocks; inside a block there is pivoting."""
    samples = len(band)
    q = max(b, 16, BAND_BLOCK // math.isqrt(samples))  # with many samples smaller blocks are efficient
    blocks = -(-size // q)
    rows = pad(-w0[..., None] * band, (0, 0, 0, blocks * q - size)).view(samples, blocks, q, -1)
    inner = torch.arange(q, device=band.device)
    wide = rows.new_zeros(samples, blocks, q, 3 * q)
    columns = (q + inner[:, None] + torch.arange(-b, b + 1, device=band.device)).expand(samples, blocks, -1, -1)
    wide.scatter_(3, columns, rows)
    wide[..., inner, q + inner] += 1
    left, here, right = (part.unbind(1) for part in wide.split(q, 3))
    lower, middle, upper = [left[0]], [], []
    for k in range(blocks):
        pivot = here[k] if k == 0 else here[k] - lower[k] @ right[k - 1]
        inverse = inverted(pivot)
        middle.append(inverse)
        upper.append(inverse @ right[k])
        if k + 1 < blocks:
            lower.append(left[k + 1] @ inverse)
    return _Bands(torch.stack(lower, 1), torch.stack(middle, 1), torch.stack(upper, 1), size, b)


class Reduced(Factor):
    """Parallel cyclic reduction of ``I - B`` (Hockney 1965), for all samples and rows at once, without pivoting.

    ``bands`` (…, n, 3) are the diagonals of B.
    """

    def __init__(self, bands: Tensor) -> None:
        lower, middle, upper = (-bands).unbind(-1)
        self.bands, self.samples, n = bands, bands.shape[:-2].numel(), bands.shape[-2]
        self.levels: list[tuple[int, Tensor, Tensor]] = []
        here, step = middle + 1, 1
        lower, upper = pad(lower[..., 1:], (1, 0)), pad(upper[..., :-1], (0, 1))  # entries outside the matrix are 0
        while step < n:
            down, up = -lower / _shifted(here, step, 1), -upper / _shifted(here, -step, 1)
            here = here + down * _shifted(upper, step) + up * _shifted(lower, -step)
            lower, upper = down * _shifted(lower, step), up * _shifted(upper, -step)
            self.levels.append((step, down, up))
            step *= 2
        self.inverse = here.reciprocal()
        self._rooms: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
        self.why = f"{_told(3, self.samples, n)} by cyclic reduction"

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """See :class:`Factor`."""
        if transposed:
            return self._transposed.solve(r)
        shape, r = r.shape, r if r.numel() > self.inverse.numel() else r.reshape(self.inverse.shape)
        room = self._rooms.setdefault(r.shape, []) or self._room(r.shape)
        here = room[0][0].copy_(r.detach()) if room else r
        for (here, before, behind, there), (_, down, up) in zip(room, self.levels, strict=True):
            here = torch.addcmul(here, down, before, out=there).addcmul_(up, behind)
        return (here * self.inverse).view(shape)

    def _room(self, shape: torch.Size) -> list[tuple[Tensor, ...]]:
        """For each level its right-hand side, the same shifted both ways, and the next one: views of two buffers."""
        n, room = shape[-1], self._rooms[shape]
        one, other = self.inverse.new_zeros(2, *shape[:-1], 3 * n)
        for step, *_ in self.levels:
            room.append((*(one[..., n + k :][..., :n] for k in (0, -step, step)), other[..., n : 2 * n]))
            one, other = other, one
        return room

    @cached_property
    def _transposed(self) -> Reduced:
        lower, middle, upper = self.bands.unbind(-1)
        return Reduced(torch.stack([_shifted(upper, 1), middle, _shifted(lower, -1)], -1))

    def holds(self, like: Tensor) -> bool:
        """Whether a trial system is solved nearly to rounding, although there is no pivoting."""
        one = torch.ones_like(like)
        x, (lower, middle, upper) = self.solve(one), self.bands.unbind(-1)
        rest = x - lower * _shifted(x, 1) - middle * x - upper * _shifted(x, -1) - one
        return bool(rest.abs().max() <= 1e4 * torch.finfo(like.dtype).eps * x.abs().max().clamp(min=1))


def _told(diagonals: int, samples: int, size: int) -> str:
    return f"banded, {diagonals} diagonals of " + (f"{samples} samples of " if samples > 1 else "") + f"{size} elements"


def _shifted(x: Tensor, by: int, fill: float = 0.0) -> Tensor:
    """``x_{i-by}``, with ``fill`` beyond the ends."""
    beyond, n = torch.full_like(x[..., : abs(by)], fill), x.shape[-1]
    return torch.cat([beyond, x[..., : n - by]] if by > 0 else [x[..., -by:], beyond], -1)
