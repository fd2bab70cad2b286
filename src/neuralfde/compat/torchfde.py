"""torchfde's two calls, with its argument and method names (https://github.com/kangqiyu/torchfde).

Change ``from torchfde import fdeint`` to ``from neuralfde.compat.torchfde import fdeint`` and the rest of a program
stays as it is. Two things become better by default: ``gl``, ``trap`` and ``glmulti`` subtract the initial value, as
Caputo's derivative does, and every gradient is exact. With ``legacy=True``, or imported from
``neuralfde.compat.torchfde_legacy``, both are as torchfde has them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..api import fdeint as _solve
from ..base.checks import function, real, reals, whole
from ..base.structure import tensors_in
from ..base.torch_private import is_followed, transforms_are_active
from ..errors import CapturedTensorError, InputError, InputTypeError, UnsupportedError, nearest
from ..history import Window
from ..orders import MultiTerm
from ..rhs.first import graph_nodes
from ..schemes import ABM, GrunwaldLetnikov, Scheme
from . import _legacy
from ._attributes import Attributes

_log = logging.getLogger(__name__)

#: torchfde's method names; each may carry ``-f`` or ``-o``, which choose between its two approximate adjoints.
METHODS = ("predictor", "corrector", "l1", "gl", "trap", "glmulti")
#: what older releases called them
OLDER = {"implicitl1": "l1"}
_OPTIONS = ("memory", "return_history", "multi_coefficient", "corrector_step", "legacy")


def fdeint(
    func: Callable[[Tensor, Any], Any],
    y0: Any,
    beta: float | Tensor,
    t: float | Tensor,
    step_size: float | Tensor,
    method: str,
    options: Mapping[str, Any] | None = None,
    *,
    legacy: bool = False,
    adjoint: Any = None,
) -> Any:
    """Solve ``D^β y = func(t, y)`` from 0 to ``t`` with torchfde's arguments.

    Args:
        func: the right-hand side ``func(t, y)``.
        y0: the initial state, a tensor or a tuple of tensors.
        beta: the order; for ``glmulti`` a 1-D tensor of orders.
        t: the end time; the start is 0.
        step_size: the step. As in torchfde the interval is cut into ``floor(t / step_size)`` equal steps.
        method: ``predictor``, ``corrector``, ``l1`` (once ``implicitl1``), ``gl``, ``trap`` or ``glmulti``, with or
            without ``-f``/``-o``.
        options: ``memory`` (steps, -1 for all), ``return_history``, ``multi_coefficient``, ``corrector_step``,
            ``legacy``. Others are ignored, as torchfde does, with a message to the log.
        legacy: torchfde's own formulas: ``gl``, ``trap`` and ``glmulti`` without subtracting the initial value.
        adjoint: how gradients are computed, as in ``neuralfde.fdeint``; default: exactly.

    Returns:
        The state at ``t`` in the structure of ``y0``, or with ``return_history`` the states at all grid points.
    """
    return _run(func, y0, beta, t, step_size, method, options, legacy, adjoint, reverse=False)


def fdeint_adjoint(
    func: Callable[[Tensor, Any], Any],
    y0: Any,
    beta: float | Tensor,
    t: float | Tensor,
    step_size: float | Tensor,
    method: str,
    options: Mapping[str, Any] | None = None,
    *,
    legacy: bool = False,
    adjoint: Any = None,
) -> Any:
    """``fdeint`` with the memory of an adjoint method.

    The gradient is the exact one, whatever the suffix of ``method``. With ``legacy=True`` it is torchfde's
    approximation: ``-f`` solves the reverse equation with the scheme's own weights, ``-o`` by Euler steps.
    """
    return _run(func, y0, beta, t, step_size, method, options, legacy, adjoint, reverse=True)


def _run(
    func: Callable[[Tensor, Any], Any],
    y0: Any,
    beta: float | Tensor,
    t: float | Tensor,
    step_size: float | Tensor,
    method: str,
    options: Mapping[str, Any] | None,
    legacy: bool,
    adjoint: Any,
    reverse: bool,
) -> Any:
    function("func", func, "func(t, y)")
    if not isinstance(options, Mapping | None):
        raise InputTypeError(f"options must be a dict, such as {{'memory': 100}}, got {type(options).__name__}.")
    if not isinstance(method, str):
        raise InputTypeError(f"method must be one of torchfde's names, got {type(method).__name__}. Use 'predictor'.")
    given = dict(options or {})
    legacy = legacy or bool(given.get("legacy", False))
    adjoint = given.pop("adjoint", adjoint)
    name, _, suffix = method.partition("-")
    if name in OLDER and legacy:
        raise InputError(
            f"method {method!r} is of older releases of torchfde, whose formula for it left terms out and is not kept. "
            f"Use {OLDER[name]!r}, the later one, or leave legacy= out."
        )
    name = OLDER.get(name, name)
    if name not in METHODS or suffix not in ("", "f", "o") or method.endswith("-"):
        raise InputError(f"unknown method {method!r}. {nearest(name, METHODS)} Each may end in '-f' or '-o'.")
    for key in given:
        if key not in _OPTIONS:
            _log.warning("option %r is ignored. %s", key, nearest(key, _OPTIONS))
    end, step = _number("t", t), _number("step_size", step_size)
    if not step <= end * (1 + 1e-6):
        raise InputError(f"t={end:g} and step_size={step:g}: the step must be no longer than t.")
    memory = -1 if given.get("memory", -1) == -1 else whole("memory", given["memory"], hint="-1 is the whole past.")
    history = bool(given.get("return_history", False))
    corrections = whole("corrector_step", given.get("corrector_step", 1), hint="For none use method='predictor'.")
    orders, shares = _terms(beta, name, given.get("multi_coefficient"))
    held = Attributes.used_by(func, y0)
    if legacy:
        if adjoint is not None:
            raise InputError("adjoint= chooses among exact gradients; legacy=True has torchfde's own. Leave one out.")
        if held and reverse:
            raise InputError(
                f"func keeps {held.names}, which need gradients, as plain attributes, and torchfde's adjoint would "
                "drop them: it knows only parameters. Leave legacy= out, or call fdeint in place of fdeint_adjoint."
            )
        if reverse and torch.is_grad_enabled() and (orders.requires_grad or shares.requires_grad):
            raise InputError(
                "beta or multi_coefficient requires grad, and torchfde's adjoint has no gradient for them. Pass "
                "beta.detach(), leave legacy= out, or call fdeint in place of fdeint_adjoint."
            )
        if not bool((orders > 0).all()):
            raise InputError(f"beta={orders.tolist()} must be positive.")
        if transforms_are_active():
            raise UnsupportedError("legacy=True works with backward() only, not under torch.func. Leave legacy= out.")
        suffix = suffix or "f"
        return _legacy.solve(
            func, y0, name, orders, shares, end, step, suffix if reverse else None, memory, history, corrections,
            leaves(func, y0, held.tensors),
        )  # fmt: skip
    steps = max(1, math.floor(end / step + 1e-6))
    if abs(steps * step - end) > 1e-6 * end:
        _log.info("step_size=%g does not divide t=%g; %d steps of %g are taken.", step, end, steps, end / steps)
    scheme, order = _scheme(name, orders, shares, corrections)
    times: float | Tensor = torch.linspace(0, end, steps + 1, dtype=torch.float64) if history else end
    past: Any = "auto" if memory == -1 or memory >= steps else Window(memory)
    call: dict[str, Any] = {"method": scheme, "steps": steps, "history": past, "params": leaves(func, y0, held.tensors)}
    if adjoint is not None:
        call["adjoint"] = adjoint
    try:
        return _solve(held.wrap(func), y0, times, order, args=held.tensors, **call)
    except CapturedTensorError as error:
        error.add_note("torchfde's call has no args=: keep the tensor as an attribute of the module that func is.")
        raise


def _number(name: str, value: Any) -> float:
    """The end time or the step as a positive number; as a tensor it would get no gradient."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(
                f"{name} has shape {tuple(value.shape)} and must be one number: t is the end time. For states at all "
                "grid points pass options={'return_history': True}; neuralfde.fdeint takes a tensor of times."
            )
        if is_followed(value):
            raise InputError(
                f"{name} requires grad, or a transform follows it, and would get no gradient. Pass {name}.detach(); an "
                "end time is learned by neuralfde.fdeint(..., t=1.0, horizon=t)."
            )
        value = float(value)
    return real(name, value, above=0)


def _terms(beta: float | Tensor, name: str, shares: Any) -> tuple[Tensor, Tensor]:
    """Orders and their weights, 1-D, in the dtype they were given in."""
    orders = reals("beta", beta).reshape(-1)
    orders = orders if orders.is_floating_point() else orders.float()
    if name != "glmulti":
        if orders.numel() != 1:
            raise InputError(f"method {name!r} takes one order, got {orders.numel()}; several are for 'glmulti'.")
        return orders, torch.ones_like(orders)
    weights = torch.ones_like(orders) if shares is None else reals("multi_coefficient", shares).reshape(-1).to(orders)
    if weights.numel() != orders.numel():
        raise InputError(f"multi_coefficient has {weights.numel()} entries for {orders.numel()} orders.")
    return orders, weights


def _scheme(name: str, orders: Tensor, shares: Tensor, corrections: int) -> tuple[str | Scheme, Any]:
    """The Caputo scheme behind torchfde's name, and the order or operator to call it with."""
    if name == "glmulti":
        return GrunwaldLetnikov(implicit=False), MultiTerm(orders, shares)
    table: dict[str, str | Scheme] = {
        "predictor": "predictor",
        "corrector": ABM(corrections=corrections),
        "l1": "l1-explicit",
        "gl": GrunwaldLetnikov(implicit=False),
        # torchfde's trap is the linear interpolant of y in the Riemann-Liouville derivative; of y - y0 that is L1
        "trap": "l1-explicit",
    }
    return table[name], orders[0]


def leaves(func: Callable[[Tensor, Any], Any], y0: Any, held: Sequence[Tensor]) -> list[Tensor]:
    """What ``func`` trains beside ``held``: its parameters, or, for a plain function, the leaves of its graph."""
    if isinstance(func, nn.Module):
        return [p for p in func.parameters() if p.requires_grad]
    if not torch.is_grad_enabled():
        return []
    start = tensors_in(y0)[0]
    found = func(torch.zeros((), dtype=start.dtype, device=start.device), y0)
    own = [*tensors_in(y0), *held]
    known = {id(x) for x in own}
    variables = (leaf for _, leaf in graph_nodes(tensors_in(found), own) if leaf is not None)
    return list({id(x): x for x in variables if id(x) not in known}.values())


class LearnbleFDEINT:
    """torchfde's solver with a learned kernel in place of an order: not here, and said when one is made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise UnsupportedError(
            "LearnbleFDEINT weighs the past by a network (attention), which is no fractional derivative. Learn the "
            "order, an order for each channel, or a kernel of your own: order=CustomKernel(...) of neuralfde.fdeint."
        )


def set_tensor_mode(mode: str) -> None:
    """Accepted and without effect: torchfde's ``'concat'`` and ``'loop'`` are two ways to the same numbers."""
    if mode not in ("concat", "loop"):
        raise InputError(f"unknown tensor mode {mode!r}. {nearest(mode, ('concat', 'loop'))}")


def get_tensor_mode() -> str:
    """How tuple states are kept here: always as one flat row, which torchfde calls ``'concat'``."""
    return "concat"
