"""Reading what a user gives as ``linear=``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base.caches import capturing
from ..base.checks import misfit
from ..base.structure import Structure, all_finite
from ..errors import InputError, InputTypeError
from ..schemes.linear import Called, Factor
from .base import LinearPart
from .dense import Matrix
from .sparse import Sparse

_NEEDED = ("matvec", "solve", "solve_transposed")


class Given(LinearPart):
    """A user's object with ``matvec(z)``, ``solve(w0, r)`` and ``solve_transposed(w0, r)``.

    Autograd differentiates ``matvec``; parameters of an ``nn.Module`` get gradients.
    """

    own = True

    def __init__(self, made: Any) -> None:
        self.made, self.product = made, made.matvec
        self.tensors = tuple(made.parameters()) if isinstance(made, nn.Module) else ()

    def with_tensors(self, tensors: Sequence[Tensor]) -> Given:
        """See :class:`LinearPart`; with its own parameters it is returned as it is."""
        if not isinstance(self.made, nn.Module) or all(a is b for a, b in zip(tensors, self.tensors, strict=True)):
            return self
        found, module = Given(self.made), _Product(self.made)
        names = [name for name, _ in module.named_parameters()]
        found.tensors = tuple(tensors)
        found.product = lambda z: torch.func.functional_call(module, dict(zip(names, tensors, strict=True)), (z,))
        return found

    def shape(self) -> None:
        """See :class:`LinearPart`."""

    def matvec(self, z: Tensor) -> Tensor:
        """See :class:`LinearPart`."""
        found: Tensor = self.product(z)
        return found

    def factor(self, w0: Tensor, like: Tensor) -> Factor:
        """See :class:`LinearPart`."""
        return Called(self.made, w0)


class _Product(nn.Module):
    """``matvec`` of a module as a call."""

    def __init__(self, made: nn.Module) -> None:
        super().__init__()
        self.made = made

    def forward(self, z: Tensor) -> Tensor:
        found: Tensor = self.made.matvec(z)  # type: ignore[operator]
        return found


def read_linear(linear: Any, structure: Structure | None = None) -> LinearPart:
    """The linear part of a user's matrix, sparse tensor or object; a function without arguments is called for it."""
    if callable(linear) and not isinstance(linear, LinearPart) and not hasattr(linear, "matvec"):
        why = misfit(linear)
        if why is not None:
            raise InputTypeError(
                f"linear= takes a function without arguments that returns a matrix or an object; {why}. To give the "
                f"product A z itself, pass an object with {_NEEDED}."
            )
        linear = linear()
    if isinstance(linear, Tensor):
        if linear.ndim < 2 or linear.shape[-1] != linear.shape[-2] or linear.is_complex():
            raise InputError(
                f"linear= must be a real square matrix (n, n), or a batch of them, got {tuple(linear.shape)} of "
                f"{linear.dtype}. A diagonal one is torch.diag(d), few diagonals are neuralfde.linear.Bands."
            )
        linear = Matrix(linear) if linear.layout == torch.strided else Sparse.of(linear)
    if not isinstance(linear, LinearPart):
        missing = [name for name in _NEEDED if not callable(getattr(linear, name, None))]
        if missing:
            raise InputTypeError(
                f"linear= must be a matrix, a sparse tensor, an object of neuralfde.linear, or one with {_NEEDED}; "
                f"{type(linear).__name__} has no {missing[0]}."
            )
        linear = Given(linear)
    if structure is not None:
        _check(linear, structure)
    return linear


def _check(part: LinearPart, structure: Structure) -> None:
    if not structure.bare:
        raise InputError(
            "linear= needs a state that is one tensor, and z0 is a structure of several: write A z in func."
        )
    shape, state = part.shape(), structure.shapes[0]
    if shape is not None and (
        len(shape) > len(state)
        or shape[-part.axes :] != state[-part.axes :]
        or any(a not in (1, b) for a, b in zip(shape[::-1], state[::-1], strict=False))
    ):
        raise InputError(
            f"linear= acts on axes {tuple(shape)}, which do not fit a state of {tuple(state)}: they must be its last."
        )
    for x in part.tensors:
        if x.device != structure.device or x.dtype != structure.dtype:
            raise InputTypeError(
                f"linear= is {x.dtype} on {x.device}, the state is {structure.dtype} on {structure.device}; "
                "convert one of them."
            )
    if part.tensors and not (torch.compiler.is_exporting() or capturing()) and not all_finite(*part.tensors):
        raise InputError("linear= contains NaN or infinity; check what it is made of.")
