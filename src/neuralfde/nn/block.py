"""A fractional equation as a layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..api import fdeint
from ..base.checks import function
from ..base.grid import read_times, request
from ..base.torch_private import is_mapped, layers, pytree, value_of
from ..door.migration import refuse
from ..door.output import in_rows
from ..door.validation import check_names, given_params
from ..errors import InputError, InputTypeError
from ..linear import LinearPart
from ..orders import Caputo, DistributedOrder, Operator
from ..time import Event
from .order import Ordered

#: Options whose parameters belong to ``func`` or have a place of their own in a block.
_ELSEWHERE = {"params", "linear"}


class FDEBlock(Ordered):
    """Map an initial state to ``z(t)``, where ``D^β z = func(t, z)``; the fractional counterpart of a neural ODE block.

    Args:
        func: the right-hand side; an ``nn.Module`` if it has parameters.
        order: β in (0, 1], or up to 2 with ``velocity=``, a number or a tensor that broadcasts to the state; or an
            operator such as ``MultiTerm``, whose parameters belong to the block. With ``learn_order`` it is the initial
            value, inside (0, 1).
        learn_order: train the order too. It is parametrised as a sigmoid, which keeps it inside (0, 1].
        t: as in ``fdeint``: a number for the terminal state; a 1-D tensor for the states at its times; a tensor
            (batch, times), a list or a nested tensor for series with different times. A call may override it:
            ``block(z0, t=times)``.
        step: as in ``fdeint``, like the further options (``steps``, ``method``, ``adjoint``, ``history``, …). If
            ``linear=`` is a module, every solve calls it for the linear part, and its parameters belong to the block.
            So do parameters and modules among other options: they move and are saved with it; tensors stay as given.

    Shape:
        The input is a state of any structure. The output has the same structure, with a leading time axis if ``t`` is a
        tensor of times.
    """

    unrounded = ("fixed_order", "t")

    def __init__(
        self,
        func: Callable[..., Any] | None,
        order: float | Tensor | Operator = 0.5,
        learn_order: bool = False,
        t: float | Tensor = 1.0,
        step: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        defaults = fdeint.__kwdefaults__ or {}
        refuse("FDEBlock()", options, defaults.keys() - {"args"})
        if not isinstance(learn_order, bool):
            raise InputTypeError(
                f"learn_order must be True or False, got {type(learn_order).__name__}. A block gets its state when "
                "it is called: FDEBlock(func, order=0.7, t=1.0, step=0.1)(z0)."
            )
        linear = options.get("linear")
        if func is not None or linear is None:
            function("func", func, "func(t, z, *args)")
        self.func: Callable[..., Any] = func  # type: ignore[assignment]
        self.linear: Any
        if isinstance(linear, Tensor) and not isinstance(linear, nn.Parameter):
            self.register_buffer("linear", linear)
        else:  # a module, whose parameters belong to the block, or a parameter
            self.linear = linear
        if isinstance(linear, LinearPart):
            self._own("linear", list(linear.tensors))
        self.learn_order = learn_order
        self.options = {"step": step, **options}
        if options.get("params") is not None:
            self.options["params"] = given_params(options["params"])  # for every call, also from a generator
        for name, value in self.options.items():
            if name not in _ELSEWHERE:
                self._own(name, value)
        self.t: float | Tensor
        t = in_rows(t)
        if isinstance(t, Tensor):
            self.register_buffer("t", t)
        else:
            self.t = t
        self.operator = order if isinstance(order, Operator) else None
        if isinstance(order, Operator):
            if learn_order:
                raise InputError(
                    f"learn_order=True is for a plain order. To learn {type(order).__name__}, make the tensors in it "
                    "nn.Parameter; the block finds them."
                )
            for name, value in vars(order).items():
                self._own(f"operator_{name}", value)
        else:
            top = 2 if options.get("velocity") is not None and not learn_order else 1
            self._own_number(
                order, learn_order, top, "A block takes an operator too: order=Caputo(...) has one order for each part "
                "of a state. A fixed order up to 2 takes velocity=, here, or with every call and order=Caputo(...).",
                "To train this very tensor, make it an nn.Parameter and pass order=Caputo(parameter).",
            )  # fmt: skip
        given = {**defaults, **self.options}
        # what a call would refuse is refused here
        if step is None and given["steps"] is None and given["grid"] is None:
            read_times(t)
        else:
            request(t, step, given["steps"], given["grading"], given["grid"])
        check_names(given)

    def _own(self, name: str, value: Any) -> None:
        """Register a module, or all parameters and modules inside a structure, so that optimisers find them."""
        if isinstance(value, nn.Module):
            self.add_module(name, value)
            return
        if isinstance(value, Event):
            self._own(f"{name}_fn", value.fn)
            self._own(f"{name}_reset", value.reset)
            return
        for k, x in enumerate(pytree.tree_leaves(value)):
            if isinstance(x, nn.Parameter):
                self.register_parameter(f"{name}_{k}", x)
            elif isinstance(x, nn.Module):
                self.add_module(f"{name}_{k}", x)

    def _now(self, name: str, value: Any) -> Any:
        """The same with the parameters that the block has now: ``functional_call`` and loading may exchange them."""
        leaves, spec = pytree.tree_flatten(value)
        held = [getattr(self, f"{name}_{k}") if isinstance(x, nn.Parameter) else x for k, x in enumerate(leaves)]
        same = all(a is b for a, b in zip(held, leaves, strict=True))
        return value if same else pytree.tree_unflatten(held, spec)

    def _current_options(self) -> dict[str, Any]:
        return {k: x if k in _ELSEWHERE else self._now(k, x) for k, x in self.options.items()}

    @property
    def order(self) -> Tensor | Operator:
        """The current order; differentiable if it is learned."""
        if self.operator is None:
            return self._number()
        found = self.operator
        for name, value in vars(self.operator).items():
            now = self._now(f"operator_{name}", value)
            if now is not value:
                found = copy.copy(self.operator) if found is self.operator else found
                object.__setattr__(found, name, now)  # operators are frozen
        return found

    def _linear_part(self) -> Any:
        """The linear part with the parameters that the block has now."""
        if not isinstance(self.linear, LinearPart):
            return self.linear
        held = list(self.linear.tensors)
        now = self._now("linear", held)
        return self.linear if now is held else self.linear.with_tensors(now)

    def forward(
        self,
        z: Any,
        *args: Any,
        t: float | Tensor | None = None,
        steps: int | None = None,
        velocity: Any = None,
        horizon: Any = None,
    ) -> Any:
        """Solve from the initial state ``z``; further arguments are passed to ``func``, and tensors get gradients.

        ``t``, ``steps``, ``velocity`` and ``horizon`` are as in ``fdeint``, for values that differ from call to call.
        """
        own = {"steps": steps, "velocity": velocity, "horizon": horizon, "linear": self._linear_part()}
        given = self._current_options() | {k: v for k, v in own.items() if v is not None}
        return fdeint(self.func, z, _of_all(self.t) if t is None else t, self.order, args=args, **given)

    def frozen(self) -> FDEBlock:
        """The same block with all that its weights depend on as constants, for ``torch.export``; it shares ``func``.

        These are its order, times, horizon and jumps.
        """
        if isinstance(self.order, Operator):
            order = self.order.terms() if isinstance(self.order, DistributedOrder) else copy.copy(self.order)
            for name, value in vars(order).items():
                object.__setattr__(order, name, _constant(value))
        else:
            order = Caputo(self.order.detach().clone())
        given = self._current_options()
        given |= {name: _constant(given[name]) for name in ("horizon", "jumps") if name in given}
        if self.linear is not None:  # as it is now: loaded, converted or moved
            given["linear"] = self._linear_part()
        found = FDEBlock(self.func, order, t=self.t, **given)
        if isinstance(self.t, Tensor):  # no buffer, whose values an exported program may change
            del found.t
            found.t = self.t.detach().clone()
        return found.train(self.training)

    def extra_repr(self) -> str:
        """Order, time and options, as given."""
        given = ", ".join(f"{k}={v!r}" for k, v in self.options.items() if v is not None and k != "params")
        shown = self._shown() if self.operator is None else type(self.operator).__name__
        return f"order={shown}, learn_order={self.learn_order}, t={self.t}, {given}"


def _of_all(t: float | Tensor) -> float | Tensor:
    """The times of a block, also in an ensemble (``torch.func.stack_module_state``), whose models must share them."""
    count = sum(map(is_mapped, layers(t))) if isinstance(t, Tensor) else 0
    if not isinstance(t, Tensor) or count == 0:
        return t
    rows = value_of(t)
    rows = rows.reshape(-1, *rows.shape[count:])
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise InputError("the models of an ensemble have different t: give all of them the same times.")
    return rows[0].clone()


def _constant(tree: Any) -> Any:
    """The same without parameters: copies of their values, and calls of copies of modules, which no block owns."""

    def fixed(x: Any) -> Any:
        if isinstance(x, nn.Module):
            return copy.deepcopy(x).requires_grad_(False).__call__
        return x.detach().clone() if isinstance(x, Tensor) else x

    return pytree.tree_map(fixed, tree)
