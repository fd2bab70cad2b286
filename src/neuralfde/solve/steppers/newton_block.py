"""Newton's method for a few implicit steps of a tiny state at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...base.caches import Cache
from ...base.policy import NEWTON_ITERATIONS, NEWTON_ROUGH
from .base import largest
from .block import BlockOfSteps

_UNITS: Cache[tuple[Tensor, Tensor]] = Cache("unit matrices of Newton's method", 64)


def newton(
    block: BlockOfSteps, base: Tensor, weights: Tensor, times: Tensor, scale: Tensor, tol: float
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Newton's method for ``v = f(t, base + W v)``, for all steps at once; None if it does not converge.

    Returns states, slopes, and a pair (put, got): states at which ``func`` was evaluated, and its values. One call of
    ``func`` gives the slopes and the finite differences for the Jacobians. Changes are relative to the largest value of
    each element so far, which is ``scale`` before these steps.
    """
    count, width = base.shape
    key = (count, width, base.dtype, base.device)
    one, unit = _UNITS.get(key, lambda: _units(*key))
    slopes = block.evaluate(times[:count], torch.addmm(base, weights, block.latest.expand(count, width))[None])[0]
    states = torch.addmm(base, weights, slopes)
    size, most, outer = math.inf, largest(scale), weights[:, None, :, None]
    root = math.sqrt(torch.finfo(base.dtype).eps)
    reach, rough = _reach(states, root), max(NEWTON_ROUGH, 4 * root)
    probes = unit * reach
    for _ in range(NEWTON_ITERATIONS):
        found = block.evaluate(times, states + probes)
        here = found[0]
        jacobians = ((found[1:] - here).permute(1, 2, 0) / reach).unsqueeze(2)
        matrix = torch.addcmul(one, jacobians, outer, value=-1.0).reshape(count * width, -1)
        update, _ = torch.linalg.solve_ex(matrix, (here - slopes).reshape(-1, 1))
        slopes = slopes + update.view(count, width)
        before, states = states, torch.addmm(base, weights, slopes)
        change = states - before
        last, size, now = size, largest(change), largest(states)
        if not math.isfinite(size):
            return None
        # the next change would be about this share of the last one: it converges superlinearly, once it is near
        share = 0.0 if size == 0 else 1.0 if last > now else max((size / last) ** 1.5, rough)
        if size * share <= tol * max(now, most) and share < 1:
            top = torch.maximum(states.abs().cummax(0).values, scale)
            if share * largest(change / torch.where(top > 0, top, 1.0)) <= tol:
                return (states, slopes, before, here) if math.isfinite(largest(jacobians)) else None
        if size > now / 2:  # states of another size: their differences were over another length
            reach = _reach(states, root)
            probes = unit * reach
    return None


def _reach(states: Tensor, root: float) -> Tensor:
    """The lengths of finite differences for the elements of these states."""
    top = states.abs().amax(0)
    return torch.where(top > 0, top, largest(top) or 1.0) * root


def _units(count: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The identity for all elements of so many steps, and the directions of finite differences, the first of them 0."""
    one = torch.eye(count * width, dtype=dtype, device=device).view(count, width, count, width)
    return one, torch.eye(width + 1, dtype=dtype, device=device)[:, 1:].unsqueeze(1)
