"""Newton's method for implicit stages; a factorisation is kept while it is useful, and the residual decides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.policy import DENSE_WIDE, SPARSE_SOUGHT, STAGE_GROWTH
from ..base.structure import all_finite
from ..errors import ConvergenceError, warn_of_result
from .banded import Banded
from .iteration import Iteration, shorter, spread
from .jacobian import Jacobian
from .krylov import Krylov, Plain, least_eigenvalue
from .linear import Dense, Factor, Linear, check_linear
from .sparse import Sparse
from .sparse_systems import sparse_lu
from .stage_solvers import Map, Stages, StageSolver


@dataclass(frozen=True)
class Auto(Linear):
    """Choose by the structure of the Jacobian: a matrix per sample, a narrow band, or neither.

    If there is neither, stages use fixed-point iteration while that converges. Otherwise a sparse Jacobian is looked
    for, on a CPU with scipy, and ``Krylov()`` solves the rest.
    """

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        """See :class:`Linear`."""
        wide = jacobian.shape.numel() > DENSE_WIDE  # then reading dense matrices from memory would dominate
        order = (Dense(64), Banded(), Dense()) if wide else (Dense(), Banded())
        for linear in order if jacobian.traced else ():
            found = linear.factor(jacobian, w0)
            if found is not None:
                found.by = linear
                return found
        return Plain(jacobian, _Wide())


@dataclass(frozen=True)
class _Wide(Linear):
    """Systems too large for a dense matrix, without a narrow band: a sparse LU if possible, otherwise GMRES."""

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        sparse = Sparse(most=SPARSE_SOUGHT) if jacobian.traced and sparse_lu(jacobian.z) is not None else None
        found = None if sparse is None else sparse.factor(jacobian, w0)
        if found is None:
            found = Krylov().factor(jacobian, w0)
            found.by = Krylov()
        return found


@dataclass(frozen=True)
class Newton(StageSolver):
    """Newton's method for implicit stages: ``z ← z + (I - w_0 J)⁻¹ (c + w_0 f(t, z) - z)``, from the previous state.

    The matrix of an earlier step is reused while each update is at least ten times smaller than the last, and renewed
    otherwise. If a stage has several solutions, the one that continues the previous state is taken.

    Args:
        tol: the largest error of a state relative to its sample; default: rounding.
        max_iter: the largest number of iterations of a stage.
        linear: how the linear systems are solved: by the structure of the Jacobian (default), or ``Dense()``,
            ``Banded()``, ``Sparse(...)``, ``Spectral(...)``, ``Krylov(...)``, ``Given(...)``, or your own object.
    """

    linear: Linear = Auto()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_linear("Newton.linear", self.linear)

    def open(self) -> Stages:
        """See :class:`StageSolver`."""
        return NewtonStages(self)


class NewtonStages(Iteration):
    """Newton's method in one solve.

    ``flowed`` counts steps whose stage seemed to have several solutions, or none; ``apart`` those whose solution does
    not continue the previous state: ``I - w_0 J`` has an eigenvalue below 0 there, of which ``least`` is the smallest.
    """

    def __init__(self, solver: Newton) -> None:
        super().__init__(solver, solver.linear)
        self.flowed, self.apart, self.least = 0, 0, math.inf
        self.divisor: tuple[Tensor, Tensor] | None = None  # w0, and w0 without zeros

    @property
    def why(self) -> str:  # type: ignore[override]
        """See :class:`Stages`."""
        told = "" if self.factor is None else self.factor.why
        chosen = self.flowed - self.apart
        told += f"; in {chosen} steps the solution that continues the state was chosen among several" if chosen else ""
        return told + (f"; in {self.apart} steps no solution continues the state" if self.apart else "")

    def warn(self) -> None:
        """See :class:`Stages`."""
        if self.apart:
            warn_of_result(
                f"in {self.apart} steps no solution of the implicit stage continues the state before, and another one "
                "was taken. Within one step func grows too fast for that. Use a smaller step h, with h^β at most "
                f"{shorter(self.least)} times as large, or steps to a tolerance (rtol=)."
            )

    # ---- the two passes ---------------------------------------------------------------------------------------------

    def solve(self, f: Map, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> tuple[Tensor, Tensor]:
        """See :class:`Stages`."""
        first = f(guess)
        r = torch.addcmul(c, w0, first).sub_(guess)
        z, v, failed = self._stage(f, c, w0, guess, (r, first))
        # two solutions a, b satisfy w0 (f(b) - f(a)) = b - a. Along d, w0 f grew by d - r: if by less, it is unique
        d = z - guess
        steep = self.steep(d, d - r, STAGE_GROWTH)
        if failed is None and not (steep if steep.ndim == 0 else steep.any()):
            return z, v
        self.flowed += 1
        anew = spread(steep, z) if failed is None else spread(steep, z) | failed
        found = self._flow(f, c, w0, torch.where(anew, guess, z), torch.where(anew, first, v))
        if failed is not None and bool((failed & found[2]).any()):
            raise ConvergenceError(self.told(where))
        taken = anew & ~found[2]  # otherwise keep Newton's solution: none continues the previous state
        if bool((anew & found[2]).any()):
            least = self._least_eigenvalue(Jacobian(f, z), w0)
            self.apart, self.least = self.apart + (least < 0), min(self.least, least)
        return torch.where(taken, found[0], z), torch.where(taken, found[1], v)

    def solve_adjoint(self, jacobian: Jacobian, by: Map, w0: Tensor, where: str) -> Tensor:
        """See :class:`Stages`."""

        def residual(mu: Tensor) -> tuple[Tensor, Tensor]:
            r = by(mu).sub(mu)
            return r, r

        start = torch.zeros_like(jacobian.z)
        first = residual(start)
        found = self.iterate(residual, start, first, first[0], lambda mu: jacobian, w0, transposed=True)
        if found.failed is None:
            return found.x
        if all_finite(first[0]):
            raise ConvergenceError(self.told(where))
        return torch.where(found.failed, torch.nan, found.x)  # the gradient of a loss that overflowed, as when scaled

    def _stage(
        self, f: Map, c: Tensor, w0: Tensor, z: Tensor, at: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """State and slope by Newton's iteration from ``z``, with residual and slope ``at``, and where it failed."""

        def residual(z: Tensor) -> tuple[Tensor, Tensor]:
            v = f(z)
            return torch.addcmul(c, w0, v).sub_(z), v

        found = self.iterate(residual, z, at, c, lambda z: Jacobian(f, z), w0)
        # the slope with which z = c + w0 v holds to rounding; the stiffer func is, the larger the rounding of f(z)
        if self.divisor is None or self.divisor[0] is not w0:
            self.divisor = w0, torch.where(w0 == 0, 1.0, w0)  # if w0 is 0, d - r is 0 too
        return found.x, torch.addcdiv(found.v, found.d - found.r, self.divisor[1]), found.failed

    def _least_eigenvalue(self, jacobian: Jacobian, w0: Tensor) -> float:
        """The smallest real part of the eigenvalues of ``I - w_0 J``, or an estimate."""
        exact = self.renew(jacobian, w0).least_eigenvalue()
        if exact < math.inf:
            return exact
        return least_eigenvalue(lambda d: d - w0 * jacobian.jvp(d), self.solved, jacobian.z.detach())

    # ---- several solutions ------------------------------------------------------------------------------------------

    def _flow(self, f: Map, c: Tensor, w0: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Follow ``dz/ds = c + w_0 f(z) - z`` from ``z`` to a point of rest: state, slope, and where there is none.

        It takes implicit steps of length 1/shift, with a shift for each sample: long steps once no direction grows.
        """
        sizes = self.sizes
        shift, start, r = torch.ones_like(z), z, torch.addcmul(c, w0, v).sub_(z)
        begun, far = r, spread(1e3 * (sizes(z) + sizes(c) + sizes(r)), z)
        for _ in range(2 * self.solver.max_iter):
            self.renew(Jacobian(f, z), w0 / (1 + shift))
            d = self.solved(r / (1 + shift))
            there = f(z + d)
            rest = torch.addcmul(c, w0, there).sub_(z + d)
            # a step is good if no direction grows faster than it is damped, and the residual shrinks or is as predicted
            steep = self.steep(d, w0 * (there - v) / (1 + shift), 0.5)
            foreseen = sizes(shift * d - rest) <= sizes(shift * d) / 2
            size = sizes(z).maximum(sizes(c))
            near = sizes((1 + shift) * d) <= 1e-3 * size
            good = spread(near | ((foreseen | (sizes(rest) <= 0.75 * sizes(r))) & ~steep), z)
            rested = spread((sizes(d) <= 0.1 * size) & (sizes(shift) < 0.1), z)
            z, v, r = torch.where(good, z + d, z), torch.where(good, there, v), torch.where(good, rest, r)
            shift = torch.where(good, shift / 2, shift * 4).clamp(1e-9, 1e30)
            lost = ~(z.abs() <= far)
            if bool((rested | lost).all()):
                break
        at_rest = self._stage(f, c, w0, z, (r, v))
        lost = lost if at_rest[2] is None else lost | at_rest[2]
        d = at_rest[0] - start
        doubtful = (~rested | spread(self.steep(d, d - begun, 1.0), z)) & ~lost  # still under way, or on the other side
        # an estimate of the eigenvalue would not do: it may be below 0 where M is not normal
        if bool(doubtful.any()) and self.renew(Jacobian(f, at_rest[0]), w0).least_eigenvalue() < 0:
            lost = lost | doubtful  # no point of rest
        return at_rest[0], at_rest[1], spread(sizes(lost.to(z.dtype)) > 0, z)
