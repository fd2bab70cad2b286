"""A fractional equation as a layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .api import fdeint
from .errors import InputError, InputTypeError, nearest


class FDEBlock(nn.Module):
    """``z ↦ z(t)`` where ``D^β z = func(t, z)``; the fractional counterpart of a neural ODE block.

    Args:
        func: the right-hand side; an ``nn.Module`` so that its parameters are found.
        order: β in (0, 1]; with ``learn_order`` its initial value, inside (0, 1).
        learn_order: train the order too. It is kept inside (0, 1] as a sigmoid of an unconstrained parameter.
        t: as in :func:`fdeint`: a number for the terminal state, a 1-D tensor for states at its times.
        step: as in :func:`fdeint`; further options (``steps``, ``method``, ``adjoint``, ``history``, …) likewise.

    Shape:
        A state of any structure in; the same structure out, with a leading time axis if ``t`` is a tensor of times.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        order: float | Tensor = 0.5,
        learn_order: bool = False,
        t: float | Tensor = 1.0,
        step: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        known = set(fdeint.__kwdefaults__ or ()) - {"args"}
        for name in options:
            if name not in known:
                raise InputTypeError(f"FDEBlock has no argument {name!r}. {nearest(name, known)}")
        self.func = func
        self.learn_order = learn_order
        self.options = {"step": step, **options}
        self.t: float | Tensor
        if isinstance(t, Tensor):
            self.register_buffer("t", t)
        else:
            self.t = t
        value = float(order)
        if not 0 < value <= 1:
            raise InputError(f"order={value:g} is outside (0, 1].")
        if learn_order:
            if value == 1:
                raise InputError(
                    "learn_order=True starts from order=1, where the parametrisation has no slope. "
                    "Start a little below it, for example order=0.99."
                )
            # one element, not none: fully_shard takes no scalar parameters
            self.raw_order = nn.Parameter(torch.tensor([math.log(value / (1 - value))]))
        else:
            self.fixed_order: Tensor
            self.register_buffer("fixed_order", torch.tensor(value, dtype=torch.float64), persistent=True)

    @property
    def order(self) -> Tensor:
        """The order in use; differentiable where it is learned."""
        return torch.sigmoid(self.raw_order.double()).squeeze() if self.learn_order else self.fixed_order

    def forward(self, z: Any, *args: Any) -> Any:
        """Solve from ``z``; further arguments are passed on to ``func`` and get gradients."""
        return fdeint(self.func, z, self.t, self.order, args=args, **self.options)

    def extra_repr(self) -> str:
        """Order, time and options, as given."""
        given = ", ".join(f"{k}={v!r}" for k, v in self.options.items() if v is not None)
        return f"order={float(self.order.detach()):.4g}, learn_order={self.learn_order}, t={self.t}, {given}"
