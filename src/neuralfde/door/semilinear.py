"""``linear=``: the linear part and ``func`` become one right-hand side; the tensors of ``A`` are its last argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..adjoints import Paper
from ..base.structure import structure_of
from ..errors import InputError
from ..linear import LinearPart, read_linear
from ..linear.stages import solver_for
from ..schemes import IMEX, OneStage
from .validation import Options, Problem, given_params, read_scheme


class Joined(nn.Module):
    """``A z + func(t, z, *args)``; the tensors of ``A`` are the last argument."""

    made_anew = True  # made in every solve: captured steps could not be reused

    def __init__(self, func: Callable[..., Any] | None, part: LinearPart) -> None:
        super().__init__()
        self.func, self.part = func, part
        if part.own:
            self.owner = getattr(part, "made", None)  # its parameters are found like those of func

    def forward(self, t: Any, z: Tensor, *args: Any) -> Any:
        """The whole right-hand side."""
        *rest, tensors = args
        with torch.autocast(z.device.type, enabled=False):  # the systems are solved in the precision of the state
            slope = self.part.with_tensors(tensors or self.part.tensors).matvec(z)
        return slope if self.func is None else slope + self.func(t, z, *rest)


def constant(t: Any, z: Tensor, b: Tensor) -> Tensor:
    """A source that depends neither on time nor on the state."""
    return b.expand_as(z)


def joined(func: Any, z0: Any, given: Options) -> tuple[Callable[..., Any], Options]:
    """One right-hand side, and options without ``linear=``; the default method is IMEX, for a tolerance trapezoid."""
    if given.adjoint == "paper" or isinstance(given.adjoint, Paper):
        raise InputError(
            "adjoint='paper' integrates backwards by explicit steps, which linear= does not bear. Use adjoint='exact'."
        )
    structure = structure_of(z0)
    part = read_linear(given.linear, structure)
    # func gets the tensors as arguments, and these get the gradients; its own copy must be detached
    held = part if part.own else part.with_tensors([x.detach() for x in part.tensors])
    if func is None or isinstance(func, Tensor):
        refuse_args(given)
    args = given.args
    if isinstance(func, Tensor):
        func, args = constant, (func,)
    tensors = () if part.own else part.tensors
    given = given._replace(args=(*args, tuple(tensors)), linear=None)
    if given.params is not None and part.own:
        given = given._replace(params=[*given_params(given.params), *part.tensors])
    default = "trapezoid" if given.adaptive else "imex"
    scheme = read_scheme(given.method, given.solver, default)
    uneven = given.grid is not None or given.grading != 1 or given.adaptive or given.jumps is not None
    if isinstance(scheme, IMEX):
        scheme = replace(scheme, part=held, uneven=uneven)
    elif isinstance(scheme, OneStage) and scheme.implicit and given.solver is None:
        numbers = structure.shapes[0][-part.axes :].numel()
        second_order = scheme.expected_order(0.5, smooth=True) >= 2
        known = solver_for(held, func is None or func is constant, numbers, uneven, second_order)
        scheme = scheme if known is None else replace(scheme, solver=known)
    return Joined(func, held), given._replace(method=scheme, solver=None)


def refuse_args(given: Options) -> None:
    """Raise if there are arguments for a ``func`` that is None or a tensor."""
    if not isinstance(given.args, tuple | list) or len(given.args) > 0:
        raise InputError(
            "args= are passed on to func, which is None or a constant source here and takes none. Leave args= out, or "
            "pass func(t, z, *args)."
        )


def refuse_orders(problem: Problem) -> None:
    """Raise if IMEX would need linear systems with several local weights, one per order."""
    if isinstance(problem.scheme, IMEX) and problem.scheme.part is not None and problem.structure.spans is not None:
        raise InputError(
            "linear= with method='imex' takes one order and one horizon for the whole state. Use an implicit method "
            "such as 'l1' or 'trapezoid', which solves the whole right-hand side, or one solve for each order."
        )
