"""Solvers of implicit stages ``z = c + w_0 f(t, z)``: the contract, and fixed-point iteration."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.checks import real, whole
from ..base.policy import STAGE_NEAR, STAGE_ROUNDING
from ..base.structure import all_finite
from ..errors import ConvergenceError
from .jacobian import Jacobian

Map = Callable[[Tensor], Tensor]


class Stages(ABC):
    """A stage solver in use by one solve, in both passes; it may keep things such as factorisations between steps.

    Attributes:
        why: what it does and why, for ``stats.why``; empty if there is nothing to say.
        factorisations, linear_solves: how many there were so far.
    """

    why: str = ""
    factorisations: int = 0
    linear_solves: int = 0

    def warn(self) -> None:
        """Called after a forward pass: warn if its states are likely wrong."""
        return None

    def damped(self, w: Tensor, r: Tensor) -> Tensor | None:
        """``(I - w J)⁻¹ r`` with the Jacobian that was used last, if that is cheap; otherwise None."""
        return None

    @abstractmethod
    def solve(self, f: Map, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> tuple[Tensor, Tensor]:
        """The state ``z = c + w_0 f(z)`` and its slope ``f(z)``; ``guess`` is the previous state."""

    @abstractmethod
    def solve_adjoint(self, jacobian: Jacobian, by: Map, w0: Tensor, where: str) -> Tensor:
        """The solution of ``μ = by(μ)``, where ``by(μ)`` is ``ḡ + Jᵀ (v̄ + w_0 μ)``."""


@dataclass(frozen=True)
class StageSolver(ABC):
    """How implicit stages are solved; passed as ``solver=``.

    ``tol`` is the largest error of a state relative to its sample, so that neither the scale of a problem nor other
    samples matter. By default the iteration continues to rounding.
    """

    tol: float | None = None
    max_iter: int = 30

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.tol is not None:
            real(f"{name}.tol", self.tol, above=0, hint="It is the largest relative error of a state.")
        whole(f"{name}.max_iter", self.max_iter)

    def tolerance(self, like: Tensor) -> float:
        """The tolerance in force for states of this dtype."""
        return 4 * torch.finfo(like.dtype).eps if self.tol is None else self.tol

    @abstractmethod
    def open(self) -> Stages:
        """The solver for one solve."""


@dataclass(frozen=True)
class FixedPoint(StageSolver):
    """Fixed-point iteration ``z ← c + w_0 f(t, z)`` to convergence; needs ``w_0 ‖J‖ < 1``, that is, small steps.

    Args:
        tol: the largest error of a state relative to its sample; default: rounding.
        max_iter: the largest number of iterations of a stage.
    """

    max_iter: int = 200

    def open(self) -> Stages:
        """See :class:`StageSolver`."""
        return _Iteration(self)


class _Iteration(Stages):
    def __init__(self, solver: FixedPoint) -> None:
        self.solver = solver

    def solve(self, f: Map, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> tuple[Tensor, Tensor]:
        slopes = [guess]

        def once(z: Tensor) -> Tensor:
            slopes[0] = f(z)
            return torch.addcmul(c, w0, slopes[0])

        # start from the sum, not from the previous state: convergence does not depend on the guess
        z = self._iterate(once, c, c, f"fixed-point iteration of {where}", self.solver.max_iter)
        return z, slopes[0]

    def solve_adjoint(self, jacobian: Jacobian, by: Map, w0: Tensor, where: str) -> Tensor:
        first = by(torch.zeros_like(jacobian.z))
        what = f"adjoint fixed-point iteration of {where}"
        try:
            return self._iterate(by, first, first, what, 2 * self.solver.max_iter)
        except ConvergenceError:
            if all_finite(first):
                raise
            return torch.full_like(first, torch.nan)  # the gradient of a loss that overflowed, as when scaled

    def _iterate(self, once: Map, x: Tensor, known: Tensor, what: str, most: int) -> Tensor:
        """``x ← once(x)`` until changes are negligible compared with each element and with ``known``."""
        solver, known = self.solver, known.abs()
        tol, change, least, since, unseen = solver.tolerance(x), math.inf, math.inf, 0, 0
        for k in range(most):
            new = once(x)
            if unseen > 0 and k + 1 < most:  # checking a change costs as much as a small func
                x, unseen = new, unseen - 1
                continue
            moved, size = (new - x).abs_(), torch.maximum(new.abs(), known)
            before, change = change, float((moved / torch.where(size > 0, size, 1.0)).max())
            if change <= tol:
                return new
            if not math.isfinite(change):
                break
            least, since = (change, k) if change < 0.9 * least else (least, since)
            if k - since >= 8 and change < STAGE_NEAR:  # small elements may keep changing by the rounding of large ones
                noise = (once(x + rounding_of(x)) - new).abs_().maximum(torch.finfo(x.dtype).eps * size)
                if bool((moved <= STAGE_ROUNDING * noise).all()):
                    return once(x)
            x, unseen = new, _far_from(tol, before, change)
        raise ConvergenceError(
            f"the {what} stopped at a relative change of {change:.2e} after {k + 1} iterations; {tol:.1e} was asked "
            "for. Try a smaller step, solver='auto' (Newton's method), a larger max_iter or tol, or an explicit scheme "
            "if the problem is not stiff."
        )


def rounding_of(x: Tensor) -> Tensor:
    """A change of every element of ``x`` by its rounding, up or down."""
    k = torch.arange(x.numel(), device=x.device).view(x.shape)
    return torch.where((k * 0.6180339887498949) % 1 < 0.5, x, -x) * torch.finfo(x.dtype).eps


def rounded(near: Tensor, now: Tensor, noise: Callable[[bool], Tensor], bends: bool = True) -> Tensor:
    """Which of the samples ``near`` convergence change only by rounding, estimated by ``noise(bend)``."""
    done = near & (now <= STAGE_ROUNDING * noise(False))
    if bends and bool((near & ~done).any()):
        done = done | (near & (now <= STAGE_ROUNDING * noise(True)))
    return done


def roughness(f: Map, x: Tensor, at: Tensor, bend: bool, linear: bool = False) -> Tensor:
    """The rounding error of ``f(x) = at``: by how much it changes if every element of ``x`` changes by its rounding.

    ``func`` may compute with fewer digits than ``x`` has, as matrix products on a GPU do: then most tiny changes of
    ``x`` have no effect, and some a large one. With ``bend`` the estimate is a second difference over a longer piece,
    which for a ``linear`` map may be very long.
    """
    d = rounding_of(x)
    if not bend:
        return f(x + d) - at
    d = d / (16 * torch.finfo(x.dtype).eps) if linear else 64 * d
    return f(x + d) + f(x - d) - 2 * at


def _far_from(tol: float, before: float, now: float) -> int:
    """How many further changes will certainly exceed ``tol`` if they keep shrinking at the last rate."""
    ratio = now / before
    return max(0, int(math.log(tol / now) / math.log(ratio)) - 1) if 0 < ratio < 0.9 else 0
