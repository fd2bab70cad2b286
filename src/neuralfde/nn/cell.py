"""A fractional equation one step at a time: a recurrent layer whose memory of the past has a fixed size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from ..api import fdeint
from ..base.checks import function, installed_memory, real, tensor, valued, whole
from ..base.grid import request
from ..base.policy import CELL_STEP_BYTES
from ..base.structure import as_numbers, grouped, structure_of
from ..base.torch_private import derivatives_are_watched
from ..door.validation import read_history, read_scheme
from ..errors import InputError, InputTypeError
from ..history import FFT, Exponentials, Full
from ..orders import Caputo
from ..schemes import OneStage, Scheme
from .block import FDEBlock
from .order import Ordered

#: What a cell passes from step to step: the step number, the state, the past; then the weights of a learned order.
State = tuple[Tensor, ...]


class FDECell(Ordered):
    """One step of ``D^β z = func(t, z, *inputs)``, as a recurrent layer whose state has a fixed size.

    A step computes ``z_{n+1} = z_0 + Σ_{j≤n} w_{n+1-j} v_j`` with the slopes ``v_n = func(t_n, z_n, *inputs)``. Recent
    weights are exact, and all older ones are approximated by a sum of decaying exponentials. So the past takes a few
    dozen numbers for each element of the state, however long the stream is. The states are those of ``fdeint`` with the
    same step, method and ``history``: to rounding if that solve has ``steps`` steps, otherwise to the tolerance of the
    exponentials. Inputs are held constant over a step.

    A step consists of a few PyTorch operations: autograd, ``torch.export``, ONNX and AOTInductor accept it.

    Args:
        func: the right-hand side ``func(t, z, *inputs)``; an ``nn.Module`` if it has parameters.
        order: β in (0, 1], a number or a tensor that broadcasts to the state.
        learn_order: train the order too, as in ``FDEBlock``. Its weights are computed in ``begin`` and travel with the
            state: a state that was detached trains the order no further.
        step: the step size h.
        steps: the largest number of steps of a stream. A large value costs little: a hundred times as many steps need
            about ten more numbers for each element of the state. A longer stream raises an error; on a GPU and in an
            exported cell, its states are NaN.
        start: the time of the first state.
        method: an explicit method with one sum: ``'predictor'``, ``'gl-explicit'`` or ``'l1-explicit'``.
        history: the accuracy of the approximated weights, such as ``Exponentials(tol=1e-6)``.
    """

    unrounded = ("fixed_order", "weights", "fade")
    weights: Tensor
    fade: Tensor

    def __init__(
        self,
        func: Callable[..., Tensor],
        order: float | Tensor = 0.5,
        learn_order: bool = False,
        *,
        step: float,
        steps: int,
        start: float = 0.0,
        method: str | Scheme = "predictor",
        history: str | Exponentials = "exponentials",
    ) -> None:
        super().__init__()
        function("func", func, "func(t, z, *inputs)")
        self.func = func
        self.step, self.start = real("step", step, above=0), real("start", start)
        self.steps = whole("steps", steps)
        self.scheme, past = read_scheme(method, None), read_history(history)
        if not isinstance(self.scheme, OneStage) or self.scheme.implicit:
            raise InputError(
                f"method={method!r} needs the next input, or more than one sum of the past, for a step. A cell takes "
                "'predictor', 'gl-explicit' or 'l1-explicit'."
            )
        if not isinstance(past, Exponentials):
            raise InputError(f"history={history!r} grows with the stream. A cell takes Exponentials(tol=...).")
        self.history, self.recent = past, past.block if steps >= 2 * past.block else steps
        self._own_number(order, learn_order, 1, "A cell starts from one initial value: use an order in that range.")
        if not learn_order:
            with torch.device("cpu"):  # where the order has a value, also while a cell is made on the meta device
                tables = self._tables(torch.as_tensor(order, dtype=torch.float64).detach())
            for name, table in zip(("weights", "fade"), tables, strict=True):
                self.register_buffer(name, table.to(self.fixed_order.device))

    @classmethod
    def from_block(cls, block: FDEBlock, steps: int | None = None) -> Self:
        """A cell that takes the steps of ``block`` one by one, with its current order.

        Args:
            block: a block with steps of fixed size; the cell shares its ``func``.
            steps: the largest number of steps of a stream; default: the number of steps of the block.
        """
        if not isinstance(block, FDEBlock):
            raise InputTypeError(
                f"from_block takes an FDEBlock, got {type(block).__name__}: FDECell(func, ...) a func."
            )
        given = {**(fdeint.__kwdefaults__ or {}), **block.options}
        order: Any = block.order.order if type(block.order) is Caputo else block.order
        more = ("velocity", "horizon", "grid", "jumps", "past", "lags", "event", "linear")
        unfit = [name for name in more if given[name] is not None]
        unfit += ["grading"] * (given["grading"] != 1) + ["order"] * (not isinstance(order, int | float | Tensor))
        unfit += ["rtol"] * (given["step"] is given["steps"] is None)
        past = read_history(given["history"])
        unfit += ["history"] * (not isinstance(past, Exponentials | Full | FFT | None))
        if unfit:
            raise InputError(
                f"a cell cannot follow {', '.join(unfit)}= of the block: it has steps of one length, one initial "
                "value, func alone and an order that is a number or a tensor. Train the block with step= or steps=."
            )
        grid = request(block.t, given["step"], given["steps"], 1.0, None).grid
        return cls(
            block.func,
            order.detach() if isinstance(order, Tensor) else order,
            step=grid.step,
            steps=grid.steps if steps is None else steps,
            start=grid.start,
            method=given["method"] or "predictor",
            history=past if isinstance(past, Exponentials) else "exponentials",
        )

    @property
    def order(self) -> Tensor:
        """The current order; differentiable if it is learned."""
        return self._number()

    def _tables(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (…, 1 + K + recent) of z_0, K fading sums and the last slopes; by what these sums fade in a step."""
        near, needed = self.recent, CELL_STEP_BYTES * order.numel() * self.steps
        if needed > installed_memory():
            raise InputError(
                f"the weights of steps={self.steps} take {needed >> 30} GiB or more while a cell is made, and this "
                f"machine has {installed_memory() >> 30} GiB. Use fewer steps, or longer ones."
            )
        kernel = self.scheme.kernel(order.reshape(-1).cpu(), self.step, self.steps)
        table = self.history.tabulate(kernel.weights)[0].T
        far = table[:, 2 * self.history.block :]
        weights = torch.cat([torch.ones_like(table[:, :1]), far, table[:, 1 : near + 1].flip(1)], dim=1)
        fade = torch.exp(-self.history.rates(self.steps, far.shape[1])) if far.shape[1] else far[0]
        return weights.reshape(*order.shape, -1), fade

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load an order with the weights that it has here: they also depend on the step, and so does their number."""
        order = state_dict.get(f"{prefix}fixed_order")
        if not self.learn_order and order is not None and order.shape == self.fixed_order.shape:
            for name, table in zip(("weights", "fade"), self._tables(order.double()), strict=True):
                state_dict[f"{prefix}{name}"] = table
                self._buffers[name] = torch.empty_like(table, device=self.weights.device)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def begin(self, z0: Tensor) -> State:
        """The state of the cell before the first step."""
        tensor("z0", z0, also_complex=True)
        z0 = as_numbers(z0)
        if self.learn_order or not z0.is_meta:
            valued("order", self._number())
        grouped(structure_of(z0.real if z0.is_complex() else z0), {"order": self._number()})  # or say what is wrong
        own = tuple(x.to(z0) for x in self._tables(self._number())) if self.learn_order else ()
        rows = (own[0] if own else self.weights).shape[-1]
        past = torch.cat([z0[..., None], z0.new_zeros(*z0.shape, rows - 1)], dim=-1)
        return torch.zeros((), dtype=torch.int64, device=z0.device), z0, past, *own

    def forward(self, state: State, *inputs: Any) -> tuple[Tensor, State]:
        """Take one step: returns ``z`` and the new state of the cell; ``inputs`` are passed to ``func``."""
        n, z, past, *own = self._mine(state)
        weights, fade = own or (self.weights.to(past), self.fade.to(past))
        self._refuse_late(n)
        t = (self.start + self.step * n.double()).to(z.real.dtype)
        slope = self._checked(self.func(t, z, *inputs), z)[..., None]
        first, sums, oldest, recent = past.split([1, past.shape[-1] - self.recent - 1, 1, self.recent - 1], dim=-1)
        past = torch.cat([first, fade * (sums + oldest), recent, slope], dim=-1)
        z = torch.where(n < self.steps, (weights * past).sum(-1), torch.nan)
        return z, (n + 1, z, past, *own)

    def _mine(self, state: Any) -> State:
        """The state, if it can be one of this cell."""
        count = 5 if self.learn_order else 3
        if not isinstance(state, tuple | list) or len(state) != count or not all(isinstance(x, Tensor) for x in state):
            raise InputTypeError(
                f"a step is z, state = cell(state, *inputs), where the state is a tuple of {count} tensors from "
                f"cell.begin(z0) or from the step before, got {type(state).__name__}."
            )
        rows, found = (state[3] if self.learn_order else self.weights).shape[-1], state[2].shape
        if found != (*state[1].shape, rows):
            raise InputError(
                f"the state is not of this cell: its past has shape {tuple(found)} in place of "
                f"{(*state[1].shape, rows)}. Begin with z0, or make a cell with the same step, steps and history."
            )
        return tuple(state)

    def _refuse_late(self, n: Tensor) -> None:
        """Raise where the stream is too long, unless one would have to wait for a device or values are not known."""
        if n.device.type != "cpu" or torch.compiler.is_compiling() or derivatives_are_watched():
            return
        if int(n) >= self.steps:
            raise InputError(
                f"the stream is longer than steps={self.steps}, for which the exponentials of this cell were made. "
                "Make a cell with more steps, or begin again."
            )

    def _checked(self, slope: Any, z: Tensor) -> Tensor:
        """What ``func`` returned, if it can be a slope."""
        if not isinstance(slope, Tensor) or slope.shape != z.shape:
            got = f"shape {tuple(slope.shape)}" if isinstance(slope, Tensor) else type(slope).__name__
            raise InputError(f"func returned {got} for a state of shape {tuple(z.shape)}; both must be the same.")
        if torch.promote_types(slope.dtype, z.dtype) != z.dtype:
            raise InputTypeError(f"func returned {slope.dtype}, the state is {z.dtype}; convert func or z0.")
        return slope

    def extra_repr(self) -> str:
        """Order, step and length of the stream."""
        return f"order={self._shown()}, learn_order={self.learn_order}, step={self.step:g}, steps={self.steps}"
