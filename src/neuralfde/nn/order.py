"""The order of a layer: a parameter if it is learned, otherwise a buffer that keeps its precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from ..base.checks import number
from ..errors import InputError, InputTypeError


class Ordered(nn.Module):
    """A module with its own order β, in (0, 1] or, if it is fixed, up to ``top``.

    Attributes:
        unrounded: the names of buffers that keep their precision when the module is converted.
    """

    unrounded: tuple[str, ...] = ("fixed_order",)
    learn_order: bool

    def _own_number(self, order: float | Tensor, learn_order: bool, top: int, hint: str, remedy: str = "") -> None:
        """Keep the order as a parameter where it is learned, as a buffer where not.

        ``hint`` ends the messages on an order that cannot be used, ``remedy`` the one on an order that requires grad.
        """
        if not isinstance(learn_order, bool):
            raise InputTypeError(f"learn_order must be True or False, got {type(learn_order).__name__}.")
        number("order", order, hint=f"For a list of numbers use torch.tensor. {hint}")
        if isinstance(order, Tensor) and order.requires_grad and not learn_order:
            raise InputError(
                "order requires grad, and without learn_order=True it is copied as a constant, which gets no gradient. "
                f"Pass learn_order=True, which starts from this value, or order.detach(). {remedy}".rstrip()
            )
        self.learn_order = learn_order
        # looked at where it has values, also while a model is made on the meta device
        place = order.device if isinstance(order, Tensor) else "cpu"
        value = torch.as_tensor(order, dtype=torch.float64, device=place).detach().clone()
        if not value.is_meta and not bool(((value > 0) & (value <= top)).all()):
            raise InputError(f"order={value.tolist()} is outside (0, {top}]. {hint}")
        there = value.device if isinstance(order, Tensor) else torch.get_default_device()
        if learn_order:
            if not value.is_meta and bool((value == 1).any()):
                raise InputError(
                    "learn_order=True starts from order=1, where the parametrisation has no slope. "
                    "Start a little below it, for example order=0.99."
                )
            # one element, not none: fully_shard takes no scalar parameters
            raw = torch.logit(value.reshape(value.shape or (1,)))
            self.raw_order = nn.Parameter(raw.to(there, torch.get_default_dtype()))
            self.order_shape = value.shape
        else:
            self.fixed_order: Tensor
            self.register_buffer("fixed_order", value.to(there))

    def _number(self) -> Tensor:
        """The order in use, float64; differentiable where it is learned."""
        if not self.learn_order:
            return self.fixed_order
        return torch.sigmoid(self.raw_order.double()).reshape(self.order_shape)

    def _shown(self) -> str:
        """The order for ``repr``."""
        order = self._number().detach()
        if order.numel() > 1:
            return f"{order.numel()} orders"
        return "on the meta device" if order.is_meta else f"{float(order):.4g}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and convert as any module, but round none of the ``unrounded``."""
        before = {name: self._buffers.get(name) for name in self.unrounded}
        super()._apply(fn, recurse)
        for name, kept in before.items():
            moved = self._buffers.get(name)
            if kept is not None and moved is not None and torch.promote_types(kept.dtype, moved.dtype) != moved.dtype:
                self._buffers[name] = kept.to(moved.device)
        return self
