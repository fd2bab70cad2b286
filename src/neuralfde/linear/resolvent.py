"""Linear equations without steps: ``z(t) = E_β(A t^β) z_0 + t^β E_{β,β+1}(A t^β) b`` from systems with ``I - w A``.

With ``w = s^{-β}`` the Laplace transform of the solution is ``(I - w A)⁻¹ (z_0 + w b) / s``. Its inverse is an integral
over a hyperbola around the singularities. The midpoint rule for it converges geometrically in the number of systems.
There are no steps, so that stiffness costs nothing. ``horizon``, a factor of all times, enters through ``w``.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import (
    ARNOLDI_ROUNDING,
    ARNOLDI_VECTORS,
    CONTOUR_DIGITS,
    CONTOUR_GROWTH,
    CONTOUR_MATRIX,
    CONTOUR_OFF,
    DENSE_NUMBERS,
)
from ..base.torch_private import derivatives_are_watched, value_of
from ..errors import ConvergenceError, InputError
from ..special import mittag_leffler_matrix
from .arnoldi import TooManyVectors, by_arnoldi
from .bands import Bands
from .base import LinearPart, Systems
from .chebyshev import by_polynomials
from .contour import contour_for
from .dense import Matrix
from .eigenvalues import nearly_enclosing
from .sparse import Sparse


class Found(NamedTuple):
    """States (times, …), their estimated error, and the systems that were solved."""

    states: Tensor
    error: Tensor | None
    systems: Systems


class Equation(NamedTuple):
    """``D^β z = A z + b`` with ``z(0) = z_0``, all in double precision, at the times ``horizon · t``."""

    part: LinearPart
    z0: Tensor
    b: Tensor | None
    order: Tensor
    horizon: Tensor


def without_steps(given: Equation, times: list[float], estimate: bool) -> Found:
    """The solution at these positive times; with ``estimate`` it is compared with one from fewer points."""
    dtype, part = given.z0.dtype, given.part
    part = part.with_tensors([x.double() for x in part.tensors])
    if isinstance(part, Bands) and _known(part) is None:
        entries = part.entries
        part = Sparse(entries.rows, entries.columns, entries.values, entries.n)
    given = Equation(part, given.z0.double(), None if given.b is None else given.b.double(), *given[3:])
    systems, known, large = part.systems(), _known(part), isinstance(part, Sparse) and part.matrix.n > DENSE_NUMBERS
    sure = known is not None and (large or _is_easy(known, given, times))
    if known is None and isinstance(part, Sparse):
        known = nearly_enclosing(replace(part.matrix, values=value_of(part.matrix.values)))
    if known is None:
        raise InputError(
            "linear= without func and without steps needs to know where the eigenvalues of A are: for a large matrix "
            "they are known only if it is sparse, tridiagonal or diagonal in a transform. Give steps= or rtol=."
        )
    low = float(known.min()) if large and not known.is_complex() else 0.0
    sums = by_polynomials(part, low, *given[1:], times) if low < 0 else None
    if sums is not None:
        (states, fewer), systems.why = sums, "Chebyshev polynomials in a sparse matrix"
    elif isinstance(part, Matrix) and part.matrix.shape[-1] <= CONTOUR_MATRIX and not sure:
        states, fewer = _by_matrix(given, part, times), None
    else:
        states, fewer = _integral(given, known, times, systems, 1.0), None
        if estimate or not (sure or derivatives_are_watched()):
            with torch.no_grad():
                fewer = _integral(given, known, times, systems, 0.8)
            if not float((states.detach() - fewer).abs().max()) <= CONTOUR_OFF * float(states.detach().abs().max()):
                raise ConvergenceError(
                    "linear= is too far from a normal matrix for a solution without steps, which relies on "
                    "eigenvalues. Give steps= or rtol=."
                )
    error = (states.detach() - fewer).abs().to(dtype) if estimate and fewer is not None else None
    return Found(states.to(dtype), error, systems)


def _known(part: LinearPart) -> Tensor | None:
    return part.with_tensors([value_of(x) for x in part.tensors]).spectrum()


def _integral(given: Equation, known: Tensor, times: list[float], systems: Systems, share: float) -> Tensor:
    """The states at these times, from as many nodes as a ``share`` of all digits needs."""
    z0, b, part, poles = given.z0, given.b, given.part, _poles(known, given)
    grows = bool((poles.real * times[-1] > CONTOUR_GROWTH).any())
    contour = None if grows else contour_for(poles, times, share * CONTOUR_DIGITS)
    if contour is None:
        raise InputError(
            "linear= without func and without steps needs an A that turns and grows little up to the last time, or a "
            f"matrix of up to {CONTOUR_MATRIX} rows; this one has eigenvalues up to {float(known.abs().max()):.3g}. "
            "Give steps= or rtol=."
        )
    nodes, gains = contour.nodes.to(z0.device), contour.gains.to(z0.device)
    q = torch.exp(given.order * torch.log(nodes / given.horizon))
    size = float(known.abs().max()) * float(value_of(given.horizon) * times[-1]) ** float(value_of(given.order))
    few = size < ARNOLDI_VECTORS**2 and not derivatives_are_watched()
    if isinstance(part, Sparse) and part.matrix.n > DENSE_NUMBERS and few:
        r = part.matvec(z0) if b is None else part.matvec(z0) + b
        with contextlib.suppress(TooManyVectors):
            states = z0 + by_arnoldi(part, q, gains, r, ARNOLDI_ROUNDING**share)
            systems.why = "an Arnoldi basis of a sparse matrix"
            return states
    start, source = z0.to(torch.complex128), None if b is None else b.to(torch.complex128)
    found = [systems.solve(w, start if source is None else start + w * source) for w in (1 / q).unbind(0)]
    return torch.tensordot(gains, torch.stack(found), 1).real


def _poles(known: Tensor, given: Equation) -> Tensor:
    """The poles of the Laplace transform, ``s^β = λ``, one of each conjugate pair, for times without ``horizon``."""
    beta = float(value_of(given.order))
    known = known[known != 0].to(torch.complex128).cpu()
    size, angle = torch.log(known.abs()) / beta, torch.angle(known).abs()
    seen = angle < beta * math.pi
    return float(value_of(given.horizon)) * torch.polar(torch.exp(size[seen].clamp(max=600.0)), angle[seen] / beta)


def _is_easy(known: Tensor, given: Equation, times: list[float]) -> bool:
    """Whether eigenvalues are real and solutions grow little."""
    straight = not known.is_complex() or bool((known.imag.abs() <= 1e-8 * known.abs().max()).all())
    return straight and not bool((_poles(known, given).real * times[-1] > CONTOUR_GROWTH).any())


def _by_matrix(given: Equation, part: Matrix, times: list[float]) -> Tensor:
    """The Mittag-Leffler function of a small matrix with eigenvalues of any kind."""
    states, order = [], given.order
    for t in times:
        scale = (t * given.horizon) ** order
        z = Matrix(mittag_leffler_matrix(part.matrix * scale, order)).matvec(given.z0)
        if given.b is not None:
            z = z + scale * Matrix(mittag_leffler_matrix(part.matrix * scale, order, order + 1)).matvec(given.b)
        states.append(z)
    return torch.stack(states)
