"""Newton's method for implicit stages: a factor of the matrix is kept as long as it serves, the residual decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import STAGE_GROWTH, STAGE_ROUNDING, STAGE_STALE
from ..errors import ConvergenceError
from .banded import Banded
from .jacobian import Jacobian
from .krylov import Krylov
from .linear import Dense, Factor, Linear, SingularStage
from .stage_solvers import Map, Stages, StageSolver, rounding_of


@dataclass(frozen=True)
class Auto(Linear):
    """The first structure that the Jacobian has: a matrix for each sample, few diagonals, or none."""

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        """See :class:`Linear`."""
        for linear in (Dense(), Banded()) if jacobian.traced else ():
            found = linear.factor(jacobian, w0)
            if found is not None:
                found.by = linear
                return found
        found = Krylov().factor(jacobian, w0)
        found.by = Krylov()
        return found


@dataclass(frozen=True)
class Newton(StageSolver):
    """``z ← z + (I - w_0 J)⁻¹ (c + w_0 f(t, z) - z)``, from the state of the step before.

    The matrix is that of an earlier step as long as updates shrink tenfold, and is renewed where they do not. Where a
    stage has several solutions, the one that the state flows to from the step before is taken.

    Args:
        linear: how the systems are solved: by what structure the Jacobian has (default), or ``Dense()``, ``Banded()``,
            ``Krylov(...)``, ``Given(...)``, or an object of your own.
    """

    linear: Linear = Auto()

    def open(self) -> Stages:
        """See :class:`StageSolver`."""
        return NewtonStages(self)


class _Failure(NamedTuple):
    """Why an iteration ended: which part failed, and how large its updates were, relative to the state."""

    part: str
    reached: float


class NewtonStages(Stages):
    """Newton's method at work in one solve; ``flowed`` counts steps whose stage had several solutions, or none near."""

    def __init__(self, solver: Newton) -> None:
        self.solver, self.linear, self.flowed = solver, solver.linear, 0
        self.factor: Factor | None = None

    @property
    def why(self) -> str:  # type: ignore[override]
        """See :class:`Stages`."""
        several = f"; {self.flowed} steps had several solutions, the one continued from the step before was taken"
        return "" if self.factor is None else self.factor.why + (several if self.flowed else "")

    # ---- the two passes ---------------------------------------------------------------------------------------------

    def solve(self, f: Map, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> tuple[Tensor, Tensor]:
        """See :class:`Stages`."""
        first = f(guess)
        found = self._stage(f, c, w0, guess, first)
        failed = isinstance(found, _Failure)
        leapt = None if failed else self._leapt(w0, found[0] - guess, found[1] - first)
        if leapt is None and not failed:
            return found  # type: ignore[return-value]
        flown = self._flow(f, c, w0, guess, first)
        self.flowed += 1
        if flown is None and isinstance(found, _Failure):
            raise ConvergenceError(self._told(found, where))
        if flown is None:  # no solution is continued from the step before: this one is all there is
            return found  # type: ignore[return-value]
        if leapt is None:
            return flown
        return torch.where(leapt, flown[0], found[0]), torch.where(leapt, flown[1], found[1])  # type: ignore[arg-type]

    def solve_adjoint(self, jacobian: Jacobian, by: Map, w0: Tensor, where: str) -> Tensor:
        """See :class:`Stages`."""

        def residual(mu: Tensor) -> tuple[Tensor, Tensor]:
            r = by(mu).sub(mu)
            return r, r

        start = torch.zeros_like(jacobian.z)
        first = residual(start)
        found = self._iterate(residual, start, first, first[0], lambda mu: jacobian, w0, transposed=True)
        if isinstance(found, _Failure):
            raise ConvergenceError(self._told(found, where))
        return found[0] + found[1]

    def _stage(self, f: Map, c: Tensor, w0: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | _Failure:
        """State and slope by Newton's iteration from ``z``, whose slope is ``v``."""

        def residual(z: Tensor) -> tuple[Tensor, Tensor]:
            v = f(z)
            return torch.addcmul(c, w0, v).sub_(z), v

        first = (torch.addcmul(c, w0, v).sub_(z), v)
        found = self._iterate(residual, z, first, c, lambda z: Jacobian(f, z), w0)
        if isinstance(found, _Failure):
            return found
        z, d, (r, v) = found
        # the slope with which z = c + w0 v holds to rounding: that of func is as rough as func is stiff
        return z + d, v + (d - r) / w0

    # ---- one iteration for both -------------------------------------------------------------------------------------

    def _iterate(
        self,
        residual: Callable[[Tensor], tuple[Tensor, Tensor]],
        x: Tensor,
        at: tuple[Tensor, Tensor],
        known: Tensor,
        jacobian: Callable[[Tensor], Jacobian],
        w0: Tensor,
        transposed: bool = False,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]] | _Failure:
        """``x ← x + M⁻¹ r`` until the update after the last one is below the tolerance: x, the last one, what is at x.

        Updates are compared sample by sample, with what is ``known`` of its size and with its ``x``.
        """
        tol = self.solver.tolerance(x)
        if not transposed and self.solver.tol is None:
            tol /= 256  # the errors of slopes may all point one way, and add up
        start, fresh, before, reached = (x, at), False, None, math.inf
        for _ in range(self.solver.max_iter):
            if self.factor is None or not (fresh or self.factor.reusable):
                fresh = True
                if not self._renew(jacobian(x), w0):
                    return _Failure("singular", reached)
            d = self._solved(at[0], transposed)
            new, now = x + d, self._sizes(d)
            if before is not None:
                size, rate = self._sizes(new).maximum(self._sizes(known)), now / before
                ahead = now * rate > tol * size  # no: also where both updates are 0, and their rate is none
                if not bool(ahead.any()):
                    return x, d, at
                worst, reached = float(rate[ahead].max()), float((now / size)[ahead].max())
                if not (math.isfinite(worst) and math.isfinite(reached)):
                    break
                if worst > 0.5 and reached < 1e-3 and self._is_rounding(residual, x, at[0], now, ahead, transposed):
                    return x, d, at
                if worst > STAGE_STALE and not fresh:
                    x, at = start if worst >= 1 else (x, at)  # the old matrix may have led astray
                    fresh, before = True, None
                    if not self._renew(jacobian(x), w0):
                        return _Failure("singular", reached)
                    continue
            x, before, fresh = new, now, False
            at = residual(x)
        return _Failure("nonlinear", reached)

    def _is_rounding(
        self, residual: Callable[..., tuple[Tensor, Tensor]], x: Tensor, r: Tensor, now: Tensor, which: Tensor, t: bool
    ) -> bool:
        """Whether these updates are no larger than those that the rounding of ``x`` makes in ``func``."""
        noise = self._sizes(self._solved(residual(x + rounding_of(x))[0] - r, t))
        return bool((now <= STAGE_ROUNDING * noise)[which].all())

    def _sizes(self, x: Tensor) -> Tensor:
        """The largest number of each sample."""
        assert self.factor is not None
        return torch.linalg.vector_norm(x.reshape(self.factor.samples, -1), math.inf, dim=1)

    def _solved(self, r: Tensor, transposed: bool = False) -> Tensor:
        assert self.factor is not None
        self.linear_solves += 1
        return self.factor.solve_transposed(r) if transposed else self.factor.solve(r)

    def _renew(self, jacobian: Jacobian, w0: Tensor) -> bool:
        """A new factor; False if the matrix is singular."""
        if self.factor is not None and not self.factor.reusable:
            jacobian.parts = self.factor.samples
        try:
            found = self.linear.factor(jacobian, w0) or self.solver.linear.factor(jacobian, w0)
        except SingularStage:
            return False
        if found is None:
            raise ConvergenceError(
                f"the Jacobian of func has not the structure that {self.solver.linear} uses. Use solver='auto'."
            )
        self.factor, self.linear = found, found.by or self.linear
        self.factorisations += found.reusable
        return True

    # ---- several solutions ------------------------------------------------------------------------------------------

    def _leapt(self, w0: Tensor, d: Tensor, dv: Tensor) -> Tensor | None:
        """Where a step may have left the solution that is continued from the step before; None: nowhere.

        Two solutions a, b of a stage have ``w_0 (f(b) - f(a)) = b - a``. A move along which the slope grows less has
        met none.
        """
        assert self.factor is not None
        gain = (d * (STAGE_GROWTH * d - w0 * dv)).reshape(self.factor.samples, -1).sum(1)
        if bool((gain >= 0).all()):
            return None
        return (gain < 0)[:, None].expand(-1, d.numel() // len(gain)).reshape(d.shape)

    def _flow(self, f: Map, c: Tensor, w0: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
        """Follow ``dz/ds = c + w_0 f(z) - z`` from the step before to where it rests; None if it does not.

        Implicit Euler steps of length 1/shift, a shift for each sample: long ones once no direction grows.
        """
        kept, self.factor = self.factor, None
        try:
            return self._flown(f, c, w0, z, v)
        finally:
            self.factor = self.factor or kept

    def _flown(self, f: Map, c: Tensor, w0: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
        shift = None
        for _ in range(4 * self.solver.max_iter):
            r = torch.addcmul(c, w0, v).sub_(z)
            jacobian = Jacobian(f, z)
            if shift is None:
                shift = torch.ones_like(z)
            if not self._renew(jacobian, w0 / (1 + shift)):
                return None
            d = self._solved(r / (1 + shift))
            after = f(z + d)
            growth = self._spread((d * w0 * (after - v)), d * d)
            if not bool(torch.isfinite(growth).all()):
                return None
            steep = growth > (1 + shift) / 2
            shift = torch.where(steep, 4 * growth.maximum(shift), shift / 4)
            z, v = torch.where(steep, z, z + d), torch.where(steep, v, after)
            moved = self._sizes(d) <= 0.1 * self._sizes(torch.maximum(z.abs(), c.abs()))
            if bool(moved.all()) and float(shift.max()) < 0.1:
                found = self._stage(f, c, w0, z, v)
                return None if isinstance(found, _Failure) else found
        return None

    def _spread(self, top: Tensor, bottom: Tensor) -> Tensor:
        """The ratio of two sums over each sample, in the shape of the state; 0 where nothing moves."""
        assert self.factor is not None
        a, b = (x.reshape(self.factor.samples, -1).sum(1, keepdim=True) for x in (top, bottom))
        ratio = torch.where(b > 0, a / b, 0.0)
        return ratio.expand(-1, top.numel() // ratio.numel()).reshape(top.shape)

    # ---- what went wrong --------------------------------------------------------------------------------------------

    def _told(self, failure: _Failure, where: str) -> str:
        factor, part = self.factor, failure.part
        least = math.inf if factor is None else factor.least_eigenvalue()
        solved = factor is None or factor.reached <= 0.5
        at = f" Updates had come down to {failure.reached:.1e} of the state." if math.isfinite(failure.reached) else ""
        if part == "singular":
            what = "its linear part failed: the matrix I - w0 J is singular, w0 times an eigenvalue of J is 1"
            do = "Take another step: a smaller one, unless the solution itself blows up here"
        elif not solved:
            assert factor is not None
            what = f"its linear part failed: GMRES left {factor.reached:.1e} of the residual"
            do = "Use Newton(linear=Krylov(size=..., preconditioner=...)), linear=Given(solve, ...), or a smaller step"
        else:
            what = "its nonlinear part failed: linear systems were solved, but their updates do not shrink"
            do = "Take a smaller step, or look at func there: kinks and jumps have no Jacobian"
        if least < 0 and part != "singular":
            what += f"; the matrix I - w0 J is indefinite, with an eigenvalue {least:.2g}: func grows too fast"
            do = f"Take a smaller step h, with h^β at most {1 / (1 - least):.2g} times as large"
        return f"Newton's method for the stage of {where} did not converge: {what}.{at} {do}."
