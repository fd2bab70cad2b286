"""A fractional equation as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..api import fdeint
from ..base.checks import function
from ..base.grid import read_times, request
from ..door.migration import refuse
from ..door.validation import check_names, given_params
from ..errors import InputError, InputTypeError
from ..linear import LinearPart
from ..orders import Caputo, Operator
from .order import Ordered


class FDEBlock(Ordered):
    """Map an initial state to ``z(t)``, where ``D^β z = func(t, z)``; the fractional counterpart of a neural ODE block.

    Args:
        func: the right-hand side; an ``nn.Module`` if it has parameters.
        order: β in (0, 1], a number or a tensor that broadcasts to the state, or an operator such as ``MultiTerm``;
            with ``learn_order`` its initial value, inside (0, 1). Parameters inside an operator belong to the block.
        learn_order: train the order too. It is parametrised as a sigmoid, which keeps it inside (0, 1].
        t: as in ``fdeint``: a number for the terminal state; a 1-D tensor for the states at its times; a tensor
            (batch, times), a list or a nested tensor for series with different times. A call may override it:
            ``block(z0, t=times)``.
        step: as in ``fdeint``, like the further options (``steps``, ``method``, ``adjoint``, ``history``, …). If
            ``linear=`` is a module, every solve calls it for the linear part, and its parameters belong to the block.

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
        for k, x in enumerate(linear.tensors if isinstance(linear, LinearPart) else ()):
            if isinstance(x, nn.Parameter):
                self.register_parameter(f"linear_{k}", x)
        self.learn_order = learn_order
        self.options = {"step": step, **options}
        if options.get("params") is not None:
            self.options["params"] = given_params(options["params"])  # for every call, also from a generator
        self.t: float | Tensor
        if isinstance(t, Tensor):
            self.register_buffer("t", t)
        else:
            self.t = t
        self.operator = order if isinstance(order, Operator) else None
        if isinstance(order, Operator):
            self._own(order)
        else:
            top = 2 if options.get("velocity") is not None and not learn_order else 1
            self._own_number(
                order, learn_order, top, "A block takes an operator too: order=Caputo(...) has one order for each part "
                "of a state. A fixed order up to 2 takes velocity=, here, or with every call and order=Caputo(...)."
            )  # fmt: skip
        given = {**defaults, **self.options}
        # what a call would refuse is refused here
        if step is None and given["steps"] is None and given["grid"] is None:
            read_times(t)
        else:
            request(t, step, given["steps"], given["grading"], given["grid"])
        check_names(given)

    def _own(self, operator: Operator) -> None:
        """Register the parameters and modules inside an operator, so that optimisers find them."""
        if self.learn_order:
            raise InputError(
                f"learn_order=True is for a plain order. To learn {type(operator).__name__}, make the tensors in it "
                "nn.Parameter; the block finds them."
            )
        for name, value in vars(operator).items():
            if isinstance(value, nn.Module):
                self.add_module(f"operator_{name}", value)
            for k, x in enumerate(value if isinstance(value, list | tuple) else [value]):
                if isinstance(x, nn.Parameter):
                    self.register_parameter(f"operator_{name}_{k}", x)

    @property
    def order(self) -> Tensor | Operator:
        """The current order; differentiable if it is learned."""
        if self.operator is not None:
            return self.operator
        return self._number()

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
        own = {"steps": steps, "velocity": velocity, "horizon": horizon, "linear": self.linear}
        given = self.options | {k: v for k, v in own.items() if v is not None}
        return fdeint(self.func, z, self.t if t is None else t, self.order, args=args, **given)

    def frozen(self) -> FDEBlock:
        """The same block with its order and times as constants, for ``torch.export``; it shares ``func``."""
        order = self.order if isinstance(self.order, Operator) else Caputo(self.order.detach().clone())
        found = FDEBlock(self.func, order, t=self.t, **self.options)
        if isinstance(self.t, Tensor):  # no buffer, whose values an exported program may change
            del found.t
            found.t = self.t.detach().clone()
        return found.train(self.training)

    def extra_repr(self) -> str:
        """Order, time and options, as given."""
        given = ", ".join(f"{k}={v!r}" for k, v in self.options.items() if v is not None and k != "params")
        order = self.order
        if isinstance(order, Tensor):
            shown = f"{float(order.detach()):.4g}" if order.numel() == 1 else f"{order.numel()} orders"
        else:
            shown = type(order).__name__
        return f"order={shown}, learn_order={self.learn_order}, t={self.t}, {given}"
