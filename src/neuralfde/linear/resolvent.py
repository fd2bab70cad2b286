"""Linear equations without steps: ``z(t) = E_β(A t^β) z_0 + t^β E_{β,β+1}(A t^β) b`` from systems with ``I - w A``.

With ``w = s^{-β}`` the transform of the solution is ``(I - w A)⁻¹ (z_0 + w b) / s``. Its inverse, an integral over the
parabola ``s = μ (1 + iu)²``, is summed by the midpoint rule, which converges like ``8^{-N}`` in the number of systems
for one time, more slowly for all times of a window at once (Weideman and Trefethen 2007). A step never appears, so that
stiffness costs nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.policy import DENSE_NUMBERS, PARABOLA_DIGITS, PARABOLA_GROWTH, PARABOLA_MATRIX, PARABOLA_WINDOW
from ..base.torch_private import value_of
from ..errors import InputError
from ..special import mittag_leffler_matrix
from .base import LinearPart, Systems
from .chebyshev import by_polynomials
from .dense import Matrix
from .sparse import Sparse


class Found(NamedTuple):
    """States (times, …), what they may be off by, and what they cost."""

    states: Tensor
    error: Tensor | None
    systems: Systems


def without_steps(
    part: LinearPart, z0: Tensor, b: Tensor | None, order: Tensor, times: list[float], estimate: bool
) -> Found:
    """The solution at these positive times; with ``estimate`` an integral over fewer points is compared with it."""
    wide = part.with_tensors([x.double() for x in part.tensors])
    systems = wide.systems()
    known = _by_products(wide, z0, b, order, times)
    if known is not None:
        systems.why = "Chebyshev polynomials in a sparse matrix"
        error = (known[0].detach() - known[1]).abs().to(z0.dtype) if estimate else None
        return Found(known[0].to(z0.dtype), error, systems)
    shift = _shift(wide, float(value_of(order)), times[-1])
    start, source = z0.to(torch.complex128), None if b is None else b.to(torch.complex128)
    if shift is None:
        found, error = _by_matrix(wide, z0.double(), None if b is None else b.double(), order, times), None
        return Found(found.to(z0.dtype), error, systems)
    states = _integral(systems, start, source, order, times, shift, PARABOLA_DIGITS)
    error = None
    if estimate:
        with torch.no_grad():
            error = (
                (states - _integral(systems, start, source, order, times, shift, 0.8 * PARABOLA_DIGITS))
                .abs()
                .to(z0.dtype)
            )
    return Found(states.to(z0.dtype), error, systems)


def _by_products(
    part: LinearPart, z0: Tensor, b: Tensor | None, order: Tensor, times: list[float]
) -> tuple[Tensor, Tensor] | None:
    """From products with a large sparse matrix, where its eigenvalues are known to lie between two numbers."""
    if not isinstance(part, Sparse) or part.n <= DENSE_NUMBERS:
        return None
    ends = part.with_tensors([value_of(x) for x in part.tensors]).spectrum()
    if ends is None or not float(ends.min()) < 0:
        return None
    wide = None if b is None else b.double()
    return by_polynomials(part, float(ends.min()), z0.double(), wide, order, times)


def _integral(
    systems: Systems, z0: Tensor, b: Tensor | None, order: Tensor, times: list[float], shift: float, digits: float
) -> Tensor:
    """The states at these times, a parabola for each window of them."""
    states: list[Tensor] = []
    while len(states) < len(times):
        first = times[len(states)]
        window = [t for t in times[len(states) :] if t <= PARABOLA_WINDOW * first]
        root = math.sqrt(8 * window[-1] / first + 1)
        nodes = math.ceil(digits * root / (2 * math.pi))
        u = (torch.arange(nodes, dtype=torch.float64) + 0.5) * (root / nodes)
        vertex = math.pi * nodes / (4 * root * window[-1])
        s = (shift + vertex * torch.complex(torch.ones_like(u), u) ** 2).to(z0.device)
        weights = (2 * vertex * root / (nodes * math.pi) * torch.complex(torch.ones_like(u), u)).to(z0.device) / s
        powers = torch.exp(-order * torch.log(s))
        found = [systems.solve(w, z0 if b is None else z0 + w * b) for w in powers.unbind(0)]
        grown = torch.exp(s * torch.tensor(window, dtype=torch.float64, device=s.device)[:, None]) * weights
        states += torch.tensordot(grown, torch.stack(found), 1).real.unbind(0)
    return torch.stack(states)


def _shift(part: LinearPart, order: float, last: float) -> float | None:
    """How far right of 0 the singularities reach; None where they are not on the real axis, in a small matrix."""
    known = part.with_tensors([value_of(x) for x in part.tensors]).spectrum()
    if known is None:
        raise InputError(
            "linear= without func and without steps needs to know that the eigenvalues of A are real: those of a large "
            "matrix are known where it is symmetric, tridiagonal or diagonal in a transform. Give steps= or rtol=."
        )
    real, size = known.real, float(known.abs().max()) or 1.0
    shift = max(0.0, float(real.max())) ** (1 / order)
    straight = not known.is_complex() or float(known.imag.abs().max()) <= 1e-8 * size
    if straight and shift * last <= PARABOLA_GROWTH:
        return shift
    if isinstance(part, Matrix) and part.matrix.shape[-1] <= PARABOLA_MATRIX:
        return None
    raise InputError(
        "linear= without func and without steps takes real eigenvalues that grow little up to the last time, or a "
        f"matrix of up to {PARABOLA_MATRIX} numbers; this one reaches {float(real.max()):.3g}. Give steps= or rtol=."
    )


def _by_matrix(part: LinearPart, z0: Tensor, b: Tensor | None, order: Tensor, times: list[float]) -> Tensor:
    """The Mittag-Leffler function of a small matrix with eigenvalues of any kind."""
    assert isinstance(part, Matrix)
    states = []
    for t in times:
        scaled = part.matrix * t**order
        z = Matrix(mittag_leffler_matrix(scaled, order)).matvec(z0)
        if b is not None:
            z = z + t**order * Matrix(mittag_leffler_matrix(scaled, order, order + 1)).matvec(b)
        states.append(z)
    return torch.stack(states)
