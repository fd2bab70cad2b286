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
    """What one step hands back beside the gradients of its sums: those of its local weight and of further tensors."""

    local: Tensor | None
    tensors: Sequence[Tensor | None]


class Scheme(ABC):
    """One step is ``x = locate(c)``, ``(z, v) = evaluate(x)``: ``c`` are the history sums of the step, one tensor each,
    and ``x``, as many tensors, is what the backward pass starts from.

    Tensors have the shape of the state, or (groups, width) where groups of numbers have orders of their own; the local
    weight ``w0`` broadcasts to it.

    Attributes:
        implicit: the new state appears on both sides and an equation is solved at every step.
        sums: how many history sums a step needs.
        uses_next_slope: continuous output between nodes needs the slope at the right-hand node.
        dense_meets_nodes: continuous output between nodes goes through the states at the nodes.
        slopes_are_at_states: the slope of a step is ``func`` at its state, so that a solve can go on from the last one.
        max_order: the largest order it can be used for.
        stages: how many states ``relax`` gives for each step; 0 where it is not defined.
        cells: what each sum takes the slope to be between two times: its value at the ``"left"`` or ``"right"`` end,
            ``"linear"``, or ``"ahead"``, linear with the newest slope extrapolated; empty where the scheme is no such
            rule. Such a rule has weights on any mesh.
    """

    implicit: bool
    sums: int = 1
    uses_next_slope: bool = False
    dense_meets_nodes: bool = True
    slopes_are_at_states: bool = True
    max_order: float = 1.0
    stages: int = 0
    cells: tuple[str, ...] = ()

    @abstractmethod
    def kernel(self, order: Tensor, step: float | Tensor, steps: int) -> Kernel:
        """The weights for orders of shape (groups,), differentiable in them."""

    def kernel_on(self, order: Tensor, times: Tensor) -> Kernel:
        """The weights on increasing times (steps + 1, groups); orders (1 or steps + 1, groups), one for each row."""
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
        """The scheme with tensors that it takes from the arguments of ``func``, where it uses any."""
        return self

    def explicit_part(self, f: Slope) -> Slope:
        """What of ``f`` limits the step of an explicit scheme."""
        return f

    def open_stages(self) -> Stages | None:
        """Implicit schemes: what solves the stages of one solve, forward and backward."""
        return None

    def locate(
        self, f: Slope, c: Tensor, w0: Tensor, before: Tensor, stages: Stages | None, where: str
    ) -> tuple[Tensor, Tensor]:
        """Implicit schemes: state and slope from the history sum and the state of the step before; no gradients."""
        raise NotImplementedError

    def restore(self, c: Tensor, v: Tensor, w0: Tensor) -> Tensor:
        """Implicit schemes: ``locate`` again, when the slope ``v`` is already known; of one step or of many at once."""
        raise NotImplementedError

    @abstractmethod
    def evaluate(self, f: Slope, x: Sequence[Tensor], w0: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        """State and slope of a step from ``x``; differentiable. Without ``slope`` the slope is left out."""

    def relax(self, sums: Tensor, slopes: Tensor, w0: Tensor) -> Tensor:
        """The states (stages, steps, …) at which ``func`` is evaluated in many steps at once, the last one theirs.

        ``slopes`` are those at all stages as guessed so far; true slopes give the states of ``evaluate``. Sums are
        (sums, steps, …), ``w0`` broadcasts to (steps, …).
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

        The gradients of ``x`` are written ``into`` these tensors, the first of which may be ``grad_z`` itself.
        """
        ends = [(o, g) for o, g in ((z, grad_z), (v, grad_v)) if o is not None and g is not None and o.requires_grad]
        wanted = (*x, *tensors) + ((w0,) if w0.requires_grad else ())
        found = vjp(tuple(o for o, _ in ends), tuple(g for _, g in ends), wanted) if ends else (None,) * len(wanted)
        for slot, grad in zip(into, found, strict=False):
            slot.zero_() if grad is None else slot.copy_(grad)
        return Pulled(found[-1] if w0.requires_grad else None, found[len(x) : len(x) + len(tensors)])
