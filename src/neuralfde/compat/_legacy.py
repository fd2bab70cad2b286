"""torchfde's own formulas, for results that were published with them.

With ``y_k ≈ y(t_k)``, ``f_k = f(t_k, y_k)`` and ``G = h^β`` its schemes are, for k = 0, 1, …::

    predictor   y_{k+1} = y_0 + G/Γ(β+1) Σ_{j≤k} [(k+1-j)^β - (k-j)^β] f_j
    l1          y_{k+1} = GΓ(2-β) f_k - Σ_{j≤k} a_{k+1,j} y_j,   a_{k+1,0} = k^{1-β} - (k+1)^{1-β}
    trap        the same with                                     a_{k+1,0} = k^{1-β} - (k+β)(k+1)^{-β}
    gl          y_{k+1} = G f_k - Σ_{j≤k} c_{k+1-j} y_j,           c_m = (-1)^m binom(β, m)
    glmulti     y_{k+1} = [f_k - Σ_{j≤k} C_{k+1-j} y_j] / C_0,     C_m = Σ_i s_i h^{-β_i} c_m(β_i)

where ``a_{k+1,j} = (m+1)^{1-β} - 2m^{1-β} + (m-1)^{1-β}``, ``m = k+1-j``, for j ≥ 1; ``corrector`` is the predictor
followed by the product trapezoid rule. In ``trap``, ``gl`` and ``glmulti`` nothing holds the initial value fixed: they
discretise the Riemann-Liouville derivative. Its adjoint runs one of these recurrences backwards over vector-Jacobian
products, started from ∂L/∂y(T) (``-f``), or Euler's (``-o``), and sums h times the products of the parameters.
Weights are computed in the dtype of the state and on a float32 grid, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.structure import Structure, alike, as_numbers, structure_of
from ..errors import InputError

#: ``weights(k)``: what rows 0 … k contribute to row k + 1.
Weights = Callable[[int], Tensor]


@dataclass(frozen=True)
class Rule:
    """``row_{k+1} = base·row_0 + gain·f_k - Σ_j weights(k)_j r_j`` with r the rows, or the slopes if ``of_slopes``."""

    weights: Weights
    gain: Tensor | float
    of_slopes: bool = False
    scale: Tensor | float = 1.0

    def next(self, first: Tensor, rows: Sequence[Tensor], slopes: Sequence[Tensor], memory: int) -> Tensor:
        """Row k + 1 from rows and slopes 0 … k."""
        k = len(slopes) - 1
        start = 0 if memory == -1 else max(0, k + 1 - memory)
        past = slopes if self.of_slopes else rows
        total = _combine(self.weights(k)[start:], past[start : k + 1])
        return first + total if self.of_slopes else self.scale * (self.gain * slopes[k] - total)


def solve(
    func: Callable[..., Any],
    y0: Any,
    name: str,
    orders: Tensor,
    shares: Tensor,
    end: float,
    step: float,
    reverse: str | None,
    memory: int,
    history: bool,
    corrections: int,
    leaves: Sequence[Tensor],
) -> Any:
    """Solve as torchfde does; ``reverse`` is None for autograd, ``'f'`` or ``'o'`` for its adjoints."""
    structure = structure_of(y0)
    row = structure.pack(y0)
    steps = int(torch.tensor(end) / torch.tensor(step))
    times = torch.linspace(0, end, steps + 1)
    h = float(times[-1] / steps)
    orders, shares = orders.to(row), shares.to(row)
    corrector = _trapezoid(h, orders) if name == "corrector" else None
    scheme = rule(name, h, orders, shares, len(times))
    march = _March(func, structure, times.to(row), h, scheme, corrector, memory, corrections)
    if reverse is None:
        rows = march.run(row)
    else:
        stacked = _Adjoint.apply(march, reverse, history, row, *leaves)
        rows = list(stacked) if history else [stacked]
    return structure.unpack(torch.stack(rows) if history else rows[-1])


@dataclass(frozen=True, eq=False)
class _March:
    """One forward solution of a legacy scheme on flat rows."""

    func: Callable[..., Any]
    structure: Structure
    times: Tensor
    h: float
    rule: Rule
    corrector: Weights | None
    memory: int
    corrections: int

    def slope(self, k: int, row: Tensor) -> Tensor:
        """``f(t_k, row)`` as a row."""
        y = self.structure.unpack(row)
        found = as_numbers(self.func(self.times[k], y))
        if not alike(found, y):
            raise InputError("func must return a slope of the structure, shapes, dtype and device of y0.")
        return self.structure.pack(found)

    def run(self, first: Tensor) -> list[Tensor]:
        """All rows."""
        rows, slopes = [first], []
        for k in range(len(self.times) - 1):
            slopes.append(self.slope(k, rows[k]))
            row = self.rule.next(first, rows, slopes, self.memory)
            rows.append(row if self.corrector is None else self._correct(first, slopes, row))
        return rows

    def _correct(self, first: Tensor, slopes: Sequence[Tensor], row: Tensor) -> Tensor:
        assert self.corrector is not None
        k = len(slopes) - 1
        start = 0 if self.memory == -1 else max(0, k + 1 - self.memory)
        weights = self.corrector(k)
        known = first + _combine(weights[start:-1], slopes[start:])
        for _ in range(self.corrections):
            row = known + weights[-1] * self.slope(k + 1, row)
        return row


def rule(name: str, h: float, orders: Tensor, shares: Tensor, count: int) -> Rule:
    """The recurrence of a method."""
    beta = orders if name == "glmulti" else orders[0]
    if name in ("predictor", "corrector"):
        gain = h**beta / torch.exp(torch.lgamma(beta + 1))
        return Rule(lambda k: gain * _powers(_lags(k, beta), beta, (1, -1)), gain, of_slopes=True)
    if name in ("gl", "glmulti"):
        m = torch.arange(1, count + 1, dtype=orders.dtype, device=orders.device)[:, None]
        c = torch.cat([torch.ones_like(orders)[None], torch.cumprod(1 - (1 + orders) / m, dim=0)])
        if name == "gl":
            single = c[:, 0]
            return Rule(lambda k: single[1 : k + 2].flip(0), h**beta)
        total = (c * shares * h**-orders).sum(-1)
        return Rule(lambda k: total[1 : k + 2].flip(0), 1.0, scale=1 / total[0])
    return Rule(_differences(name, beta), h**beta * torch.exp(torch.lgamma(2 - beta)))


def _differences(name: str, beta: Tensor) -> Weights:
    """Weights of ``l1`` and ``trap``: second differences of m^{1-β}, and the first row's own."""

    def weights(k: int) -> Tensor:
        lag = _lags(k, beta)
        w = _powers(lag + 1, 1 - beta, (1, -2, 1))
        n = lag[0]
        head = (n - 1) ** (1 - beta) - (n ** (1 - beta) if name == "l1" else (n - 1 + beta) * n**-beta)
        return torch.cat([head[None], w[1:]])

    return weights


def _trapezoid(h: float, orders: Tensor) -> Weights:
    """The product trapezoid rule: weights of slopes 0 … k + 1 in row k + 1."""
    beta = orders[0]
    gain = h**beta / torch.exp(torch.lgamma(beta + 2))

    def weights(k: int) -> Tensor:
        inner = _powers(_lags(k, beta) + 1, beta + 1, (1, -2, 1))[1:]
        head = k ** (beta + 1) - (k - beta) * (k + 1) ** beta
        return gain * torch.cat([head[None], inner, torch.ones_like(beta)[None]])

    return weights


def _lags(k: int, like: Tensor) -> Tensor:
    return torch.arange(k + 1, 0, -1, dtype=like.dtype, device=like.device)


def _powers(base: Tensor, power: Tensor, signs: Sequence[int]) -> Tensor:
    """``Σ_i signs_i (base - i)^power``."""
    return torch.stack([s * (base - i) ** power for i, s in enumerate(signs)]).sum(0)


def _combine(weights: Tensor, rows: Sequence[Tensor]) -> Tensor:
    total: Tensor = _Combine.apply(weights, *rows)
    return total


class _Combine(torch.autograd.Function):
    """``Σ_j w_j r_j``; keeps references to the rows, never a copy of the past."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *rows: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *rows)
        return torch.einsum("j,jgw->gw", weights, torch.stack(rows))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, *rows = ctx.saved_tensors
        (grad,) = grads
        own = torch.stack([(r * grad).sum() for r in rows]) if ctx.needs_input_grad[0] else None
        parts = [w * grad if needed else None for w, needed in zip(weights, ctx.needs_input_grad[1:], strict=True)]
        return own, *parts


class _Adjoint(torch.autograd.Function):
    """torchfde's reverse equation, an approximation of the gradient."""

    @staticmethod
    def forward(ctx: Any, march: _March, reverse: str, history: bool, first: Tensor, *leaves: Tensor) -> Tensor:
        with torch.no_grad():
            rows = march.run(first.detach())
        ctx.march, ctx.reverse, ctx.history, ctx.leaves = march, reverse, history, leaves
        ctx.save_for_backward(*rows)
        return torch.stack(rows) if history else rows[-1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        march, rows, leaves = ctx.march, ctx.saved_tensors, ctx.leaves
        steps = len(rows) - 1
        multipliers, products = [grad.sum(0) if ctx.history else grad], []
        totals = [torch.zeros_like(p) for p in leaves]
        for k in range(steps):
            n = steps - k
            z = rows[n].detach().requires_grad_()
            with torch.enable_grad():
                v = march.slope(n, z)
            found = torch.autograd.grad(v, [z, *leaves], multipliers[k], allow_unused=True)
            products.append(torch.zeros_like(z) if found[0] is None else found[0])
            for total, g in zip(totals, found[1:], strict=True):
                if g is not None:
                    total.add_(g, alpha=march.h)
            if ctx.reverse == "o":
                multipliers.append(multipliers[k] + march.h * products[k])
            else:
                with torch.no_grad():
                    multipliers.append(march.rule.next(multipliers[0], multipliers, products, -1))
        return (None, None, None, multipliers[-1], *totals)
