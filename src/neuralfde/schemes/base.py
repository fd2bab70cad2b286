"""The contract of a scheme: a table of weights and a small local map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..tableaux import Kernel

#: ``field(n, z)`` evaluates the right-hand side at grid point ``n``.
Slope = Callable[[int, Tensor], Tensor]


class Cotangents(NamedTuple):
    """What one step hands back: gradients of its history sums, of its local weight and of further tensors."""

    sums: Tensor
    local: Tensor | None
    tensors: tuple[Tensor | None, ...]


class Scheme(ABC):
    """One step is ``x = locate(c)``, ``(z, v) = evaluate(x)``: ``x`` is what the backward pass starts from.

    Attributes:
        implicit: the new state appears on both sides and an equation is solved at every step.
        sums: how many history sums a step needs.
        uses_next_slope: continuous output between nodes needs the slope at the right-hand node.
        dense_meets_nodes: continuous output between nodes goes through the states at the nodes.
        max_order: the largest order it can be used for.
        stages: how many states ``relax`` gives for each step; 0 where it is not defined.
    """

    implicit: bool
    sums: int = 1
    uses_next_slope: bool = False
    dense_meets_nodes: bool = True
    max_order: float = 1.0
    stages: int = 0

    @abstractmethod
    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """The weights for orders of shape (groups,), differentiable in them."""

    def kernel_on(self, order: Tensor, times: Tensor) -> Kernel:
        """The weights on increasing times (steps + 1, groups); orders (1 or steps + 1, groups), one for each row."""
        raise InputError(
            f"{type(self).__name__} is defined on uniform grids only. On a graded grid use method='predictor', "
            "'predictor-implicit', 'trapezoid', 'abm' or 'l1', or drop grading=."
        )

    @abstractmethod
    def expected_order(self, order: float, smooth: bool) -> float:
        """The order of convergence at a fixed time, for a smooth solution or a generic one ``c₀ + c₁ t^β``."""

    def locate(self, field: Slope, n: int, c: Tensor, local: Tensor) -> Tensor:
        """From the history sums (sums, groups, width) to what is stored for the backward pass; no gradients."""
        return c

    def restore(self, c: Tensor, v: Tensor, local: Tensor) -> Tensor:
        """``locate`` again, when the slope ``v`` of the step is already known."""
        return c

    @abstractmethod
    def evaluate(
        self, field: Slope, n: int, x: Tensor, local: Tensor, slope: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """State and slope of step ``n`` from ``x``; differentiable. Without ``slope`` the slope is left out."""

    def relax(self, sums: Tensor, slopes: Tensor, local: Tensor) -> Tensor:
        """The states (stages, steps, width) at which ``func`` is evaluated in many steps at once, the last one theirs.

        ``slopes`` are those at all stages as guessed so far; true slopes give the states of ``evaluate``. Sums are
        (sums, steps, width), ``local`` (steps, 1) or (1, 1).
        """
        raise NotImplementedError

    def pull(
        self,
        n: int,
        x: Tensor,
        z: Tensor,
        v: Tensor | None,
        local: Tensor,
        grad_z: Tensor | None,
        grad_v: Tensor | None,
        tensors: Sequence[Tensor],
    ) -> Cotangents:
        """The vector-Jacobian product of one traced step, from gradients of ``(z, v)`` to those of its inputs."""
        outputs, grads = [], []
        for out, grad in ((z, grad_z), (v, grad_v)):
            if out is not None and grad is not None and out.requires_grad:
                outputs.append(out)
                grads.append(grad)
        wanted = [x, *tensors] + ([local] if local.requires_grad else [])
        found = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        sums = found[0] if found[0] is not None else torch.zeros_like(x)
        return Cotangents(sums, found[-1] if local.requires_grad else None, found[1 : 1 + len(tensors)])


def explicit_pull(
    x: Tensor, v: Tensor | None, grad_z: Tensor | None, grad_v: Tensor | None, tensors: Sequence[Tensor]
) -> Cotangents:
    """The product for ``z = x``, ``v = f(x)``: ``ḡ + Jᵀ v̄``, one call of autograd and no graph for ``z``."""
    found: Sequence[Tensor | None] = (None,) * (1 + len(tensors))
    if v is not None and grad_v is not None and v.requires_grad:
        found = torch.autograd.grad(v, [x, *tensors], grad_v, allow_unused=True)
    sums = found[0]
    if sums is None:
        sums = torch.zeros_like(x)
    if grad_z is not None:
        sums = sums + grad_z
    return Cotangents(sums, None, tuple(found[1:]))
