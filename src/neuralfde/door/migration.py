"""Names of arguments and methods in other packages: refused, with advice on what to write here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..errors import InputError, InputTypeError, nearest

_BACKWARD = "The backward pass is the exact adjoint of the forward one and has no settings of its own; leave it out."
_TIMES = "Times are t here: a number T for [0, T], or an increasing tensor that begins with the initial time."
#: what other solvers call an argument -> what to write here
ARGUMENTS: dict[str, str] = {
    "step_size": "The step size is step=h here, or pass the number of steps as steps=n. Coming from torchfde: the time "
    "stands before the order, fdeint(func, z0, t, order).",
    "options": "Pass each option as a separate argument: step=h for {'step_size': h}, history=Window(k) for "
    "{'memory': k}, and a tensor of times as t for 'return_history'.",
    **dict.fromkeys(("adjoint_method", "adjoint_rtol", "adjoint_atol", "adjoint_options"), _BACKWARD),
    "adjoint_params": "Tensors that get gradients are params= here; those of an nn.Module are found automatically.",
    "event_fn": "It is event= here, a function that ends the solve where it crosses zero, or an Event.",
    **dict.fromkeys(("y0", "x0", "u0"), "The initial state is z0 here."),
    **dict.fromkeys(("alpha", "beta", "q"), "The order of the derivative is order here."),
    **dict.fromkeys(("h", "dt"), "The step size is step here."),
    **dict.fromkeys(("n_steps", "num_steps", "nsteps", "N"), "The number of steps is steps here."),
    **dict.fromkeys(("t_span", "tspan", "t_eval", "T", "ts", "times"), _TIMES),
    **dict.fromkeys(("tol", "eps"), "Tolerances are rtol and atol here; a step size is step."),
}
#: what solvers of ordinary equations call their methods, and what comes nearest here
ORDINARY: dict[str, str] = {
    "euler": "predictor",
    **dict.fromkeys(("midpoint", "heun2", "heun3", "rk4", "bosh3", "dopri5", "dopri8", "explicit_adams"), "abm"),
    **dict.fromkeys(("adaptive_heun", "fehlberg2", "tsit5", "rk23", "rk45", "dop853"), "abm"),
    **dict.fromkeys(("implicit_adams", "fixed_adams", "scipy_solver", "radau", "bdf", "lsoda"), "trapezoid"),
}
#: torchfde's names that mean nothing here, or something else
TORCHFDE: dict[str, str] = {
    "corrector": "method='abm'",
    "trap": "method='l1-explicit', or better 'trapezoid'",
    "glmulti": "order=MultiTerm(orders, weights) with method='gl'",
}


def refuse(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise for an argument that ``call`` does not have, saying what to write in its place."""
    for name in given:
        if name not in known:
            advice = ARGUMENTS.get(name) or nearest(name, known)
            raise InputTypeError(f"{call} has no argument {name}=. {advice}") from None


def refuse_call(call: Callable[..., Any], count: int, given: Collection[str]) -> None:
    """Raise an error with advice, if there is any, after ``call(func, z0, t, order, *, ...)`` got wrong arguments.

    Args:
        call: the function.
        count: the number of its positional arguments.
        given: the names of its keyword arguments.
    """
    parameters = inspect.signature(call).parameters.values()
    first = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        refuse(f"{call.__name__}()", given, {p.name for p in parameters})
    if count > len(first):
        raise InputTypeError(
            f"{call.__name__}() takes {', '.join(first)} by position, all else by name, such as step=0.1, but got "
            f"{count} arguments. For code written for torchfde import fdeint from neuralfde.compat.torchfde."
        ) from None
    if [x for x in first[count:] if x not in given] == ["order"]:
        raise InputTypeError(
            f"{call.__name__}() needs the order of the derivative after t: order=0.7, a tensor, or an operator. "
            "order=1.0 is an ordinary differential equation."
        ) from None


def refuse_method(method: str, known: Collection[str]) -> None:
    """Raise for a method that is known from another package."""
    if method.lower() in ORDINARY:
        raise InputError(
            f"method={method!r} is for ordinary equations; an equation with memory needs weights for its whole past. "
            f"The nearest is method={ORDINARY[method.lower()]!r}. At order 1 'predictor' is Euler's method "
            "and 'abm' is Heun's."
        )
    base = method.removesuffix("-f").removesuffix("-o")
    if base in TORCHFDE or base in known:
        raise InputError(
            f"method={method!r} is torchfde's name; here it is {TORCHFDE.get(base, f'method={base!r}')}. "
            "For code written for torchfde import fdeint from neuralfde.compat.torchfde."
        )
