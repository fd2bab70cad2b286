"""Sums and integrals of derivatives of several orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..base.checks import function, real, whole
from ..base.grid import Mesh
from ..base.torch_private import value_of
from ..errors import InputError, InputTypeError
from ..schemes import GrunwaldLetnikov, Scheme
from ..schemes.differences import convolution
from ..special import binomial_series, series_product, series_reciprocal
from ..weights.kernel import Kernel
from ..weights.meshes import gauss_legendre
from .base import Operator, items, reals, stacked
from .caputo import check_order


class _Sum(Operator):
    """A sum of derivatives, whose numbers are ``orders[i]`` and ``weights[i]``."""

    def check(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> None:
        if not isinstance(scheme, GrunwaldLetnikov) or not mesh.uniform:
            raise InputError(
                f"a sum of derivatives of several orders cannot be solved with {type(scheme).__name__}"
                + ("" if mesh.uniform else " on a graded grid")
                + ": that rule integrates against one power of the lag, and the inverse of such a sum is none. Its "
                "weights come from a generating function on a uniform grid: use method='gl' or 'gl-explicit'"
                + ("." if mesh.uniform else " without grading=.")
            )
        orders = stacked(numbers, "orders")
        check_order(orders, scheme, mesh.velocity, lowest=-1e-300, name="orders")
        if bool((value_of(orders).amax(0) <= 0).any()):
            raise InputError(
                "MultiTerm needs at least one order above 0; with order 0 alone nothing is differentiated."
            )

    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        self.check(numbers, scheme, mesh)
        orders, factors, count = stacked(numbers, "orders"), stacked(numbers, "weights"), mesh.steps + 1
        # the smallest power is factored out: the error of its reciprocal, in closed form, does not grow with the lag
        least = orders.detach().amin(0)
        gains = factors * torch.exp(-orders * torch.log(mesh.step))
        series = (gains * binomial_series(least - orders, count)).sum(1)
        if bool((value_of(series[0]) == 0).any()):
            raise InputError(
                "the terms of MultiTerm cancel: Σ c_i h^{-β_i} = 0. Use weights of which at least one is not 0, or "
                "another step."
            )
        kernel = convolution(series_product(series_reciprocal(series), binomial_series(least, count)), scheme.implicit)
        return _with_initial_values(kernel, orders, factors, mesh)


@dataclass(frozen=True)
class MultiTerm(_Sum):
    """A sum of Caputo derivatives, ``Σ_i c_i D^{β_i} z = f``, 0 ≤ β_i ≤ 2 (order 0 is ``z`` itself).

    With ``method='gl'`` the weights are the coefficients of ``1 / Σ_i c_i h^{-β_i} (1-ξ)^{β_i}`` (Lubich 1986), of
    order 1. The convolution acts on ``z - z_0 - t z'_0``. For a term of order ≤ 1, the missing
    ``z'_0 t^{1-β_i}/Γ(2-β_i)`` moves to the right-hand side. If every order is ≤ 1 there is no ``z'_0``.

    Args:
        orders: the orders β_i, a sequence of numbers or tensors, or one tensor with one term per row.
        weights: the factors c_i, in the same form.
    """

    orders: Any
    weights: Any

    def __post_init__(self) -> None:
        self.numbers()

    def numbers(self) -> dict[str, Any]:
        """See ``Operator``."""
        orders, weights = items("MultiTerm orders", self.orders), items("MultiTerm weights", self.weights)
        if len(orders) != len(weights) or not orders:
            raise InputError(
                f"MultiTerm has {len(orders)} orders and {len(weights)} weights; each term needs one of each."
            )
        return {
            **{f"orders[{i}]": b for i, b in enumerate(orders)},
            **{f"weights[{i}]": c for i, c in enumerate(weights)},
        }


@dataclass(frozen=True)
class DistributedOrder(_Sum):
    """An integral over orders, ``∫ φ(β) D^β z dβ = f``, by quadrature as a ``MultiTerm`` (Diethelm and Ford 2009).

    Args:
        nodes: the orders of the rule, a sequence or a tensor; or, with ``density``, the number of Gauss-Legendre nodes.
            ``DistributedOrder(φ)`` means ``DistributedOrder(16, density=φ)``.
        weights: the weights of the rule times the density at its nodes.
        density: φ, called with a float64 tensor of orders; its parameters get gradients.
        interval: the domain of φ, within [0, 2].
    """

    nodes: Any = 16
    weights: Any = None
    density: Callable[[Tensor], Tensor] | None = None
    interval: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if callable(self.nodes) and self.density is None and not isinstance(self.nodes, Tensor):
            object.__setattr__(self, "density", self.nodes)
            object.__setattr__(self, "nodes", 16)
        if (self.density is None) == (self.weights is None):
            raise InputError("DistributedOrder takes nodes and weights=, or a density=; give exactly one of the two.")
        if self.density is None:
            self.terms()
            return
        function("DistributedOrder.density", self.density, "density(orders)")
        count = "With a density it is the number of Gauss-Legendre nodes."
        whole("DistributedOrder.nodes", self.nodes, hint=count)
        if not isinstance(self.interval, tuple | list) or len(self.interval) != 2:
            raise InputTypeError(
                f"DistributedOrder.interval={self.interval!r:.60} must be a pair of orders, such as (0, 1)."
            )
        low, high = (real("DistributedOrder.interval", x) for x in self.interval)
        if not 0 <= low < high <= 2:
            raise InputError(f"DistributedOrder.interval={self.interval} must lie within [0, 2] and not be empty.")

    def terms(self) -> MultiTerm:
        """The sum that approximates the integral."""
        if self.density is None:
            return MultiTerm(self.nodes, self.weights)
        x, w = gauss_legendre(self.nodes)
        low, high = self.interval
        orders = low + (high - low) * x
        values = reals("DistributedOrder's density(orders)", self.density(orders))
        if values.shape not in ((), (1,), orders.shape):
            raise InputError(
                f"DistributedOrder: the density must return one number for each of the {self.nodes} orders it gets, "
                f"got shape {tuple(values.shape)}."
            )
        return MultiTerm(orders, (high - low) * w * values)

    def numbers(self) -> dict[str, Any]:
        """See ``Operator``."""
        return self.terms().numbers()


def _with_initial_values(kernel: Kernel, orders: Tensor, factors: Tensor, mesh: Mesh) -> Kernel:
    """Move what terms of order 0 and, with ``z'_0``, of order up to 1 lack to the right-hand side, as ``base``."""
    t = mesh.times
    constant = torch.where(orders == 0, factors, 0.0).sum(0).expand_as(t)
    bases, missing = [torch.ones_like(t)], [constant]
    if mesh.velocity:
        low = orders <= 1
        power = torch.where(low, 1 - orders, 1.0)[:, None]
        # a power of 0 has all derivatives as an exponential, but not as t**power
        rises = torch.exp(power * torch.log(t.clamp(min=1e-300)))
        ramp = torch.where(t > 0, rises, (power == 0).to(t)) / torch.exp(torch.lgamma(1 + power))
        bases.append(t)
        missing.append((torch.where(low, factors, 0.0)[:, None] * ramp).sum(0))
    elif not bool((value_of(orders) == 0).any()):
        return kernel
    weights = torch.cat([kernel.local[None], kernel.weights[0, 1:]])
    entering = (torch.arange(t.shape[0]) >= kernel.first)[:, None]
    lines = [b - series_product(weights, torch.where(entering, m, 0.0)) for b, m in zip(bases, missing, strict=True)]
    second = torch.where(orders.detach().amax(0) > 1, 1.0, 0.0)
    if mesh.velocity:
        lines[1] = lines[1] * second
    base = torch.stack([torch.cat([b[:1], line[1:]]) for b, line in zip(bases, lines, strict=True)])
    return replace(kernel, base=base)
