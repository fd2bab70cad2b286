"""Arguments as other solvers name and order them: refused, with what to write here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

import torch

from ..base.torch_private import compiler_is_watching, without_compiler
from ..errors import InputTypeError, nearest

_P = ParamSpec("_P")
_R = TypeVar("_R")

_BACKWARD = "The backward pass is the exact adjoint of the forward one and has no settings of its own; leave it out."
#: what torchdiffeq and torchfde call an argument -> what to write here
ARGUMENTS: dict[str, str] = {
    "step_size": "The length of a step is step=h here, or pass their number as steps=n. Coming from torchfde: the time "
    "stands before the order, fdeint(func, z0, t, order).",
    "options": "Pass each option as an argument of its own: step=h for {'step_size': h}, history=Window(k) for "
    "{'memory': k}, and a tensor of times as t for 'return_history'.",
    **dict.fromkeys(("adjoint_method", "adjoint_rtol", "adjoint_atol", "adjoint_options"), _BACKWARD),
    "adjoint_params": "Tensors that get gradients are params= here; those of an nn.Module are found by themselves.",
    "event_fn": "It is event= here, a function that ends the solve where it crosses zero, or an Event.",
    "y0": "The initial state is z0 here.",
    "beta": "The order of the derivative is order here.",
}


def refuse(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise for an argument that ``call`` does not have, saying what to write in its place."""
    for name in given:
        if name not in known:
            raise InputTypeError(f"{call} has no argument {name}=. {ARGUMENTS.get(name) or nearest(name, known)}")


def explained(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """``call``, which is called as ``(func, z0, t, order, *, ...)``, with help where its arguments do not fit.

    It runs outside of any graph that ``torch.compile`` is building, as it is.
    """
    parameters = inspect.signature(call).parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = {p.name for p in parameters}
    first = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    name = f"{getattr(call, '__name__', call)}()"

    def check(count: int, given: dict[str, Any]) -> None:
        if not open_ended:
            refuse(name, given, known)
        if count > len(first):
            raise InputTypeError(
                f"{name} takes {', '.join(first)} by position, all else by name, such as step=0.1, but got {count} "
                "arguments. For code written for torchfde import fdeint from neuralfde.compat.torchfde."
            )
        missing = [x for x in first[count:] if x not in given]
        if missing == ["order"]:
            raise InputTypeError(
                f"{name} needs the order of the derivative after t: order=0.7, a tensor, or an operator. "
                "order=1.0 is an ordinary differential equation."
            )

    alone = without_compiler(call)

    # solve and FDEBlock read the defaults from the function
    @functools.wraps(call, (*functools.WRAPPER_ASSIGNMENTS, "__kwdefaults__"))
    def checked(*args: _P.args, **given: _P.kwargs) -> _R:
        check(len(args), given)
        aside = not torch.compiler.is_exporting() and compiler_is_watching()
        return (alone if aside else call)(*args, **given)

    return checked
