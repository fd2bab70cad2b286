"""The linear systems of implicit stages, with ``M = I - w_0 J`` and its transpose, solved by the structure of J.

A structure is found by probing: products ``Jᵀ u`` with a few patterns ``u`` give all entries, and one more product,
with an irregular ``u``, verifies the structure. Iterations check the residual, so an outdated factorisation, or one
with a structure that J no longer has, costs iterations but never accuracy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base.checks import function, whole
from ..base.policy import DENSE_MEMORY, DENSE_NUMBERS, STAGE_KEPT
from ..errors import InputTypeError
from .jacobian import Jacobian, agrees, irregular


class Factor(ABC):
    """Solves systems with ``M`` and ``Mᵀ``, exactly or approximately; ``why`` names the structure it uses.

    Attributes:
        samples: the number of equal parts of the state, in order, that do not interact.
        reusable: it can be used for later steps too, while their matrices are nearly the same.
        by: the ``Linear`` that created it, if that was chosen automatically.
        reached: the relative residual of the last system.
        singular: some matrix has no inverse.
        rate: by which factor the updates of each sample shrink, as far as stages have shown it; None before.
    """

    samples: int = 1
    why: str = ""
    reusable: bool = True
    by: Linear | None = None
    reached: float = 0.0
    singular: bool = False
    rate: Tensor | None = None

    def least_eigenvalue(self) -> float:
        """The smallest real part of the eigenvalues of M, if it is known; otherwise infinity."""
        return math.inf

    def at(self, w0: Tensor) -> Factor | None:
        """The factor for another weight and the same Jacobian, if that is cheap; otherwise None."""
        return None

    @abstractmethod
    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """``M⁻¹ r``, or ``M⁻ᵀ r``, in the shape of the state."""


@dataclass(frozen=True)
class Linear(ABC):
    """How the linear systems of Newton's method are solved."""

    @abstractmethod
    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor | None:
        """A factor of ``I - w_0 J``; None if the Jacobian does not have the required structure."""


def check_linear(name: str, value: object) -> None:
    """Raise unless the value is a ``Linear``."""
    if not isinstance(value, Linear):
        raise InputTypeError(f"{name}={value!r:.60} must be an object such as Dense(), Banded() or Krylov().")


class Inverse(Factor):
    """The inverse of ``I - w_0 J`` from the ``blocks`` (samples, m, m) of J; (samples, 1) if m is 1."""

    def __init__(self, blocks: Tensor, w0: Tensor, shape: torch.Size) -> None:
        self.samples, m, _ = blocks.shape
        self.blocks, self.shape = blocks if blocks.numel() <= STAGE_KEPT else None, shape
        self.inverse = inverse = _inverted(blocks, weight_of(w0, shape).reshape(self.samples, m))
        self.diagonal, self.transposed = inverse.ndim == 2, inverse.mT if inverse.ndim == 3 else inverse
        parts = f"{self.samples} samples of {m} elements" if self.samples > 1 else f"{m} coupled elements"
        self.why = f"dense, {parts}" if not self.diagonal else "diagonal, elements do not interact"

    @property
    def singular(self) -> bool:  # type: ignore[override]
        """See :class:`Factor`; computed only if something went wrong."""
        return not bool(torch.isfinite(self.inverse).all())

    def at(self, w0: Tensor) -> Factor | None:
        """See :class:`Factor`."""
        return None if self.blocks is None else Inverse(self.blocks, w0, self.shape)

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """See :class:`Factor`."""
        inverse = self.transposed if transposed else self.inverse
        if self.diagonal:
            return inverse.view(r.shape) * r
        if self.samples == 1:
            return torch.mv(inverse[0], r.reshape(-1)).view(r.shape)
        return torch.bmm(inverse, r.reshape(self.samples, -1, 1)).view(r.shape)

    def least_eigenvalue(self) -> float:
        """See :class:`Factor`."""
        if self.singular:
            return math.inf
        found = self.inverse if self.diagonal else torch.linalg.eigvals(self.inverse)
        return float((1 / found).real.min())


@dataclass(frozen=True)
class Dense(Linear):
    """One dense Jacobian per sample, for samples of up to a few hundred elements.

    Samples are indexed by the leading axes of the state, as many of them as ``func`` does not mix.

    Args:
        most: the largest number of elements of a sample.
    """

    most: int = DENSE_NUMBERS

    def __post_init__(self) -> None:
        whole("Dense.most", self.most)

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor | None:
        """See :class:`Linear`."""
        shape = jacobian.shape
        for m in dict.fromkeys(shape[k:].numel() for k in range(len(shape), -1, -1)):
            samples = shape.numel() // m
            if m > self.most or samples * m * m > max(DENSE_MEMORY, shape.numel()):
                return None
            if jacobian.parts == 1 < samples:
                continue
            found = None if samples > 1 and jacobian.seems_to_mix(samples) else self._blocks(jacobian, samples, m)
            if found is not None:
                return Inverse(found, w0, shape)
        return None

    def _blocks(self, jacobian: Jacobian, samples: int, m: int) -> Tensor | None:
        """The Jacobian of each sample, (samples, m, m); None if they mix."""
        like, shape = jacobian.z.detach(), jacobian.shape
        one = torch.eye(m, dtype=like.dtype, device=like.device)
        rows = jacobian.rows(one[:, None].expand(m, samples, m).reshape(m, *shape))
        found = rows.reshape(m, samples, m).transpose(0, 1)
        if samples == 1:
            return found
        u = irregular(like)
        by_blocks = torch.einsum("sj,sji->si", u.view(samples, m), found)
        return found if agrees(by_blocks, jacobian.vjp(u).reshape(samples, m)) else None


def _inverted(blocks: Tensor, w0: Tensor) -> Tensor:
    m = blocks.shape[-1]
    if m == 1:
        pivots = 1 - w0 * blocks[:, :, 0]
        inverse = pivots.reciprocal()
        return torch.where(pivots * inverse > 0, inverse, torch.nan)  # neither for 0 nor for an infinite derivative
    one = torch.eye(m, dtype=blocks.dtype, device=blocks.device)
    return inverted(one - w0[:, :, None] * blocks)


def inverted(matrix: Tensor) -> Tensor:
    """The inverse of each matrix; NaN if a matrix has none, or is not finite."""
    inverse, info = torch.linalg.inv_ex(matrix)
    none = (info > 0) | ~matrix.sum((-2, -1)).isfinite()
    return torch.where(none[..., None, None], torch.nan, inverse)


@dataclass(frozen=True)
class Given(Linear):
    """Systems solved by your own functions ``solve(w0, r)`` and ``solve_transposed(w0, r)``, with r like the state.

    They may be approximate: with the Jacobian of another state, or without a small part of it.
    """

    solve: Callable[[Tensor, Tensor], Tensor]
    solve_transposed: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        function("Given.solve", self.solve, "solve(w0, r)")
        function("Given.solve_transposed", self.solve_transposed, "solve_transposed(w0, r)")

    def factor(self, jacobian: Jacobian, w0: Tensor) -> Factor:
        """See :class:`Linear`."""
        return Called(self, w0, jacobian.samples())


class Called(Factor):
    """Solves by the functions ``solve(w0, r)`` and ``solve_transposed(w0, r)`` of a given object."""

    why = "given, functions of the caller"

    def __init__(self, given: Any, w0: Tensor, samples: int = 1) -> None:
        self.given, self.w0, self.samples = given, w0.detach(), samples

    def solve(self, r: Tensor, transposed: bool = False) -> Tensor:
        """See :class:`Factor`."""
        solve = self.given.solve_transposed if transposed else self.given.solve
        return solve(self.w0, r)  # type: ignore[no-any-return]


def weight_of(w0: Tensor, shape: torch.Size) -> Tensor:
    """The local weight of every element of the state."""
    return w0.detach().expand(shape)
