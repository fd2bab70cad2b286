"""Small matrix-free solvers for implicit stages: GMRES, fixed point, Newton–Krylov."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConvergenceError, InputError

Linear = Callable[[Tensor], Tensor]


def gmres(apply: Linear, rhs: Tensor, tol: float, max_iter: int) -> tuple[Tensor, float]:
    """Solve ``apply(x) = rhs`` (Saad and Schultz 1986); returns x and the relative residual that was reached."""
    norm = float(rhs.norm())
    if norm == 0:
        return torch.zeros_like(rhs), 0.0
    basis = [rhs / norm]
    hessenberg = torch.zeros(max_iter + 1, max_iter, dtype=torch.float64)
    target = torch.zeros(max_iter + 1, dtype=torch.float64)
    target[0] = norm
    for k in range(max_iter):
        w = apply(basis[k])
        for _ in range(2):  # twice is enough: orthogonality to rounding
            for i, q in enumerate(basis):
                h = float((q * w).sum())
                hessenberg[i, k] += h
                w = w - h * q
        length = float(w.norm())
        hessenberg[k + 1, k] = length
        h_k, e_k = hessenberg[: k + 2, : k + 1], target[: k + 2]
        y = torch.linalg.lstsq(h_k, e_k[:, None]).solution[:, 0]
        residual = float((h_k @ y - e_k).norm()) / norm
        if residual <= tol or length <= 1e-14 * norm or k + 1 == max_iter or not math.isfinite(residual):
            return sum(c * q for c, q in zip(y.tolist(), basis, strict=True)), residual  # type: ignore[return-value]
        basis.append(w / length)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class StageSolver(ABC):
    """Solves ``z = c + w_0 f(t, z)`` in the forward pass and ``(I - w_0 Jᵀ) μ = r`` in the backward pass.

    ``tol`` is relative to ``1 + |z|`` in the maximum norm; the default is 1e-11 in float64 and 2e-6 in float32.
    """

    tol: float | None = None
    max_iter: int = 50

    def __post_init__(self) -> None:
        if self.tol is not None and not self.tol > 0:
            raise InputError(f"{type(self).__name__}(tol={self.tol:g}): the tolerance must be positive.")
        if self.max_iter < 1:
            raise InputError(f"{type(self).__name__}(max_iter={self.max_iter}): at least one iteration is needed.")

    def tolerance(self, like: Tensor) -> float:
        """The tolerance in force for states of this dtype."""
        if self.tol is not None:
            return self.tol
        return 1e-11 if like.dtype == torch.float64 else 2e-6

    @abstractmethod
    def solve(self, f: Linear, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> Tensor:
        """The state z of the stage, from the given first guess."""

    @abstractmethod
    def solve_adjoint(self, vjp: Linear, rhs: Tensor, w0: Tensor, where: str) -> Tensor:
        """The multiplier μ of the stage; ``vjp(μ)`` is ``Jᵀ μ``."""


@dataclass(frozen=True)
class FixedPoint(StageSolver):
    """``z ← c + w_0 f(t, z)`` until it stands still; converges where ``w_0 ‖J‖ < 1``, that is for small steps."""

    max_iter: int = 100

    def solve(self, f: Linear, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> Tensor:
        """See :class:`StageSolver`."""
        tol, z, change, unseen = self.tolerance(c), guess, math.inf, 0
        for k in range(self.max_iter):
            new = torch.addcmul(c, w0, f(z))
            if unseen > 0 and k + 1 < self.max_iter:  # looking at a change costs as much as a small func
                z, unseen = new, unseen - 1
                continue
            before, change = change, float((new - z).abs_().div_(new.abs().add_(1)).max())
            z = new
            if change <= tol:
                return z
            if not math.isfinite(change):
                break
            unseen = _far_from(tol, before, change)
        raise ConvergenceError(_advice("fixed-point iteration", where, self.max_iter, change, tol, newton=True))

    def solve_adjoint(self, vjp: Linear, rhs: Tensor, w0: Tensor, where: str) -> Tensor:
        """See :class:`StageSolver`."""
        tol, mu, change = self.tolerance(rhs), rhs, math.inf
        scale = float(rhs.abs().max())
        for _ in range(2 * self.max_iter):
            new = rhs + vjp(w0 * mu)
            change = float((new - mu).abs().max())
            mu = new
            if change <= tol * scale:
                return mu
            if not math.isfinite(change):
                break
        raise ConvergenceError(_advice("adjoint fixed-point iteration", where, self.max_iter, change, tol, newton=True))


def _far_from(tol: float, before: float, now: float) -> int:
    """How many changes in a row are larger than ``tol`` if they go on to shrink as the last two did, less one."""
    ratio = now / before
    return max(0, int(math.log(tol / now) / math.log(ratio)) - 1) if 0 < ratio < 1 else 0


@dataclass(frozen=True)
class NewtonKrylov(StageSolver):
    """Newton's method with GMRES on directional differences: for stiff stages and large steps."""

    max_iter: int = 20
    krylov: int = 30

    def solve(self, f: Linear, c: Tensor, w0: Tensor, guess: Tensor, where: str) -> Tensor:
        """See :class:`StageSolver`."""
        tol, z, size = self.tolerance(c), guess, math.inf
        slope = f(z)
        for _ in range(self.max_iter):
            residual = c + w0 * slope - z
            size = float((residual.abs() / (1 + z.abs())).max())
            if size <= tol:
                return c + w0 * slope
            if not math.isfinite(size):
                break
            reach = (1 + float(z.norm())) * math.sqrt(torch.finfo(z.dtype).eps)

            def jacobian(d: Tensor, z: Tensor = z, slope: Tensor = slope, reach: float = reach) -> Tensor:
                step = reach / max(float(d.norm()), 1e-30)
                return d - w0 * (f(z + step * d) - slope) / step

            update, _ = gmres(jacobian, residual, 1e-3, self.krylov)
            z = z + update
            slope = f(z)
        raise ConvergenceError(_advice("Newton–Krylov iteration", where, self.max_iter, size, tol, newton=False))

    def solve_adjoint(self, vjp: Linear, rhs: Tensor, w0: Tensor, where: str) -> Tensor:
        """See :class:`StageSolver`."""
        tol = min(self.tolerance(rhs), 1e-6)
        tol = max(tol * 1e-2, 4 * torch.finfo(rhs.dtype).eps)
        mu, residual = torch.zeros_like(rhs), math.inf
        for _ in range(self.max_iter):  # restarts double as iterative refinement
            defect = rhs - mu + vjp(w0 * mu)
            residual = float(defect.norm()) / max(float(rhs.norm()), 1e-300)
            if residual <= tol:
                return mu
            update, _ = gmres(lambda x: x - vjp(w0 * x), defect, tol, self.krylov)
            mu = mu + update
        if residual <= self.tolerance(rhs):
            return mu
        raise ConvergenceError(_advice("adjoint GMRES", where, self.max_iter, residual, tol, newton=False))


def _advice(what: str, where: str, iterations: int, reached: float, tol: float, newton: bool) -> str:
    other = "solver='newton', " if newton else "a larger krylov= in NewtonKrylov, "
    return (
        f"the {what} of {where} stopped at {reached:.2e} after {iterations} iterations; {tol:.1e} was asked for. "
        f"Try a smaller step, {other}a larger max_iter or tol, or an explicit scheme if the problem is not stiff."
    )


#: Names for ``solver=``.
SOLVERS: dict[str, StageSolver] = {"fixed-point": FixedPoint(), "newton": NewtonKrylov()}
