"""``x ← x + M⁻¹ r``, the iteration of both passes: a factor is kept while it is useful, and the residual decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import NORM_NUMBERS, STAGE_NEAR, STAGE_PLAIN, STAGE_SHORTER, STAGE_STALE
from ..errors import ConvergenceError
from .jacobian import Jacobian, irregular
from .krylov import Plain
from .linear import Factor, Linear
from .stage_solvers import Stages, StageSolver, roughness, rounded, rounding_of

#: From x to its residual and, in the forward pass, its slope.
Residual = Callable[[Tensor], tuple[Tensor, Tensor]]


class Found(NamedTuple):
    """Where an iteration ended: x after its last update d, residual r and slope v before it, and where it failed."""

    x: Tensor
    d: Tensor
    r: Tensor
    v: Tensor
    failed: Tensor | None = None

    def where(self, some: Tensor, other: Found) -> Found:
        """This result for the samples in ``some``, the other one for the rest."""
        now = spread(some, self.x)
        return Found(*(torch.where(now, a, b) for a, b in zip(self[:4], other[:4], strict=True)))


class _Samples:
    """The results so far; ``ahead`` are the samples that have not converged, ``calm`` how far the others may move."""

    found: Found | None = None
    ahead: Tensor | None = None
    calm: Tensor | float = 0.0

    def keep(self, new: Found, done: Tensor, calm: Tensor) -> Tensor:
        """Take the new results of samples that had not converged; returns those that still have not."""
        if self.ahead is None or self.found is None:
            self.found, self.ahead = new, torch.ones_like(done)
        else:
            self.found = new.where(self.ahead, self.found)
        self.calm = torch.where(self.ahead, calm, self.calm)
        self.ahead = self.ahead & ~done
        return self.ahead


class Iteration(Stages):
    """The stage solver of one solve, with its current factor.

    Attributes:
        factor: the factor in use.
        reached: the last update of the worst sample, relative to its state.
    """

    def __init__(self, solver: StageSolver, linear: Linear) -> None:
        self.solver, self.asked, self.linear = solver, linear, linear
        self.factor: Factor | None = None
        self.reached = math.inf
        self.made: tuple[Tensor | None, float] = None, 0.0  # the last w0, and the size of the one of the matrix
        self.weight: tuple[Tensor | None, float, float] = None, 0.0, 0.0  # the last w0, its size, the largest so far
        self.coupled = False  # whether samples have turned out to interact
        self.plain: Factor | None = None  # fixed-point iteration, if the Jacobian has no structure
        self.wait, self.pause = 0, 1  # stages until fixed-point iteration is tried again, now and after a new failure

    def iterate(
        self,
        residual: Residual,
        x: Tensor,
        at: tuple[Tensor, Tensor],
        known: Tensor,
        jacobian: Callable[[Tensor], Jacobian],
        w0: Tensor,
        transposed: bool = False,
    ) -> Found:
        """Iterate from ``x``, with residual and slope ``at``, until for each sample the next update is negligible.

        Updates are compared with the size of ``x`` and of ``known`` in each sample.
        """
        tol = self.solver.tolerance(x)
        if self.solver.tol is None:
            # a tighter tolerance, since errors of slopes may have the same sign in all steps, and add up
            tol *= 1 / 16 if transposed else self._share(w0) / 256
        if self.plain is not None:
            self.factor, self.wait = (self.factor, self.wait - 1) if self.wait else (self.plain, 0)
        start, fresh, own, left = (x, at), False, False, float(self.solver.max_iter)
        past: list[Tensor] = []  # the sizes of the updates by this factor
        last: Tensor | None = None  # the ratio of the last two of them
        seen = _Samples()
        while left > 0:
            if self.factor is None or not (fresh or (self.factor.reusable and self._serves(w0))):
                self.renew(jacobian(x), w0)
                fresh = own = True
            assert self.factor is not None
            plain = self.factor is self.plain
            left -= self.solver.max_iter / STAGE_PLAIN if plain else 1
            stale = tol ** (1 / STAGE_PLAIN) if plain else STAGE_STALE
            d = self.solved(at[0], transposed)
            new, now = Found(x + d, d, *at), self.sizes(d)
            if fresh and not math.isfinite(now.max()):  # as the derivative of a root is at 0: one step without it
                x = torch.where(spread(now < math.inf, x), x, x + at[0])
                start = x, (at := residual(x))
                past, seen = [], seen if self.renew(jacobian(x), w0).samples == len(now) else _Samples()
                continue
            if past:
                size, rate = self.sizes(new.x), now / past[-1].clamp(min=torch.finfo(x.dtype).tiny)
                last = last if len(past) > 1 else None
                pace = rate if last is None else rate.maximum(last)
                if last is None and self.factor.reusable and not (transposed and own):
                    if self.factor.rate is None and bool((now * rate <= tol * size).any()):
                        self.factor.rate = self._tried(residual, x, at[0], known, transposed)
                    pace = pace if self.factor.rate is None else pace.maximum(self.factor.rate)
                # Python's numbers are faster than tensors of one element
                alone = seen.found is None and len(now) == 1
                if alone and now.item() * pace.item() <= tol * size.item() < math.inf:
                    self.factor.rate = self.factor.rate if last is None else pace
                    return new
                size = size.maximum(self.sizes(known))
                finite = size < math.inf
                exact = finite & (now * pace <= tol * size)
                if seen.found is None and bool(exact.all()):
                    self.factor.rate = self.factor.rate if last is None else pace
                    return new
                done = exact | (finite & (now <= torch.finfo(x.dtype).eps * size))
                near = ~done & (rate > stale) & (now < STAGE_NEAR * size)
                if bool(near.any()):
                    noise = partial(self._noise, residual, x, at[0], transposed)
                    done = done | rounded(near, now, noise)
                if seen.ahead is not None and self._moved(~seen.ahead & (now > seen.calm), jacobian, x):
                    self.renew(jacobian(x), w0)
                    fresh, own, past, seen = True, True, [], _Samples()
                    continue
                calm = max(tol, 16 * torch.finfo(x.dtype).eps)  # below it all that moves is rounding
                ahead = seen.keep(new, done, torch.where(exact, calm * size, 16 * now))
                if seen.found is not None and not bool(ahead.any()):
                    return seen.found
                self.reached = float((now / size)[ahead].max())
                slow = ahead & ~(rate <= stale)
                if plain and len(past) > 3:  # a single rate says little
                    slow = slow & ~(now <= stale**4 * past[-4])
                if not fresh and not (plain and len(past) < 4) and bool(slow.any()):
                    self.wait, self.pause = (self.pause, 4 * self.pause) if plain else (self.wait, self.pause)
                    astray = spread(slow & ~(rate < 1), x)  # diverged with the old matrix: begin again
                    x = torch.where(astray, start[0], x)
                    at = torch.where(astray, start[1][0], at[0]), torch.where(astray, start[1][1], at[1])
                    fresh, own, past = True, True, []
                    if self.renew(jacobian(x), w0).samples != len(ahead):  # the coupling of samples has changed
                        seen = _Samples()
                    continue
                last = rate
            past.append(now)
            x, fresh = new.x, False
            at = residual(x)
        if not self.coupled and self._moved(torch.ones_like(now, dtype=torch.bool), jacobian, start[0]):
            self.renew(jacobian(start[0]), w0)  # samples that interact since this stage are one sample
            return self.iterate(residual, *start, known, jacobian, w0, transposed)
        if seen.found is None or seen.ahead is None:
            return new._replace(failed=torch.ones_like(x, dtype=torch.bool))
        return new.where(seen.ahead, seen.found)._replace(failed=spread(seen.ahead, x))

    def _tried(self, residual: Residual, x: Tensor, r: Tensor, known: Tensor, transposed: bool) -> Tensor:
        """By which factor an update by the factor in use shrinks an irregular error of ``x``.

        The ratio of the first two updates alone says little: the first may lie where the factor is exact by chance.
        """
        d = rounding_of(irregular(x)) / math.sqrt(torch.finfo(x.dtype).eps)
        d = d * spread(self.sizes(x).maximum(self.sizes(known)), x)
        left = d + self.solved(residual(x + d)[0] - r, transposed)
        return self.sizes(left) / self.sizes(d).clamp(min=torch.finfo(x.dtype).tiny)

    def _noise(self, residual: Residual, x: Tensor, r: Tensor, transposed: bool, bend: bool) -> Tensor:
        """The size of rounding errors in the update of each sample; the residual of an adjoint is linear."""
        return self.sizes(self.solved(roughness(lambda x: residual(x)[0], x, r, bend, transposed), transposed))

    def _moved(self, samples: Tensor, jacobian: Callable[[Tensor], Jacobian], x: Tensor) -> bool:
        """Whether converged samples move again because others act on them; from then on all count as one sample."""
        if bool(samples.any()):
            self.coupled = self.coupled or jacobian(x).mixes(len(samples))
            return self.coupled
        return False

    def sizes(self, x: Tensor) -> Tensor:
        """The largest absolute value in each sample, (samples,)."""
        assert self.factor is not None
        x = x.reshape(self.factor.samples, -1)
        return x.abs().amax(1) if x.numel() > NORM_NUMBERS else torch.linalg.vector_norm(x, math.inf, dim=1)

    def steep(self, d: Tensor, dv: Tensor, share: float) -> Tensor:
        """The samples with ``⟨d, dv⟩ > share ⟨d, d⟩``, computed without overflow or underflow."""
        size = self.sizes(d)
        rest = torch.sub(dv, d, alpha=share)
        if len(size) == 1:
            return torch.dot((d / size).reshape(-1), (rest / size).reshape(-1)) > 0
        rest, d = (x.reshape(len(size), -1) / size[:, None] for x in (rest, d))
        return torch.linalg.vecdot(d, rest) > 0

    def damped(self, w: Tensor, r: Tensor) -> Tensor | None:
        """See :class:`Stages`."""
        factor = None if self.factor is None else self.factor.at(w)
        return None if factor is None else factor.solve(r)

    def solved(self, r: Tensor, transposed: bool = False) -> Tensor:
        """``M⁻¹ r``, or ``M⁻ᵀ r``."""
        assert self.factor is not None
        self.linear_solves += 1
        return self.factor.solve(r, transposed)

    def renew(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        """Make a new factor of ``I - w_0 J``, and use it from now on."""
        if self.coupled:
            jacobian.parts = 1
            if self.plain is not None:
                self.plain.samples, self.plain.rate = 1, None
        elif self.factor is not None and not self.factor.reusable and not jacobian.seems_to_mix(self.factor.samples):
            jacobian.parts = self.factor.samples
        found = self.linear.factor(jacobian, w0) or self.asked.factor(jacobian, w0)
        if found is None:
            raise ConvergenceError(
                f"the Jacobian of func has not the structure that {self.asked} uses. Use solver='auto'."
            )
        self.factor, self.linear, self.made = found, found.by or self.linear, (w0, float(w0.max()))
        if isinstance(found, Plain):
            self.plain = found
        else:
            self.factorisations += found.reusable
        return found

    def _share(self, w0: Tensor) -> float:
        """This weight relative to the largest so far: the slope of a short step has a larger weight in longer steps."""
        if self.weight[0] is not w0:
            size = float(w0.max())
            self.weight = w0, size, max(size, self.weight[2])
        return self.weight[1] / (self.weight[2] or 1.0) or 1.0

    def _serves(self, w0: Tensor) -> bool:
        """Whether the factor can be used for this weight: not if it is that of a far longer step, since the slope is
        found by dividing by ``w_0``, which would enlarge its errors."""
        if self.made[0] is not w0 and self.factor is not self.plain:
            assert self.factor is not None
            found, size = self.factor.at(w0), float(w0.max())
            if found is None and size < STAGE_SHORTER * self.made[1]:
                return False
            if found is not None:
                found.rate = self.factor.rate
            self.factor, self.made = found or self.factor, (w0, size if found else self.made[1])
        return True

    def told(self, where: str) -> str:
        """The message for a stage that was not solved: what went wrong, and what to do."""
        factor = self.factor
        assert factor is not None
        least = factor.least_eigenvalue()
        if factor.singular:
            what = "its linear part failed: the matrix I - w0 J is singular, w0 times an eigenvalue of J is 1"
            do = "Use another step size, a smaller one unless the solution itself blows up here"
        elif factor.reached > 0.5:
            what = f"its linear part failed: GMRES left {factor.reached:.1e} of the residual"
            do = "Use Newton(linear=Krylov(size=..., preconditioner=...)), linear=Given(...), or a smaller step"
        else:
            what = "its nonlinear part failed: linear systems were solved, but their updates do not shrink"
            do = "Use a smaller step, or Newton(max_iter=...), or check func there: kinks and jumps have no Jacobian"
        if least < 0:
            what += f"; the matrix I - w0 J is indefinite, with an eigenvalue {least:.2g}: func grows too fast"
            do = f"Use a smaller step h, with h^β at most {shorter(least)} times as large"
        at = f" The last updates were {self.reached:.1e} of the state." if math.isfinite(self.reached) else ""
        return f"Newton's method for the stage of {where} did not converge: {what}.{at} {do}."


def spread(by_sample: Tensor, like: Tensor) -> Tensor:
    """One value for each sample, in the shape of the state."""
    by_sample = by_sample.reshape(-1, 1)
    return by_sample.expand(-1, like.numel() // len(by_sample)).reshape(like.shape)


def shorter(least: float) -> str:
    """By which factor ``w_0`` has to shrink if the smallest eigenvalue of ``I - w_0 J`` is to be positive, at most."""
    share = 1 / (1 - least)
    unit = 10.0 ** (math.floor(math.log10(share)) - 1)
    return f"{math.floor(share / unit) * unit:.2g}"  # rounded up, the step would be too long again
