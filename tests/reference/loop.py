"""The textbook loop, differentiated by autograd alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Slope = Callable[[int, Tensor], Tensor]

# Fixed-point iterations; a contraction by 2/3 stands still to rounding by then.
_MOST = 2000


def solve(f: Slope, initial: Sequence[Tensor], matrix: Tensor, stage: str, base: Tensor | None = None) -> list[Tensor]:
    """All states ``z_0 … z_N``; ``f(n, z)`` is the slope at grid point ``n``.

    ``initial`` is ``z_0``, and ``z'_0`` where ``base`` has a second line; see :class:`Weights` for the others.
    """
    zs, vs = [initial[0]], [f(0, initial[0])]
    for n in range(1, matrix.shape[1]):
        c = initial[0] if base is None else sum(b[n] * x for b, x in zip(base, initial, strict=True))
        sums = [c + weighted(row[n, :n], vs) for row in matrix]
        local = matrix[0, n, n]
        if stage == "explicit":
            z = sums[0]
        elif stage == "corrected":
            z = sums[0] + local * f(n, sums[1])
        elif stage == "extrapolated":
            vs.append(f(n, sums[1]))
            zs.append(sums[0] + local * vs[-1])
            continue
        else:
            z = implicit(lambda x, n=n: f(n, x), sums[0], local)
        zs.append(z)
        vs.append(f(n, z))
    return zs


def weighted(row: Tensor, vs: list[Tensor]) -> Tensor:
    """``Σ_j w_j v_j``; summed again in the backward pass, so that no step keeps a copy of the whole past."""

    def total(w: Tensor, *slopes: Tensor) -> Tensor:
        past = torch.stack(slopes)
        return torch.tensordot(w.flatten(), past, 1) if w.numel() == len(slopes) else (w * past).sum(0)

    small = len(vs) * vs[0].numel() < 1 << 13
    return total(row, *vs) if small else checkpoint(total, row, *vs, use_reentrant=False)


def implicit(f: Callable[[Tensor], Tensor], c: Tensor, local: Tensor) -> Tensor:
    """``z = c + w_0 f(z)``; its gradient ``μ = g + Jᵀ w_0 μ`` is found by the same iteration."""
    with torch.no_grad():
        start = _still(lambda z: c + local * f(z), c)
    z = start.requires_grad_()
    v = f(z)

    def pull(grad: Tensor) -> Tensor:
        def transposed(mu: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(v, z, local.detach() * mu, retain_graph=True, allow_unused=True)
            return torch.zeros_like(mu) if found is None else found  # a func of time and parameters alone

        return _still(lambda mu: grad + transposed(mu), grad)

    found = c + local * v
    if found.requires_grad and v.requires_grad:  # a func of time alone has no stage
        found.register_hook(pull)
    return found


def _still(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    for _ in range(_MOST):
        new = step(x)
        change = float((new - x).abs().max())
        x = new
        if change <= 1e-16 * float(x.abs().max()):
            return x
    assert change <= 1e-14 * float(x.abs().max()), f"a stage of the reference moves by {change} still: shorten its step"
    return x
