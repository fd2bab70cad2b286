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
    """A block of steps, as the loop hands it to a stepper; ``k`` counts its steps in the order of the pass.

    Attributes:
        block: which steps.
        steps: their grid points, ascending in a forward pass, descending in a backward pass.
        sums: forward, the history sums of the steps without what the block itself contributes, (count, sums, groups,
            width); backward, likewise the gradients of the slopes, (count, 1, groups, width). May be overwritten.
        inner: what the block itself contributes, see ``Memory.inner``.
        local: the weight of each step's own slope, (count, groups).
        origin: the ``k`` of the initial row, whose state is given, or None.
        idle: the ``k`` of the steps whose slope nobody uses.
        before: forward, the state before the first of these steps, (groups, width), where one is known.
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
    """A block of steps forward: ``rows`` (count, sums, groups, width) is what the backward pass starts from.

    ``states`` and ``slopes`` are (count, groups, width). All three may be overwritten by the next block.
    """

    rows: Tensor
    states: Tensor
    slopes: Tensor


class Totals:
    """Sums over the steps: of the gradients of the ``wanted`` tensors, and of the local weights.

    Args:
        wanted: tensors that get a gradient.
        local: the local weights, (groups,) or (steps + 1, groups).
        weigh: whether their gradient is wanted.
        outside: tensors that must not get one: nobody would hand it on.
    """

    def __init__(self, wanted: Sequence[Tensor], local: Tensor, weigh: bool, outside: Sequence[Tensor] = ()) -> None:
        self.wanted, self.outside = (*wanted, *outside), len(outside)
        self.tensors: list[Tensor | None] = [None] * len(self.wanted)
        self.local = torch.zeros_like(local) if weigh else None

    def add(self, tensors: Sequence[Tensor | None]) -> None:
        """Add gradients of the wanted tensors, None where there is none."""
        if not tensors:
            return
        if self.outside:
            for x, g in zip(self.wanted[-self.outside :], tensors[-self.outside :], strict=True):
                if g is not None:
                    raise captured_error(f"a tensor of shape {tuple(x.shape)}")
        try:
            add_each(self.tensors, tensors)  # type: ignore[arg-type]
        except TypeError:  # there are gaps: the first step, or a tensor that this step did not use
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
        """Add those of these steps, which descend: one row each."""
        grads = grads.reshape(len(steps), -1)
        if self.local is not None and self.local.ndim == 1:
            self.local += grads.sum(0)
        elif self.local is not None:
            self.local[steps[-1] : steps[0] + 1] += grads.flip(0)


@dataclass(frozen=True)
class Pull:
    """What a block of steps backward needs beside its task.

    Attributes:
        read: row ``n`` as the forward pass left it, (sums, groups, width); asked for in descending order.
        read_block: the rows of these steps at once, (steps, sums, groups, width), in their order.
        grads: the gradient of each state from outside, (groups, width), or None; one for each step.
        totals: where gradients of parameters and local weights add up.
        weigh: whether slopes and gradients of local weights are wanted.
        witness: slopes of the forward pass; a stepper that ``compares`` shows it those that it evaluates again.
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
    """Why ``func`` has to be called once a step, in order; None if nothing speaks against other ways."""
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
        tol = 5e-3  # products may be rounded to ten bits, and otherwise for other sizes
    return found.shape == slopes.shape and largest(found - slopes) <= tol * largest(slopes)


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(torch.linalg.vector_norm(x, math.inf)) if x.numel() else 0.0


class Steps(ABC):
    """A stepper at work in one pass: it takes the steps of a block.

    It never sees the history, the storage or autograd's bookkeeping. As a context it holds what it needs for the pass.

    Attributes:
        compares: it shows the witness of a backward pass what it evaluates again; otherwise the loop evaluates those
            steps once more.
    """

    compares = False

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        """The pass has ended."""
        return None

    def room(self, count: int, backward: bool) -> Tensor | None:
        """Where the loop should put the sums of a block of so many steps; None: anywhere."""
        return None

    def prepare(self, steps: range, read: Callable[[int], Tensor]) -> None:
        """A block of a backward pass comes next; its rows may be read now, before anything else is computed."""
        return None

    @abstractmethod
    def forward(self, task: Task) -> Filled:
        """The steps of a block."""

    @abstractmethod
    def backward(self, task: Task, pull: Pull) -> tuple[Tensor, Tensor | None]:
        """The rows μ (count, sums, groups, width) of a block, and its slopes (count, groups, width) if they are wanted.

        Both may be overwritten by the next block.
        """

    def finish(self, totals: Totals) -> None:
        """All blocks of a backward pass are done: add what has been gathered apart from the totals."""
        return None


class Yielded(Exception):
    """Raised by a stepper in a forward pass that finds out at its first block why it ``yields``: another one begins."""


class Stepper(ABC):
    """A way to take steps: a frozen description that opens ``Steps``, given as ``stepper=``.

    Attributes:
        watches: it knows ``func`` again by what that did in its first evaluation, which is then written down.
    """

    name: str
    watches = False

    def longer(self, like: Tensor) -> int:
        """How many times longer its blocks should be than those of single steps, for rows like this."""
        return 1

    def span(self, run: Run, like: Tensor, steps: int) -> int | None:
        """Steps in a block where it sums exponentials inside its blocks by itself; None: it takes weights alone."""
        return None

    @abstractmethod
    def refusal(self, plan: Plan, like: Tensor) -> str | None:
        """Why it cannot take the steps of this solve, whose rows look like ``like`` (groups, width); None if it can."""

    def yields(self, plan: Plan, run: Run, like: Tensor) -> str | None:
        """Why the automatic choice takes these steps, although this stepper was asked for; None: it takes them."""
        return None

    @abstractmethod
    def open(self, plan: Plan, run: Run, like: Tensor, size: int, backward: bool) -> Steps:
        """The stepper at work in one pass over blocks of up to ``size`` steps."""
