"""An operator given by its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import function
from ..base.grid import Mesh
from ..base.torch_private import value_of
from ..errors import InputError
from ..schemes import Scheme
from ..weights.kernel import Kernel
from .base import Operator, reals


@dataclass(frozen=True)
class CustomKernel(Operator):
    """Any memory: ``z_n = z_0 + Σ_{j≤n} w_{n-j} v_j`` with given weights ``w_0, w_1, …, w_N``.

    Implicit methods (``'gl'``, ``'l1'``, ``'trapezoid'``, ``'predictor-implicit'``, which are the same here) solve the
    stage ``z = c + w_0 f(t, z)``; the explicit ``'predictor'`` needs ``w_0 = 0``.

    Args:
        weights: a sequence or 1-D tensor of at least N + 1 weights, which may require grad; or a callable
            ``(order, h, n) -> weights`` that returns ``w_0 … w_n``.
        order: passed to the callable as a float64 tensor (groups,), one entry for each group of elements with the same
            order; weights may then be (n + 1, groups).
    """

    weights: Sequence[float] | Tensor | Callable[[Tensor, Tensor, int], Tensor]
    order: Any = None

    def __post_init__(self) -> None:
        if callable(self.weights):
            function("CustomKernel.weights", self.weights, "weights(order, h, n)")
        else:
            reals("CustomKernel.weights", self.weights)

    def numbers(self) -> dict[str, Any]:
        """See ``Operator``."""
        return {} if self.order is None else {"order": self.order}

    def check(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> None:
        """See ``Operator``."""
        self.kernel(numbers, scheme, mesh)

    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        """See ``Operator``."""
        if scheme.sums != 1 or not mesh.uniform or mesh.velocity:
            raise InputError(
                "CustomKernel has one row of weights on a uniform grid and one initial value: use method='predictor' "
                "(explicit) or 'gl' (implicit), without grading= and velocity=."
            )
        w = self._weights(numbers, mesh)
        if not scheme.implicit and bool((value_of(w[0]) != 0).any()):
            raise InputError(
                f"CustomKernel has w_0={float(w.detach()[0, 0]):g}, a weight of the slope at the new point itself. "
                "Use an implicit method such as 'gl', or weights that begin with 0."
            )
        return Kernel(w[None], w[0])

    def _weights(self, numbers: dict[str, Tensor], mesh: Mesh) -> Tensor:
        count, groups = mesh.steps + 1, mesh.horizon.shape[0]
        given: Any = self.weights
        if callable(given):
            given = given(numbers.get("order", torch.ones(groups, dtype=torch.float64)), mesh.step, mesh.steps)
        w = reals("what CustomKernel.weights(order, h, n) returns", given)
        w = w[:, None] if w.ndim == 1 else w
        if w.ndim != 2 or w.shape[0] < count or w.shape[1] not in (1, groups):
            raise InputError(
                f"CustomKernel has weights of shape {tuple(w.shape)}; {mesh.steps} steps need at least {count}, "
                f"(n + 1,) or (n + 1, {groups})."
            )
        return w[:count].expand(count, groups)
