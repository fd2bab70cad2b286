"""From an equation to the matrix of its scheme: which weights, and what the initial values contribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import series
from .formulas import by_lag, formula, later
from .inverse import inverse


@dataclass(frozen=True)
class Weights:
    """``c_n = Σ_i base_{i,n} z_0^{(i)} + Σ_j W_{n,j} v_j`` for each sum; the diagonal of the first is the local weight.

    Attributes:
        lagged: (sums, steps + 1, steps + 1, ...), the part that a history applies.
        extra: the same shape, what is added to it exactly; or None.
        stage: see :class:`Formula`.
        base: (initial values, steps + 1, ...), or None for ``z_0`` alone.
    """

    lagged: Tensor
    extra: Tensor | None
    first: int
    stage: str
    base: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        whole = self.lagged if self.extra is None else self.lagged + self.extra
        counted = torch.arange(whole.shape[2]) >= self.first
        return torch.where(counted.reshape(-1, *[1] * (whole.ndim - 3)), whole, 0.0)

    @property
    def lags(self) -> Tensor:
        """Of weights that depend on the lag alone: (sums, steps + 1, ...)."""
        return self.lagged[:, -1].flip(1)


def uniform(method: str, b: Tensor, h: Tensor, steps: int) -> Weights:
    """The derivative of one order (one for each row) and a step ``h`` that broadcasts to the state."""
    found = formula(method)
    sums = found.uniform(b, h, steps)
    extra = None
    if any(s.extra is not None for s in sums):
        extra = torch.stack([torch.zeros_like(s.lagged) if s.extra is None else s.extra for s in sums])
    return Weights(torch.stack([s.lagged for s in sums]), extra, found.first, found.stage)


def graded(method: str, b: Tensor, times: Tensor) -> Weights:
    """The same on increasing times since the start, (steps + 1, ...)."""
    found = formula(method)
    assert found.graded is not None, f"tests/reference/formulas.py has no weights of {method!r} on any grid"
    return Weights(torch.stack(found.graded(b, times)), None, found.first, found.stage)


def with_velocity(w: Weights, times: Tensor) -> Weights:
    """``z_0 + t z'_0``."""
    return replace(w, base=torch.stack([torch.ones_like(times), times]))


def tempered(w: Weights, rate: Tensor, times: Tensor, velocity: bool) -> Weights:
    """``e^{-λt} z`` has the untempered weights (Li, Deng and Zhao 2019), and ``z'_0 + λ z_0`` as its velocity."""
    fade = torch.exp(-rate * (times[:, None] - times))[None]
    one = torch.exp(-rate * times)
    base = [one * (1 + rate * times), one * times] if velocity else [one]
    extra = None if w.extra is None else w.extra * fade
    return replace(w, lagged=w.lagged * fade, extra=extra, base=torch.stack(base))


def several(
    method: str, orders: Sequence[Tensor], factors: Sequence[Tensor], h: Tensor, steps: int, velocity: bool
) -> Weights:
    """``Σ_i c_i D^{β_i} y = f - Σ_i c_i D^{β_i} (z_0 + t z'_0)``, where ``y = z - z_0 - t z'_0`` starts at rest.

    Grünwald and Letnikov's coefficients discretise the left-hand side; Caputo's derivatives of the line are known:
    the line itself for order 0, ``z'_0 t^{1-β}/Γ(2-β)`` for an order up to 1, and nothing above.
    """
    found = formula(method)
    terms = list(zip(orders, factors, strict=True))
    w = inverse(orders, factors, float(h), steps + 1).reshape(-1, *[1] * h.ndim)
    matrix = by_lag((w if found.stage == "implicit" else later(w))[:, None])
    times = torch.arange(steps + 1, dtype=h.dtype).reshape(-1, *[1] * h.ndim) * h
    t = times[found.first :]
    lines = [torch.ones_like(times), times][: 1 + velocity]
    known = [torch.zeros_like(t) for _ in lines]
    for b, c in terms:
        if float(b.detach()) == 0:
            known[0] = known[0] + c
        if velocity and float(b.detach()) <= 1:
            known[1] = known[1] + c * t ** (1 - b) / series.gamma(2 - b)
    past = matrix[:, found.first :]
    base = [line - (past * k).sum(1) for line, k in zip(lines, known, strict=True)]
    return Weights(matrix[None], None, found.first, found.stage, torch.stack(base))


def custom(method: str, w: Tensor) -> Weights:
    """Any lag weights (steps + 1, ...); every slope counts."""
    return Weights(by_lag(w[:, None])[None], None, 0, formula(method).stage)
