"""The contract of a scheme: a table of weights and a small local map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..base.torch_private import vjp
from ..errors import InputError
from ..weights import meshes
from ..weights.kernel import Kernel
from .stage_solvers import Stages

#: The right-hand side at one time: from a state to its slope.
Slope = Callable[[Tensor], Tensor]


class Pulled(NamedTuple):
    """The gradients that the adjoint of a step returns besides those of its sums: of ``w0`` and of further tensors."""

    local: Tensor | None
    tensors: Sequence[Tensor | None]


class Scheme(ABC):
    """One step of a scheme: ``x = locate(c)``, then ``(z, v) = evaluate(x)``.

    ``c`` are the history sums of the step, one tensor each. ``x``, as many tensors, is what the backward pass needs.
    ``z`` is the new state and ``v`` its slope. Tensors have the shape of the state, or (groups, width) if groups of
    elements have different orders; the local weight ``w0`` broadcasts to it.

    Attributes:
        implicit: the new state appears on both sides, and an equation is solved at every step.
        sums: the number of history sums of a step.
        uses_next_slope: continuous output between grid points needs the slope at the right-hand point.
        dense_meets_nodes: continuous output passes through the states at the grid points.
        dense_is_limited: continuous output that meets the nodes stays within a distance of the straight line between
            them that their states determine: in a stiff equation errors of slopes would take it far off.
        slopes_are_at_states: the slope of a step is ``func`` at its state, so that a solve can be continued.
        max_order: the largest order it can be used for.
        min_order: the smallest one for which its weights are accurate.
        reach: of explicit schemes, about the largest ``λ h^β`` of a stable step for decay at a rate λ, in units of 2^β.
        stages: the number of states that ``relax`` returns for each step; 0 if it is not defined.
        cells: how each sum approximates the slope between two times: by its value at the ``"left"`` or ``"right"`` end,
            ``"linear"``, or ``"ahead"``, linear with the newest slope extrapolated. Such a rule has weights on any
            mesh. Empty for other schemes.
    """

    implicit: bool
    sums: int = 1
    uses_next_slope: bool = False
    dense_meets_nodes: bool = True
    dense_is_limited: bool = False
    slopes_are_at_states: bool = True
    max_order: float = 1.0
    min_order: float = 0.0
    reach: float = 1.0
    stages: int = 0
    cells: tuple[str, ...] = ()

    @abstractmethod
    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """The weights for orders of shape (groups,), differentiable in the orders."""

    def kernel_on(self, order: Tensor, times: Tensor) -> Kernel:
        """The weights on increasing times (steps + 1, groups); orders (1, groups), or (steps + 1, groups) by row."""
        if self.cells:
            return meshes.kernel_on(self.cells, order, times)
        raise InputError(
            f"{type(self).__name__} is defined on uniform grids only. On a graded grid or a mesh use "
            "method='predictor', 'predictor-implicit', 'trapezoid', 'abm' or 'l1', or drop grading= and grid=."
        )

    @abstractmethod
    def expected_order(self, order: float, smooth: bool) -> float:
        """The order of convergence at a fixed time, for a smooth solution or a generic one ``c₀ + c₁ t^β``."""

    def bound(self, args: tuple[Any, ...]) -> Scheme:
        """The scheme with the tensors that it uses from the arguments of ``func``, if any."""
        return self

    def explicit_part(self, f: Slope) -> Slope:
        """The part of ``f`` that limits the step of an explicit scheme."""
        return f

    def open_stages(self) -> Stages | None:
        """Implicit schemes: the solver of all stages of one solve, in both passes."""
        return None

    def locate(
        self, f: Slope, c: Tensor, w0: Tensor, before: Tensor, stages: Stages | None, where: str
    ) -> tuple[Tensor, Tensor]:
        """Implicit schemes: state and slope from the history sum and the previous state; no gradients."""
        raise NotImplementedError

    def restore(self, c: Tensor, v: Tensor, w0: Tensor) -> Tensor:
        """Implicit schemes: the state of ``locate`` from its known slope ``v``, for one step or for many at once."""
        raise NotImplementedError

    @abstractmethod
    def evaluate(self, f: Slope, x: Sequence[Tensor], w0: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        """State and slope of a step from ``x``; differentiable. With ``slope=False`` the slope is None."""

    def relax(self, sums: Tensor, slopes: Tensor, w0: Tensor) -> Tensor:
        """The states (stages, steps, …) at which ``func`` is evaluated, for many steps at once.

        The last stage is the state of the step. ``slopes`` are guesses at all stages; with the true slopes the states
        are those of ``evaluate``. Sums are (sums, steps, …), ``w0`` broadcasts to (steps, …).
        """
        raise NotImplementedError

    def pull(
        self,
        x: Sequence[Tensor],
        z: Tensor,
        v: Tensor | None,
        w0: Tensor,
        grad_z: Tensor | None,
        grad_v: Tensor | None,
        tensors: Sequence[Tensor],
        into: Sequence[Tensor],
        stages: Stages | None = None,
    ) -> Pulled:
        """The vector-Jacobian product of one traced step, from gradients of ``(z, v)`` to those of its inputs.

        The gradients of ``x`` are written to the tensors ``into``, the first of which may be ``grad_z`` itself.
        """
        ends = [(o, g) for o, g in ((z, grad_z), (v, grad_v)) if o is not None and g is not None and o.requires_grad]
        wanted = (*x, *tensors) + ((w0,) if w0.requires_grad else ())
        found = vjp(tuple(o for o, _ in ends), tuple(g for _, g in ends), wanted) if ends else (None,) * len(wanted)
        for slot, grad in zip(into, found, strict=False):
            slot.zero_() if grad is None else slot.copy_(grad)
        return Pulled(found[-1] if w0.requires_grad else None, found[len(x) : len(x) + len(tensors)])
