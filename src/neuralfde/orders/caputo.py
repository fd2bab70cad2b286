"""Caputo's derivative, and its tempered variant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..base.caches import Cache
from ..base.checks import not_a_class, plain
from ..base.grid import Mesh
from ..base.policy import WEIGHTS_NUMBERS
from ..base.torch_private import is_constant, value_of
from ..errors import InputError, InputTypeError
from ..schemes import ABM, IMEX, L1, GrunwaldLetnikov, Multistep, Predictor, Scheme, Trapezoid
from ..weights import fading
from ..weights.kernel import Kernel
from .base import Operator

#: Schemes whose weights depend only on the scheme, the order and the step; a user's scheme may depend on anything.
KNOWN = (ABM, IMEX, GrunwaldLetnikov, L1, Multistep, Predictor, Trapezoid)
_WEIGHTS: Cache[Kernel] = Cache("weights", 32)


def read_order(order: Any) -> Operator:
    """The operator that a user gives as ``order=``; numbers, tensors and structures of them mean Caputo derivatives."""
    if isinstance(order, Operator):
        return order
    order = plain(order)
    not_a_class("order", order)
    if isinstance(order, bool) or not isinstance(order, int | float | Tensor | tuple | list | dict):
        instead = "Convert it with float or torch.as_tensor."
        if callable(order):
            instead = "For an order that changes with time use VariableOrder(fn)."
        raise InputTypeError(
            f"order must be a number, a tensor, a structure of them like z0, or an operator such as MultiTerm; "
            f"got {type(order).__name__}. {instead}"
        )
    return Caputo(order)


@dataclass(frozen=True)
class Caputo(Operator):
    """Caputo's derivative ``D^β z (t) = 1/Γ(m-β) ∫₀ᵗ (t-s)^{m-β-1} z^{(m)}(s) ds``, m = ⌈β⌉, 0 < β ≤ 2.

    ``order=β`` means ``order=Caputo(β)``. β is a number, a tensor that broadcasts to the state (one order per channel,
    or ``(batch, 1)`` for one per sample), or one of these for each part of a structured state.
    """

    order: Any

    def numbers(self) -> dict[str, Any]:
        """See ``Operator``."""
        return {"order": self.order}

    def check(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> None:
        """See ``Operator``."""
        check_order(numbers["order"], scheme, mesh.velocity)

    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        """See ``Operator``."""
        self.check(numbers, scheme, mesh)
        return one_order(numbers["order"], scheme, mesh)


@dataclass(frozen=True)
class Tempered(Operator):
    """The tempered derivative ``e^{-λt} D^β (e^{λt} z)``, λ ≥ 0: memory decays exponentially (Li, Deng and Zhao 2019).

    Every weight is multiplied by ``e^{-λ(t_n - t_j)}`` and the initial value by ``e^{-λ t_n}``; for β > 1 the initial
    values contribute ``e^{-λt} [z_0 + t (z'_0 + λ z_0)]``. The rate may be a tensor, like the order.
    """

    order: Any
    rate: Any

    def numbers(self) -> dict[str, Any]:
        """See ``Operator``."""
        return {"order": self.order, "rate": self.rate}

    def check(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> None:
        """See ``Operator``."""
        check_order(numbers["order"], scheme, mesh.velocity)
        rates = value_of(numbers["rate"])
        if bool((rates < 0).any()) or not bool(torch.isfinite(rates).all()):
            raise InputError(
                f"Tempered(rate={float(rates.min()):g}): the rate must be finite and not negative; 0 is no tempering."
            )

    def kernel(self, numbers: dict[str, Tensor], scheme: Scheme, mesh: Mesh) -> Kernel:
        """See ``Operator``."""
        self.check(numbers, scheme, mesh)
        order, rate = numbers["order"], numbers["rate"]
        kernel, t = one_order(order, scheme, mesh), mesh.times
        fade = torch.exp(-rate * t)
        weights = kernel.weights * (fade if mesh.uniform else torch.exp(-rate * (t[:, None] - t).clamp(min=0)))
        start = None if kernel.start is None else kernel.start * _late(fade, kernel.start.shape[1])
        dense, own = kernel.dense, kernel.dense

        if own is not None:

            def dense(p: Tensor) -> Tensor:
                here, right = mesh.at(p), mesh.at((p.floor() + 1).clamp(max=mesh.steps))
                # slopes beyond the right end of the cell have no weight: their factor only has to be finite
                lag = torch.maximum(here[:, None] - t, (here - right)[:, None])
                return own(p) * torch.exp(-rate * lag)

        def line(s: Tensor) -> Tensor:
            one = torch.exp(-rate * s)
            if not mesh.velocity:
                return one[None]
            second = torch.where(order > 1, s, 0.0) * one
            return torch.stack([one + rate * second, second])

        return replace(
            kernel, weights=weights, start=start, dense=dense, base=line(t), dense_base=lambda p: line(mesh.at(p))
        )


def _late(fade: Tensor, starts: int) -> Tensor:
    """``e^{-λ(t_n - t_j)}`` for the slopes j < starts on a uniform grid: (starts, steps + 1, groups)."""
    rows = fade.shape[0]
    return torch.stack([torch.cat([torch.ones_like(fade[:j]), fade[: max(0, rows - j)]]) for j in range(starts)])


def one_order(order: Tensor, scheme: Scheme, mesh: Mesh) -> Kernel:
    """The weights of the scheme for one order in each group, with those of the initial values."""
    if mesh.rates is not None:
        return fading.kernel(scheme.cells, order, mesh.elapsed, mesh.horizon, mesh.rates)
    kernel = _on_uniform(order, mesh, scheme) if mesh.uniform else scheme.kernel_on(order[None], mesh.times)
    if not mesh.velocity:
        return kernel
    second = (order > 1).to(torch.float64)  # an order up to 1 does not use z'_0

    def line(t: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(t), t * second])

    return replace(kernel, base=line(mesh.times), dense_base=lambda p: line(mesh.at(p)))


def _on_uniform(order: Tensor, mesh: Mesh, scheme: Scheme) -> Kernel:
    """The weights of the scheme on a uniform grid; small tables without gradient are cached."""
    step, steps = mesh.step, mesh.steps
    fixed = is_constant(order) and is_constant(step) and type(scheme) in KNOWN
    if not fixed or order.numel() * (steps + 1) > WEIGHTS_NUMBERS:
        return scheme.kernel(order, step, steps)
    key = (scheme, tuple(order.tolist()), tuple(step.tolist()), steps)
    return _WEIGHTS.get(key, lambda: scheme.kernel(order.clone(), step.clone(), steps))


def check_order(order: Tensor, scheme: Scheme, velocity: bool, lowest: float = 0.0, name: str = "order") -> None:
    """Raise unless every order can be used with this scheme and these initial values."""
    values = value_of(order)
    least, top = (float(x) for x in torch.aminmax(values))  # NaN if any order is NaN
    if not (least > lowest and top <= 2):
        bad = values[~((values > lowest) & (values <= 2))][0]
        remedy = (
            "For a higher order write the equation as a system of orders in that range."
            if bad > 2
            else "If training made it so, a gradient was not finite or the learning rate is too high for the order: "
            "give it a lower one in a parameter group of its own."
        )
        raise InputError(
            f"{name}={float(bad):g} is outside (0, 1], or (0, 2] with velocity= as a second initial value. {remedy} "
            "(Arguments stand as func, z0, t, order.)"
        )
    if top > scheme.max_order:
        raise InputError(
            f"{name}={top:g} is outside (0, {scheme.max_order:g}], the orders of {type(scheme).__name__}. "
            "Orders up to 2 need method='predictor', 'abm', 'trapezoid' or 'gl'."
        )
    if least < scheme.min_order:
        raise InputError(
            f"{name}={least:g} is below {scheme.min_order:g}, the smallest order of {type(scheme).__name__}: its "
            "starting weights would be lost in rounding. Use method='trapezoid', 'l1' or 'gl'."
        )
    if top > 1 and not velocity:
        raise InputError(
            f"{name}={top:g} is outside (0, 1] and needs a second initial value: pass velocity= with z'(0), "
            "in the structure of z0 (zeros for a start at rest), or write the equation as a system of orders up to 1."
        )
    if top <= 1 and velocity:
        raise InputError(f"velocity= is given, but {name}={top:g} takes one initial value. Drop velocity=.")
