"""Whether the value of ``func`` is wanted, or only its derivative.

In the backward pass ``func`` is called for its vector-Jacobian product alone, unless the order is learned. A function
whose derivative does not need its value, such as a linear one, may then leave the value out:

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, matrix, z):
            ctx.save_for_backward(matrix)
            return matrix @ z if value_wanted() else unvalued(z)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from torch import Tensor

_WANTED: ContextVar[bool] = ContextVar("value_wanted", default=True)


def value_wanted() -> bool:
    """Whether somebody will read what ``func`` returns; False where only its graph is used."""
    return _WANTED.get()


def unvalued(like: Tensor) -> Tensor:
    """Stands for a value nobody reads: shape, dtype and device of ``like``, and no memory."""
    return like.new_zeros(()).expand(like.shape)


@contextlib.contextmanager
def derivative_only(only: bool = True) -> Iterator[None]:
    """Within, the value of ``func`` is not wanted (if ``only``)."""
    before = _WANTED.set(not only)
    try:
        yield
    finally:
        _WANTED.reset(before)
