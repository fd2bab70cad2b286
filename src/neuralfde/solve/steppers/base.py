"""The contract of a stepper: a block of steps forward, and the same block backward."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...base.torch_private import add_each
from ...history import Block
from ...rhs.field import Field
from ...rhs.first import captured_error
from ..plan import Plan, Run

if TYPE_CHECKING:
    from ..rows import Witness


@dataclass(frozen=True)
class Task:
    """A block of steps, as the loop passes it to a stepper; ``k`` counts its steps in the order of the pass.

    Attributes:
        block: which steps.
        steps: their grid points, ascending in a forward pass, descending in a backward pass.
        sums: forward, the history sums of the steps without contributions of the block itself, (count, sums, groups,
            width); backward, likewise the gradients of the slopes, (count, 1, groups, width). May be overwritten.
        inner: the weights inside the block, see ``Memory.inner``.
        local: the weight of each step's own slope, (count, groups).
        origin: the ``k`` of the initial row, whose state is given, or None.
        idle: the ``k`` of the steps whose slope is not used.
        before: forward, the state before the first of these steps, (groups, width), if it is known.
    """

    block: Block
    steps: range
    sums: Tensor
    inner: Any
    local: Tensor
    origin: int | None
    idle: frozenset[int]
    before: Tensor | None = None


@dataclass(frozen=True)
class Filled:
    """The result of a block in a forward pass: ``rows`` (count, sums, groups, width) are for the backward pass.

    ``states`` and ``slopes`` are (count, groups, width). All three may be overwritten by the next block.
    """

    rows: Tensor
    states: Tensor
    slopes: Tensor


class Totals:
    """Gradients summed over the steps: those of the ``wanted`` tensors, and of the local weights.

    Args:
        wanted: tensors that get a gradient.
        local: the local weights, (groups,) or (steps + 1, groups).
        weigh: whether their gradient is needed.
        outside: tensors whose gradient would be lost, so that it is an error if there is one.
    """

    def __init__(self, wanted: Sequence[Tensor], local: Tensor, weigh: bool, outside: Sequence[Tensor] = ()) -> None:
        self.wanted, self.outside = (*wanted, *outside), len(outside)
        self.tensors: list[Tensor | None] = [None] * len(self.wanted)
        self.local = torch.zeros_like(local) if weigh else None

    def add(self, tensors: Sequence[Tensor | None]) -> None:
        """Add gradients of the wanted tensors, or None for each."""
        if not tensors:
            return
        if self.outside:
            for x, g in zip(self.wanted[-self.outside :], tensors[-self.outside :], strict=True):
                if g is not None:
                    raise captured_error(f"a tensor of shape {tuple(x.shape)}")
        try:
            add_each(self.tensors, tensors)  # type: ignore[arg-type]
        except TypeError:  # some are None: in the first step, or a tensor that this step did not use
            for k, g in enumerate(tensors):
                if g is not None:
                    known = self.tensors[k]
                    self.tensors[k] = g.clone() if known is None else known.add_(g)

    def add_local(self, n: int, grad: Tensor | None) -> None:
        """Add the gradient of the local weight of step ``n``."""
        if self.local is not None and grad is not None:
            target = self.local if self.local.ndim == 1 else self.local[n]
            target.add_(grad.reshape(target.shape))

    def add_locals(self, steps: range, grads: Tensor) -> None:
        """Add the gradients of these steps, which descend, one row each."""
        grads = grads.reshape(len(steps), -1)
        if self.local is not None and self.local.ndim == 1:
            self.local += grads.sum(0)
        elif self.local is not None:
            self.local[steps[-1] : steps[0] + 1] += grads.flip(0)


@dataclass(frozen=True)
class Pull:
    """What a block of a backward pass needs besides its task.

    Attributes:
        read: returns row ``n`` of the forward pass, (sums, groups, width); called in descending order.
        read_block: returns the rows of these steps at once, (steps, sums, groups, width), in their order.
        grads: the incoming gradient of each state, (groups, width), or None; one for each step.
        totals: where gradients of parameters and local weights are summed.
        weigh: whether slopes and gradients of local weights are needed.
        witness: slopes of the forward pass; a stepper with ``compares`` passes to it those that it evaluates again.
    """

    read: Callable[[int], Tensor]
    read_block: Callable[[range], Tensor]
    grads: Sequence[Tensor | None]
    totals: Totals
    weigh: bool
    witness: Witness | None = None

    def compared(self, steps: range) -> list[int]:
        """Which of these steps are compared with the forward pass."""
        return [] if self.witness is None else [n for n in self.witness.slopes if n in steps]


def why_single(field: Field) -> str | None:
    """Why ``func`` has to be called once per step, in the order of time; None if there is no reason."""
    if field.noise.active:
        return "func draws random numbers, which belong to single steps"
    if field.impure is not None:
        return f"func changes {field.impure} when it is called"
    if field.hooked:
        return "func has hooks, which act on single steps"
    return None


def same(found: Tensor, slopes: Tensor) -> bool:
    """Whether vectorised slopes are those of single steps, up to rounding that may have grown."""
    tol = 1e-4 if slopes.dtype == torch.float32 else 1e-9
    if slopes.is_cuda and slopes.dtype == torch.float32:
        tol = 5e-3  # matrix products may have ten bits, and their rounding depends on the shapes
    return found.shape == slopes.shape and largest(found - slopes) <= tol * largest(slopes)


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(torch.linalg.vector_norm(x, math.inf)) if x.numel() else 0.0


class Steps(ABC):
    """A stepper in one pass: it takes the steps of a block.

    It never sees the history, the storage or autograd's bookkeeping. It is a context that lasts as long as the pass.

    Attributes:
        compares: in a backward pass it passes the slopes that it evaluates again to the witness; otherwise the loop
            evaluates those steps once more.
    """

    compares = False

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        """The pass has ended."""
        return None

    def room(self, count: int, backward: bool) -> Tensor | None:
        """Where the loop should write the sums of a block of so many steps; None if anywhere."""
        return None

    def prepare(self, steps: range, read: Callable[[int], Tensor]) -> None:
        """Called before each block of a backward pass; its rows may be read now, before anything else is computed."""
        return None

    @abstractmethod
    def forward(self, task: Task) -> Filled:
        """The steps of a block."""

    @abstractmethod
    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """The rows μ (count, sums, groups, width) of a block, and its slopes (count, groups, width) if they are needed.

        Both may be overwritten by the next block.
        """

    def finish(self, totals: Totals) -> None:
        """Called after the last block of a backward pass: add gradients that were summed separately to the totals."""
        return None


class Yielded(Exception):
    """Raised by a stepper that finds out at the first block of a forward pass why it ``yields``; the pass restarts."""


class Stepper(ABC):
    """A way to take steps: a frozen description that opens ``Steps``, given as ``stepper=``.

    Attributes:
        watches: it recognises ``func`` by the operations of its first evaluation, which are then recorded.
    """

    name: str
    watches = False

    def longer(self, like: Tensor) -> int:
        """How many times longer its blocks should be than those of single steps, for rows like this."""
        return 1

    def span(self, run: Run, like: Tensor, steps: int) -> int | None:
        """The length of a block if it sums exponentials inside its blocks itself; None if it needs weights."""
        return None

    @abstractmethod
    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """Why it cannot take the steps of this solve, with rows like ``like`` (groups, width); None if it can."""

    def yields(self, plan: Plan, run: Run, like: Tensor) -> str | None:
        """Why ``auto`` chooses another stepper although this one was requested; None if it takes the steps."""
        return None

    @abstractmethod
    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """The stepper for one pass over blocks of up to ``size`` steps."""
