"""A scheme that is implicit in a linear part and explicit in the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..weights import meshes, uniform
from ..weights.kernel import Kernel
from .base import Scheme, Slope
from .multistep import coefficients


@dataclass(frozen=True)
class IMEX(Scheme):
    """Implicit in ``linear=``, explicit in ``func``: ``z_n = c_n + w_0 (A z_n + f(t_n, p_n))``.

    ``p_n = 2 z_{n-1} - z_{n-2}`` is the extrapolated state, and ``A`` is ``linear=``; without it the scheme is
    explicit. A step takes one evaluation and one linear solve: ``z = p + (I - w_0 A)⁻¹ (c + w_0 (A p + f(p)) - p)``.

    On uniform grids ``c_n`` is the convolution quadrature of BDF2 with ``v_0 / 2`` added to the first slope (Jin, Li
    and Zhou 2017), which keeps order 2 where solutions behave like ``t^β`` and damps fast modes. Order 2 if ``f`` is
    linear or the solution smooth, otherwise min(2, 1 + 2β) (Wang and Zhou 2020): ``f`` then depends on squares of the
    first states, whose errors the correction does not remove. Starting weights would, but they need first slopes as
    accurate as implicit ones. On meshes the sum is that of the trapezoid rule: order 2 if the slope is smooth or
    ``grading=2``, 1 + β otherwise.

    ``uneven``: steps may have any lengths; the slope is then solved for, ``(I - w_0 A) v = A c + f(p)``, unless
    ``w_0 A`` is so large that the difference of states is more accurate.

    ``p_n`` is a second sum over the same slopes, so its gradient is exact like that of any sum.
    """

    part: Any = field(default=None, compare=False, repr=False)
    systems: Any = field(default=None, compare=False, repr=False)
    uneven: bool = field(default=False, compare=False, repr=False)
    implicit = False
    sums = 2
    slopes_are_at_states = False
    reach = 1 / 3

    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """See :class:`Scheme`."""
        w = torch.exp(order * uniform.log(step)) * coefficients(order, steps + 1, "bdf2")
        zero = torch.zeros_like(w[:1])
        start = torch.cat([-w[:1], w[:-1] / 2 - w[1:]])
        both = torch.stack([torch.cat([zero, x])[: steps + 1] for x in (w, start)])  # the weights of z_{n-1}
        ahead = 2 * both - torch.cat([torch.zeros_like(both[:, :1]), both], 1)[:, : steps + 1]
        return Kernel(torch.stack([w, ahead[0]]), w[0], torch.stack([start, ahead[1]])[:, None])

    def kernel_on(self, order: Tensor, times: Tensor) -> Kernel:
        """See :class:`Scheme`."""
        matrix = meshes.trapezoid(order, times)
        return meshes.kernel_of(matrix, meshes.extrapolated(matrix, times))

    def expected_order(self, order: float, smooth: bool) -> float:
        """See :class:`Scheme`."""
        return 2.0 if smooth else min(2.0, 1 + 2 * order)

    def bound(self, args: tuple[Any, ...]) -> IMEX:
        """See :class:`Scheme`; the tensors of ``A`` are the last argument."""
        if self.part is None:
            return self
        return replace(self, systems=self.part.with_tensors(args[-1] or self.part.tensors).systems())

    def explicit_part(self, f: Slope) -> Slope:
        """See :class:`Scheme`."""
        return f if self.systems is None else lambda z: f(z) - self.systems.part.matvec(z)

    def open_stages(self) -> Any:
        """The systems with ``I - w_0 A``, which count their factorisations and solves."""
        return self.systems

    def evaluate(self, f: Slope, x: Sequence[Tensor], w0: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        """See :class:`Scheme`."""
        c, p = x
        v = f(p)
        if self.systems is None:
            return torch.addcmul(c, w0, v), v
        if self.uneven:  # in a step far shorter than the next, z - c is all rounding, unless w0 A is large
            large = self.systems.is_large(w0, c)
            right = torch.where(large, torch.addcmul(c - p, w0, v), v + self.systems.part.matvec(c - p))
            found = self.systems.solve(w0, right)
            z = torch.where(large, p + found, torch.addcmul(c, w0, found))
            return z, torch.where(large, (z - c) / w0, found)
        z = p + self.systems.solve(w0, torch.addcmul(c - p, w0, v))
        return z, (z - c) / w0  # the slope with which z = c + w0 v holds to rounding
