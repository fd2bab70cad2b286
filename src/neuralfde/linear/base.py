"""The contract of a linear part ``A``, and differentiable solutions of systems with ``I - w_0 A``."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.caches import capturing
from ..base.policy import COMPOSED_NUMBERS, LARGE_STEP, LOST_DIGITS
from ..base.torch_private import derivatives_are_watched
from ..base.torch_transforms import solved
from ..errors import ConvergenceError, UnsupportedError
from ..schemes.jacobian import irregular
from ..schemes.krylov import least_eigenvalue
from ..schemes.linear import Factor


class LinearPart(ABC):
    """``A`` in ``D^β z = A z + f(t, z)``, passed as ``linear=``; it acts on the last axes of the state.

    Attributes:
        tensors: the tensors that define it; they get gradients.
        axes: the number of axes on which it acts.
        plain: ``solve_plainly`` is as fast as a factorisation.
        own: its tensors are parameters of an object and cannot be replaced.
    """

    tensors: tuple[Tensor, ...]
    axes: int = 1
    plain: bool = False
    own: bool = False

    @abstractmethod
    def with_tensors(self, tensors: Sequence[Tensor]) -> LinearPart:
        """The same linear part with other tensors."""

    @abstractmethod
    def shape(self) -> torch.Size | None:
        """The shape that the state must broadcast with, matching its last axes exactly; None if it is not known."""

    @abstractmethod
    def matvec(self, z: Tensor) -> Tensor:
        """``A z``, by differentiable operations; further leading axes of ``z`` are a batch."""

    @abstractmethod
    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """A factorisation of ``I - w_0 A`` for right-hand sides like this; ``w_0`` is one real or complex number."""

    def top(self) -> float:
        """An upper bound of the real parts of all eigenvalues; infinite if there is none."""
        return math.inf

    def spectrum(self) -> Tensor | None:
        """All eigenvalues, or a region left of 0 with them, as two real numbers or the ends of rays from 0; or None."""
        return None

    def systems(self) -> Systems:
        """Systems with ``I - w_0 A`` for one solve."""
        return Systems(self)

    def solve_plainly(self, w0: Tensor, r: Tensor) -> Tensor:
        """``(I - w_0 A)⁻¹ r`` by PyTorch operations, which work with every transform."""
        n = r.shape[-1]
        if self.own or n > COMPOSED_NUMBERS:
            raise UnsupportedError(
                f"a linear part of {n} elements has no forward mode or vmap here: matrices up to {COMPOSED_NUMBERS} "
                "and transforms do. Use first or second derivatives, or smaller pieces of the state."
            )
        one = torch.eye(n, dtype=r.dtype, device=r.device)
        columns = self.matvec(one.reshape(n, *[1] * (r.ndim - 1), n).expand(n, *r.shape))
        matrix = one - w0 * columns.movedim(0, -1)
        return solved(matrix, r.unsqueeze(-1)).squeeze(-1)


class Systems:
    """Systems with ``I - w_0 A`` in one solve: a factor is kept for every weight, and used in both passes.

    Attributes:
        why: which structure the factors use.
        factorisations, linear_solves: how many there were so far.
    """

    def __init__(self, part: LinearPart) -> None:
        self.part, self.why, self.factorisations, self.linear_solves = part, "", 0, 0
        self._factors: dict[complex, Factor] = {}
        self._size: Tensor | None = None
        self._warned = False
        self.bearable = 0.0  # up to this weight, 1 - w0 λ is positive for all eigenvalues λ

    def warn(self) -> None:
        """See :class:`Stages`; what may be wrong here is refused or told of while systems are solved."""
        return None

    def solve(self, w0: Tensor, r: Tensor) -> Tensor:
        """``(I - w_0 A)⁻¹ r``, differentiable in all of them."""
        if self.part.plain or derivatives_are_watched():
            if self.part.plain and not self.why and not derivatives_are_watched() and not capturing():
                self.why = f"linear= by {type(self.part).__name__.lower()} division"
                self._refuse_growth(w0.detach(), math.inf)
            self.linear_solves += 1
            return self.part.solve_plainly(w0, r)
        return _Inverse.apply(self, False, w0, r, *self.part.tensors)  # type: ignore[no-untyped-call, no-any-return]

    def is_large(self, w0: Tensor, like: Tensor) -> Tensor:
        """Whether ``w_0 A`` is large, for each sample: then ``(z - c) / w_0`` is more accurate than ``A z``."""
        return w0.detach().abs() * self._size_for(like.detach()) > LARGE_STEP

    def _size_for(self, like: Tensor) -> Tensor:
        """The factor by which ``A`` enlarges an irregular state of each sample; cached, unless inside a transform."""
        if self._size is not None and self._size.shape[:-1] == like.shape[:-1]:
            return self._size
        with torch.no_grad():
            rough = irregular(like) - 1.5
            found = self.part.matvec(rough).norm(dim=-1, keepdim=True) / rough.norm(dim=-1, keepdim=True)
        if not derivatives_are_watched() and not capturing():
            self._size = found
        return found

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """The factor for this weight."""
        key = complex(w0)
        if key not in self._factors:
            with torch.no_grad():
                found = self.part.factor(w0.detach(), like.detach())
            if found.singular:
                raise ConvergenceError(
                    f"the matrix I - w0 A of linear= is singular at w0={key.real:.3g}: w0 times an eigenvalue of A is "
                    "1. Use another step size, a smaller one if A is meant to grow."
                )
            self._refuse_growth(w0.detach(), found.least_eigenvalue(), found, like.detach())
            self._warn_of_rounding(w0, like)
            self._factors[key], self.why = found, f"linear= by {found.why}"
            self.factorisations += 1
        return self._factors[key]

    def _warn_of_rounding(self, w0: Tensor, like: Tensor) -> None:
        """Warn if single precision is not enough for a state and ``w_0 A`` times that state."""
        if torch.finfo(like.dtype).bits > 32 or self._warned:
            return
        largest = float(w0.detach().abs() * self._size_for(like.detach()).max())
        if largest * torch.finfo(like.dtype).eps > LOST_DIGITS:
            self._warned = True
            warnings.warn(
                f"linear= is too stiff for {like.dtype}: a step multiplies states by {largest:.1e}, and their rounding "
                "too. Use float64 for z0 and linear=, or shorter steps.",
                stacklevel=2,
            )

    def _refuse_growth(
        self, w0: Tensor, least: float, factor: Factor | None = None, like: Tensor | None = None
    ) -> None:
        """Raise if ``I - w_0 A`` has a negative eigenvalue: the step would have the wrong sign. ``least`` is one."""
        sure = w0.is_complex() or float(w0) <= self.bearable or float(w0) * self.part.top() < 1
        known = None if sure else self.part.spectrum()
        if known is not None:
            least = min(least, float((1 - w0 * known.real).min()))
        elif not sure and factor is not None and like is not None:
            with torch.no_grad():
                shape = self.part.shape() or like.shape
                apply = lambda x: x - w0 * self.part.matvec(x)  # noqa: E731
                least = min(least, least_eigenvalue(apply, factor.solve, like.new_zeros(shape)))
            self.bearable = float(w0) * min(2.0, 0.5 / max(1 - least, 0.25))
        if -math.inf < least <= 0:
            raise ConvergenceError(
                f"the matrix I - w0 A of linear= is indefinite, with an eigenvalue near {least:.2g}: A grows too fast "
                "for this step, for ever or before it decays. Use a smaller step h, with h^β at most "
                f"{1 / (1 - least):.2g} times as large, or move the growing part to func."
            )


class _Inverse(torch.autograd.Function):
    """``x = M⁻¹ r`` or ``M⁻ᵀ r``, ``M = I - w_0 A``; ``r̄ = M⁻ᴴ x̄``, other gradients are those of ``w_0 A x``."""

    @staticmethod
    def forward(ctx: Any, systems: Systems, transposed: bool, w0: Tensor, r: Tensor, *tensors: Tensor) -> Tensor:
        factor = systems.factor(w0, r)
        systems.linear_solves += 1
        x = factor.solve(r, transposed)
        ctx.systems, ctx.transposed = systems, transposed
        ctx.save_for_backward(w0, x, *tensors)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        w0, x, *tensors = ctx.saved_tensors
        systems = ctx.systems
        mu = _Inverse.apply(systems, not ctx.transposed, w0, grad.conj(), *tensors).conj()  # type: ignore[no-untyped-call]
        if not any(_needed(ctx)):
            return (None, None, None, mu, *[None] * len(tensors))
        at, by = (mu.conj(), x.conj()) if ctx.transposed else (x, mu)

        def product(w0: Tensor, *tensors: Tensor) -> Tensor:
            return w0 * systems.part.with_tensors(tensors).matvec(at)

        if torch.is_grad_enabled():  # a second derivative may follow
            found = torch.func.vjp(product, w0, *tensors)[1](by)
        else:
            at, leaves = at.detach(), [p.detach().requires_grad_() for p in (w0, *tensors)]
            with torch.enable_grad():
                found = torch.autograd.grad(product(*leaves), leaves, by, allow_unused=True)
        grads = [g if needed else None for g, needed in zip(found, _needed(ctx), strict=True)]
        return (None, None, grads[0], mu, *grads[1:])


def _needed(ctx: Any) -> tuple[bool, ...]:
    return (ctx.needs_input_grad[2], *ctx.needs_input_grad[4:])
