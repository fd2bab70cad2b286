"""Newton's method for implicit stages: a factor of the matrix is kept as long as it serves, the residual decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import DENSE_WIDE, STAGE_GROWTH, STAGE_PLAIN, STAGE_ROUNDING, STAGE_SHORTER, STAGE_STALE
from ..errors import ConvergenceError
from .banded import Banded
from .jacobian import Jacobian
from .krylov import Krylov
from .linear import Dense, Factor, Linear, check_linear
from .stage_solvers import Map, Stages, StageSolver, roughness


@dataclass(frozen=True)
class Auto(Linear):
    """The first structure that the Jacobian has: a matrix for each sample, few diagonals, or none.

    Without one, stages are iterated plainly as long as that contracts, and by ``Krylov()`` where it does not.
    """

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        """See :class:`Linear`."""
        wide = jacobian.shape.numel() > DENSE_WIDE  # so many numbers in all samples read their matrices from memory
        order = (Dense(64), Banded(), Dense()) if wide else (Dense(), Banded())
        for linear in order if jacobian.traced else ():
            found = linear.factor(jacobian, w0)
            if found is not None:
                found.by = linear
                return found
        return Plain(jacobian)


class Plain(Factor):
    """The identity in place of ``I - w_0 J``: ``z ← c + w_0 f(z)``, one evaluation each."""

    def __init__(self, jacobian: Jacobian) -> None:
        self.samples, self.by = jacobian.samples(), Krylov()
        self.why = f"plain iteration, {jacobian.shape.numel() // self.samples} coupled numbers without a narrow band"

    def solve(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return r

    def solve_transposed(self, r: Tensor) -> Tensor:
        """See :class:`Factor`."""
        return r


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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_linear("Newton.linear", self.linear)

    def open(self) -> Stages:
        """See :class:`StageSolver`."""
        return NewtonStages(self)


class _Found(NamedTuple):
    """Where an iteration ended: x after its last update d, r and v before that, and where it failed, None: nowhere."""

    x: Tensor
    d: Tensor
    r: Tensor
    v: Tensor
    failed: Tensor | None


class NewtonStages(Stages):
    """Newton's method at work in one solve; ``flowed`` counts steps whose stage had several solutions, or none near."""

    def __init__(self, solver: Newton) -> None:
        self.solver, self.linear, self.flowed = solver, solver.linear, 0
        self.factor: Factor | None = None
        self.divisor: tuple[Tensor, Tensor] | None = None  # w0, and w0 without zeros
        self.made: tuple[Tensor | None, float] = None, 0.0  # the last w0, and the size of that of the matrix
        self.coupled = False  # whether samples were seen to act on each other
        self.plain: Factor | None = None  # where there is no structure
        self.wait, self.pause = 0, 1  # stages to be solved before it is tried again, now and after it has failed again
        self.reached = math.inf  # updates of the worst sample of the last iteration, relative to its state

    @property
    def why(self) -> str:  # type: ignore[override]
        """See :class:`Stages`."""
        several = f"; {self.flowed} steps had several solutions, the one continued from the step before was taken"
        return "" if self.factor is None else self.factor.why + (several if self.flowed else "")

    # ---- the two passes ---------------------------------------------------------------------------------------------

    def solve(self, f: Map, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> tuple[Tensor, Tensor]:
        """See :class:`Stages`."""
        first = f(guess)
        r = torch.addcmul(c, w0, first).sub_(guess)
        z, v, failed = self._stage(f, c, w0, guess, (r, first))
        # two solutions a, b have w0 (f(b) - f(a)) = b - a: a move along which w0 f, which is d - r, grows less met one
        d = z - guess
        steep = self._steep(d, d - r, STAGE_GROWTH)
        if failed is None and not (steep if steep.ndim == 0 else steep.any()):
            return z, v
        self.flowed += 1
        anew = self._all(steep, z) if failed is None else self._all(steep, z) | failed
        found = self._flow(f, c, w0, torch.where(anew, guess, z), torch.where(anew, first, v))
        if failed is not None and bool((failed & found[2]).any()):
            raise ConvergenceError(self._told(where))
        taken = anew & ~found[2]  # where nothing is continued from the step before, what there is
        return torch.where(taken, found[0], z), torch.where(taken, found[1], v)

    def solve_adjoint(self, jacobian: Jacobian, by: Map, w0: Tensor, where: str) -> Tensor:
        """See :class:`Stages`."""

        def residual(mu: Tensor) -> tuple[Tensor, Tensor]:
            r = by(mu).sub(mu)
            return r, r

        start = torch.zeros_like(jacobian.z)
        first = residual(start)
        found = self._iterate(residual, start, first, first[0], lambda mu: jacobian, w0, transposed=True)
        if found.failed is not None:
            raise ConvergenceError(self._told(where))
        return found.x

    def _stage(
        self, f: Map, c: Tensor, w0: Tensor, z: Tensor, at: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """State and slope by Newton's iteration from ``z``, whose residual and slope are these, and where it failed."""

        def residual(z: Tensor) -> tuple[Tensor, Tensor]:
            v = f(z)
            return torch.addcmul(c, w0, v).sub_(z), v

        found = self._iterate(residual, z, at, c, lambda z: Jacobian(f, z), w0)
        # the slope with which z = c + w0 v holds to rounding: that of func is as rough as func is stiff
        if self.divisor is None or self.divisor[0] is not w0:
            self.divisor = w0, torch.where(w0 == 0, 1.0, w0)  # where w0 is 0, d is r
        return found.x, torch.addcdiv(found.v, found.d - found.r, self.divisor[1]), found.failed

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
    ) -> _Found:
        """``x ← x + M⁻¹ r``, each sample until the update after its last one is below the tolerance.

        Updates are compared with what is ``known`` of the size of the sample, and with its ``x``.
        """
        tol = self.solver.tolerance(x)
        if self.solver.tol is None:
            tol /= 16 if transposed else 256  # the errors of slopes may all point one way, and add up
        start, fresh, before, least = (x, at), False, None, torch.finfo(x.dtype).tiny
        found, ahead = None, None  # what is there of samples that are done, and which are not
        if self.plain is not None:
            self.factor, self.wait = (self.factor, self.wait - 1) if self.wait else (self.plain, 0)
        slowest = tol ** (1 / STAGE_PLAIN)
        left, past, calm = float(self.solver.max_iter), [], torch.zeros((), device=x.device)
        while left > 0:
            if self.factor is None or not (fresh or (self.factor.reusable and self._long_enough(w0))):
                self._renew(jacobian(x), w0)
                fresh = True
            plain = self.factor is self.plain
            left -= self.solver.max_iter / STAGE_PLAIN if plain else 1
            stale = slowest if plain else STAGE_STALE
            d = self._solved(at[0], transposed)
            new, now = x + d, self._sizes(d)
            if before is not None:
                size = self._sizes(new).maximum(self._sizes(known))
                if found is None and len(now) == 1:  # numbers of Python are quicker than tensors of one
                    n, b = now.item(), before.item()
                    if n == 0 or (b > 0 and n * (n / b) <= tol * size.item()):
                        return _Found(new, d, *at, None)
                rate = now / before.clamp(min=least)
                done = now * rate <= tol * size
                if found is None and bool(done.all()):
                    return _Found(new, d, *at, None)
                exact = done
                done = done | (now <= torch.finfo(x.dtype).eps * size)
                near = ~done & (rate > stale) & (now < 1e-3 * size)
                for bend in (False, True) if bool(near.any()) else ():
                    noise = self._sizes(self._solved(roughness(lambda x: residual(x)[0], x, at[0], bend), transposed))
                    done = done | near & (now <= STAGE_ROUNDING * noise)  # as small as rounding lets it be
                    if bool((done | ~near).all()):
                        break
                if ahead is not None and self._moved(~ahead & (now > calm), jacobian, x):
                    self._renew(jacobian(x), w0)
                    fresh, before, found, ahead = True, None, None, None
                    continue
                found = self._kept(found, ahead, new, d, at)
                ahead = torch.ones_like(done) if ahead is None else ahead
                calm = torch.where(ahead, torch.where(exact, tol * size, 16 * now), calm)  # of those that are done
                ahead = ahead & ~done
                if not bool(ahead.any()):
                    return found
                self.reached = float((now / size)[ahead].max())
                slow = ahead & ~(rate <= stale)
                if plain:  # single rates say little
                    slow = slow & (now > stale**4 * past[-4]) if len(past) > 3 else torch.zeros_like(slow)
                if not fresh and bool(slow.any()):
                    if plain:
                        self.wait, self.pause = self.pause, 4 * self.pause
                    astray = self._all(slow & ~(rate < 1), x)  # by the old matrix
                    x = torch.where(astray, start[0], x)
                    at = torch.where(astray, start[1][0], at[0]), torch.where(astray, start[1][1], at[1])
                    self._renew(jacobian(x), w0)
                    fresh, before = True, None
                    if self.factor is None or self.factor.samples != len(ahead):  # coupled in another way than before
                        found, ahead = None, None
                    continue
            x, before, fresh = new, now, False
            past.append(now)
            at = residual(x)
        failed = torch.ones_like(x, dtype=torch.bool) if ahead is None else self._all(ahead, x)
        return self._kept(found, ahead, new, d, at)._replace(failed=failed)

    def _moved(self, samples: Tensor, jacobian: Callable[[Tensor], Jacobian], x: Tensor) -> bool:
        """Whether samples that were done move on because others act on them; from then on all are one."""
        self.coupled = self.coupled or (bool(samples.any()) and jacobian(x).mixes(len(samples)))
        return self.coupled

    def _kept(
        self, found: _Found | None, ahead: Tensor | None, x: Tensor, d: Tensor, at: tuple[Tensor, Tensor]
    ) -> _Found:
        """What was found, with these for the samples that were still ``ahead``."""
        if found is None or ahead is None:
            return _Found(x, d, *at, None)
        now = self._all(ahead, x)
        x, d, r, v = (torch.where(now, new, old) for new, old in zip((x, d, *at), found[:4], strict=True))
        return _Found(x, d, r, v, None)

    def _sizes(self, x: Tensor) -> Tensor:
        """The largest number of each sample."""
        assert self.factor is not None
        return torch.linalg.vector_norm(x.reshape(self.factor.samples, -1), math.inf, dim=1)

    def _all(self, by_sample: Tensor, like: Tensor) -> Tensor:
        """One value for each sample, in the shape of the state."""
        by_sample = by_sample.reshape(-1, 1)
        return by_sample.expand(-1, like.numel() // len(by_sample)).reshape(like.shape)

    def _steep(self, d: Tensor, dv: Tensor, share: float) -> Tensor:
        """The samples with ``⟨d, dv⟩ > share ⟨d, d⟩``, for numbers of any size."""
        size = self._sizes(d)
        rest = torch.sub(dv, d, alpha=share)
        if len(size) == 1:
            return torch.dot((d / size).reshape(-1), (rest / size).reshape(-1)) > 0
        rest, d = (x.reshape(len(size), -1) / size[:, None] for x in (rest, d))
        return torch.linalg.vecdot(d, rest) > 0

    def _solved(self, r: Tensor, transposed: bool = False) -> Tensor:
        assert self.factor is not None
        self.linear_solves += 1
        return self.factor.solve_transposed(r) if transposed else self.factor.solve(r)

    def _renew(self, jacobian: Jacobian, w0: Tensor) -> None:
        if self.coupled:
            jacobian.parts = 1
        elif self.factor is not None and not self.factor.reusable and not jacobian.seems_to_mix(self.factor.samples):
            jacobian.parts = self.factor.samples
        found = self.linear.factor(jacobian, w0) or self.solver.linear.factor(jacobian, w0)
        if found is None:
            raise ConvergenceError(
                f"the Jacobian of func has not the structure that {self.solver.linear} uses. Use solver='auto'."
            )
        self.factor, self.linear, self.made = found, found.by or self.linear, (w0, float(w0.max()))
        if isinstance(found, Plain):
            self.plain = found
        else:
            self.factorisations += found.reusable

    def _long_enough(self, w0: Tensor) -> bool:
        """Whether the matrix is not one of a far longer step: its errors would be divided by ``w_0`` in the slope."""
        if self.made[0] is not w0 and self.factor is not self.plain:
            if float(w0.max()) < STAGE_SHORTER * self.made[1]:
                return False
            self.made = w0, self.made[1]
        return True

    # ---- several solutions ------------------------------------------------------------------------------------------

    def _flow(self, f: Map, c: Tensor, w0: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Follow ``dz/ds = c + w_0 f(z) - z`` from the step before to where it rests, and the samples that do not.

        Implicit steps of length 1/shift, a shift for each sample: long ones once no direction grows.
        """
        shift, r = torch.ones_like(z), torch.addcmul(c, w0, v).sub_(z)
        far = self._all(1e3 * (self._sizes(z) + self._sizes(c) + self._sizes(r)), z)
        for _ in range(2 * self.solver.max_iter):
            self._renew(Jacobian(f, z), w0 / (1 + shift))
            d = self._solved(r / (1 + shift))
            there = f(z + d)
            rest = torch.addcmul(c, w0, there).sub_(z + d)
            # as the flow goes: no direction grows faster than it is damped, and what is left shrinks or is foreseen
            steep = self._steep(d, w0 * (there - v) / (1 + shift), 0.5)
            foreseen = self._sizes(shift * d - rest) <= self._sizes(shift * d) / 2
            size = self._sizes(z).maximum(self._sizes(c))
            near = self._sizes((1 + shift) * d) <= 1e-3 * size
            good = self._all(near | ((foreseen | (self._sizes(rest) <= 0.75 * self._sizes(r))) & ~steep), z)
            rested = self._all((self._sizes(d) <= 0.1 * size) & (self._sizes(shift) < 0.1), z)
            z, v, r = torch.where(good, z + d, z), torch.where(good, there, v), torch.where(good, rest, r)
            shift = torch.where(good, shift / 2, shift * 4).clamp(1e-9, 1e30)
            lost = ~(z.abs() <= far)
            if bool((rested | lost).all()):
                break
        at_rest = self._stage(f, c, w0, z, (r, v))
        lost = self._all(self._sizes(lost.to(z.dtype)) > 0, z)
        return at_rest[0], at_rest[1], lost if at_rest[2] is None else lost | at_rest[2]

    # ---- what went wrong --------------------------------------------------------------------------------------------

    def _told(self, where: str) -> str:
        factor = self.factor
        assert factor is not None
        least = factor.least_eigenvalue()
        if factor.singular:
            what = "its linear part failed: the matrix I - w0 J is singular, w0 times an eigenvalue of J is 1"
            do = "Take another step, a smaller one unless the solution itself blows up here"
        elif factor.reached > 0.5:
            what = f"its linear part failed: GMRES left {factor.reached:.1e} of the residual"
            do = "Use Newton(linear=Krylov(size=..., preconditioner=...)), linear=Given(...), or a smaller step"
        else:
            what = "its nonlinear part failed: linear systems were solved, but their updates do not shrink"
            do = "Take a smaller step, or look at func there: kinks and jumps have no Jacobian"
        if least < 0:
            what += f"; the matrix I - w0 J is indefinite, with an eigenvalue {least:.2g}: func grows too fast"
            do = f"Take a smaller step h, with h^β at most {1 / (1 - least):.2g} times as large"
        at = f" Updates had come down to {self.reached:.1e} of the state." if math.isfinite(self.reached) else ""
        return f"Newton's method for the stage of {where} did not converge: {what}.{at} {do}."
