"""An order that varies in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import function, number
from ..base.grid import Mesh
from ..base.torch_private import value_of
from ..errors import InputError
from ..schemes import Scheme
from ..weights.kernel import Kernel
from .base import Operator
from .caputo import check_order


@dataclass(frozen=True)
class VariableOrder(Operator):
    """An order that varies in time: ``z(t) = z_0 + 1/Γ(β(t)) ∫₀ᵗ (t-s)^{β(t)-1} f(s, z(s)) ds`` (Samko 1995).

    Step ``n`` uses the order ``β(t_n)``. The weights are a full triangular matrix, so it needs ``history='full'`` and
    memory for N² numbers.

    Args:
        fn: β as a function of time. It is called once with the grid times, a float64 tensor (steps + 1,), and returns
            as many orders in (0, 1]. Parameters of a module, and tensors it uses that require grad, get gradients.
    """

    fn: Callable[[Tensor], Tensor]
    toeplitz = False

    def __post_init__(self) -> None:
        function("VariableOrder.fn", self.fn, "fn(times)")

    def numbers(self) -> dict[str, Any]:
        """See ``Operator``."""
        return {}

    def check(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> None:
        """See ``Operator``."""
        self._orders(scheme, mesh)

    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        """See ``Operator``."""
        orders = self._orders(scheme, mesh)
        rows = mesh.steps + 1
        groups = mesh.horizon.shape[0]
        if not mesh.uniform:
            return scheme.kernel_on(orders[:, None].expand(rows, groups), mesh.times)
        step = mesh.step.expand(rows, groups).reshape(-1)
        found = scheme.kernel(orders[:, None].expand(rows, groups).reshape(-1), step, mesh.steps)
        return _by_rows(found, rows, groups)

    def _orders(self, scheme: Scheme, mesh: Mesh) -> Tensor:
        orders = self.fn(mesh.start + mesh.elapsed)
        number("VariableOrder fn(t)", orders)
        if not isinstance(orders, Tensor) or orders.shape not in ((mesh.steps + 1,), ()):
            got = tuple(orders.shape) if isinstance(orders, Tensor) else type(orders).__name__
            raise InputError(
                f"VariableOrder: fn must return one order for each of the {mesh.steps + 1} times it gets, got {got}."
            )
        orders = orders.to(device="cpu", dtype=torch.float64).expand(mesh.steps + 1)[1:]
        check_order(orders, scheme, mesh.velocity, name="VariableOrder fn(t)")
        if float(value_of(orders).max()) > 1:
            raise InputError("VariableOrder has orders in (0, 1] only; use Caputo with velocity= for a constant one.")
        # no row uses the order at the start, where it may be 0; weights would divide by it
        return torch.cat([orders[:1], orders])


def _by_rows(kernel: Kernel, rows: int, groups: int) -> Kernel:
    """The matrix of a kernel that was computed with every row as a group: row ``n`` has the lag weights of group n."""
    n = torch.arange(rows)
    lag = (n[:, None] - n).clamp(min=0)
    weights = kernel.weights.reshape(-1, rows, rows, groups)[:, lag, n[:, None]] * (n[:, None] >= n)[..., None]
    if kernel.start is not None:
        started, starts = kernel.start.shape[:2]
        start = kernel.start.reshape(started, starts, rows, rows, groups)[:, :, n, n].transpose(1, 2)
        extra = torch.zeros_like(weights)
        extra[:started, :, :starts] = start[:, :, :rows]  # (sums, rows, starts, groups)
        weights = weights + torch.tril(extra.permute(0, 3, 1, 2), -1).permute(0, 2, 3, 1)
    local = kernel.local.reshape(-1, rows, groups)
    local = local[0] if local.shape[0] == 1 else local[n, n]
    return Kernel(weights, local, first=kernel.first)
