"""Linear equations without steps by Chebyshev polynomials, if products with ``A`` are cheap and its eigenvalues real.

``z(t) = E_β(A t^β) z_0 + t^β E_{β,β+1}(A t^β) b``; with eigenvalues in ``[low, 0]`` each function is a sum of Chebyshev
polynomials, ``f(A) = Σ c_k T_k(1 - 2 A / low)``, whose degree grows like the root of ``|low| t^β``. All of this is done
by PyTorch operations, so that autograd gives all gradients, on any device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..base.policy import CHEBYSHEV_ROUNDING, CHEBYSHEV_TERMS
from ..base.torch_private import value_of
from ..special import mittag_leffler
from .base import LinearPart


def by_polynomials(
    part: LinearPart,
    low: float,
    z0: Tensor,
    b: Tensor | None,
    order: Tensor,
    horizon: Tensor,
    times: list[float],
) -> tuple[Tensor, Tensor] | None:
    """The states at these times, and the same without a tenth of the terms; None if too many terms are needed."""
    rows = torch.stack([z0] if b is None else [z0, b])
    own = horizon * torch.tensor(times, dtype=torch.float64, device=z0.device)
    table = _coefficients(low, order, own, len(rows))
    if table is None:
        return None
    terms = _polynomials(part, low, rows, table.shape[-1])
    few = math.ceil(0.9 * len(terms))
    states = torch.einsum("tsk,ks...->t...", table, terms)
    with torch.no_grad():
        fewer = torch.einsum("tsk,ks...->t...", table[..., :few], terms[:few])
    return states, fewer


def _polynomials(part: LinearPart, low: float, rows: Tensor, count: int) -> Tensor:
    """``T_k(1 - 2 A / low)`` applied to these rows, for all k: (count, …)."""

    def turned(x: Tensor) -> Tensor:
        return x - (2 / low) * part.matvec(x)

    terms = [rows, turned(rows)]
    while len(terms) < count:
        terms.append(2 * turned(terms[-1]) - terms[-2])
    return torch.stack(terms[:count])


def _coefficients(low: float, order: Tensor, times: Tensor, functions: int) -> Tensor | None:
    """``c_k`` for each time and function, (times, functions, terms), with as many terms as exceed rounding."""
    count = 32
    while count <= 2 * CHEBYSHEV_TERMS:
        found = _transformed(low, value_of(order), value_of(times), functions, count)
        scale = found.abs().sum(-1, keepdim=True)
        used = int((found.abs() > CHEBYSHEV_ROUNDING * scale).any(0).any(0).nonzero().max()) + 1
        if used <= count // 2:
            return _transformed(low, order, times, functions, count)[..., : max(2, used)]
        count *= 2
    return None


def _transformed(low: float, order: Tensor, times: Tensor, functions: int, count: int) -> Tensor:
    """The first ``count`` coefficients, from the values of the functions at Chebyshev points."""
    k = torch.arange(count, dtype=torch.float64, device=times.device)
    angles = (k + 0.5) * (math.pi / count)
    scale = times[:, None] ** order
    points = scale * (low / 2) * (1 - torch.cos(angles))
    values = [mittag_leffler(points, order), scale * mittag_leffler(points, order, order + 1)][:functions]
    cosines = torch.cos(torch.outer(angles, k)) * (2 / count)
    cosines[:, 0] /= 2
    return torch.stack(values, 1) @ cosines
