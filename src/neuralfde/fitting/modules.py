"""A user's module in a fit: where it keeps its tensors, and how it is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..base.checks import reals
from ..base.torch_private import places, tables
from ..errors import InputTypeError


class Named(nn.Module):
    """A function of (t, z, **params) as a module."""

    def __init__(self, func: Callable[..., Tensor], params: Mapping[str, float | Tensor]) -> None:
        super().__init__()
        self.func = func
        for name, value in params.items():
            setattr(self, name, nn.Parameter(reals(f"params[{name!r}]", value).detach().double().clone()))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The function with the parameters filled in."""
        return self.func(t, z, **{n: p for n, p in self._parameters.items() if p is not None})


def names_at(module: nn.Module) -> dict[str, str]:
    """The path of every place where a module keeps a tensor, and the name of the tensor there: its first path.

    A layer registered under two names has one place for its weight; a weight tied between two layers has two places.
    """
    held = places(module)
    first = {id(x): name for name, x in (*module.named_buffers(), *module.named_parameters())}
    return {path: first[id(x)] for path, x in held.items()}


def call(module: nn.Module, where: Mapping[str, str], values: Mapping[str, Tensor], *inputs: Any) -> Tensor:
    """``module(*inputs)`` with other tensors in its places, each of them filled once."""
    filled = {path: values[name] for path, name in where.items()}
    out: Tensor = functional_call(module, filled, inputs, tie_weights=False)
    return out


@contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """However the block ends, the module holds the same parameters and buffers as before."""
    before = [(table, dict(table)) for _, table in tables(module)]
    try:
        yield
    finally:
        for table, entries in before:
            table.update(entries)


def double(name: str, tensor: Tensor) -> Tensor:
    """A copy for the arithmetic of a fit, which is on the CPU and in float64; whole numbers stay what they are."""
    if tensor.is_complex():
        raise InputTypeError(f"{name!r} is complex, and a fit is real: make real and imaginary part two parameters.")
    return tensor.detach().to("cpu", torch.float64 if tensor.is_floating_point() else tensor.dtype, copy=True)


def fill(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put estimates into the parameters of these names."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in values:
                parameter.copy_(values[name])
