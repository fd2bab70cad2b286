"""Implicit stages with a known linear part: solved directly, or by Newton's method with its factors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..base.policy import DENSE_NUMBERS
from ..schemes.jacobian import Jacobian
from ..schemes.krylov import Krylov
from ..schemes.linear import Factor, Linear
from ..schemes.newton import Newton, NewtonStages
from ..schemes.stage_solvers import Map, Stages, StageSolver
from .bands import Bands
from .base import LinearPart, Systems


def solver_for(part: LinearPart, constant: bool, numbers: int, uneven: bool, second_order: bool) -> StageSolver | None:
    """The solver of stages with this linear part; None if the structure of the Jacobian is found automatically.

    Args:
        part: the linear part.
        constant: nothing else depends on the state.
        numbers: the number of elements on which the linear part acts.
        uneven: steps have different sizes.
        second_order: the order of the scheme is 2.
    """
    if constant:
        return Direct(part=part, uneven=uneven, second_order=second_order)
    if isinstance(part, Bands) or numbers <= DENSE_NUMBERS:
        return None
    return Newton(linear=Krylov(preconditioner=Known(part)))


@dataclass(frozen=True)
class Known(Linear):
    """Systems with the linear part in place of the whole Jacobian: a preconditioner."""

    part: LinearPart = field(compare=False)

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor | None:
        """See :class:`Linear`; None if elements of the state have different weights."""
        return self.part.factor(w0.detach(), jacobian.z.detach()) if w0.numel() == 1 else None


@dataclass(frozen=True)
class Direct(StageSolver):
    """Stages ``z = c + w_0 (A z + b)``: one system each, with one factor for both passes of a solve."""

    part: LinearPart = field(kw_only=True, compare=False)
    uneven: bool = field(kw_only=True, default=False)
    second_order: bool = field(kw_only=True, default=True)

    def open(self) -> Stages:
        """See :class:`StageSolver`."""
        return _Directly(self.part, self.uneven, self.second_order)


class _Directly(Stages):
    def __init__(self, part: LinearPart, uneven: bool, second_order: bool) -> None:
        self.systems, self.other = Systems(part), NewtonStages(Newton())
        self.uneven, self.second_order = uneven, second_order
        self.judged: tuple[Factor, Tensor | bool] | None = None  # the last factor, and its _by_differences
        self.source: tuple[Tensor, ...] | None = None  # the source b; empty if it is zero

    @property
    def why(self) -> str:  # type: ignore[override]
        return self.systems.why or self.other.why

    @property
    def factorisations(self) -> int:  # type: ignore[override]
        return self.systems.factorisations + self.other.factorisations

    @property
    def linear_solves(self) -> int:  # type: ignore[override]
        return self.systems.linear_solves + self.other.linear_solves

    def solve(self, f: Map, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> tuple[Tensor, Tensor]:
        if w0.numel() > 1:  # elements of the state have different orders
            return self.other.solve(f, c, w0, guess, where)
        self.systems.linear_solves += 1
        factor = self.systems.factor(w0, c)
        enough_digits = c.dtype == torch.float64 and not self.uneven
        differ = enough_digits or self._by_differences(factor, w0, c)
        v = c if differ is True else factor.solve(f(c))
        if differ is False:
            return torch.addcmul(c, w0, v), v
        if self.source is None:
            source = f(torch.zeros_like(c))
            self.source = (source,) if bool(source.any()) else ()
        z = factor.solve(torch.addcmul(c, w0, *self.source) if self.source else c)
        if differ is True:
            return z, (z - c).div_(w0)
        v = torch.where(differ, (z - c) / w0, v)
        return torch.addcmul(c, w0, v), v

    def _by_differences(self, factor: Factor, w0: Tensor, c: Tensor) -> Tensor | bool:
        """For which samples slopes are ``(z - c) / w_0``, in float32 or with uneven steps: all, none, or some.

        In a short step this difference is mostly rounding. So is a product with a large ``A``, whose rounding rules of
        order 1 damp, but rules of order 2 accumulate.
        """
        if not self.second_order:
            return False
        if self.judged is None or self.judged[0] is not factor:
            large = self.systems.is_large(w0, c)
            self.judged = factor, bool(large.all()) or (large if bool(large.any()) else False)
        return self.judged[1]

    def solve_adjoint(self, jacobian: Jacobian, by: Map, w0: Tensor, where: str) -> Tensor:
        if w0.numel() > 1:
            return self.other.solve_adjoint(jacobian, by, w0, where)
        right = by(torch.zeros_like(jacobian.z))
        self.systems.linear_solves += 1
        return self.systems.factor(w0, right).solve(right, transposed=True)
