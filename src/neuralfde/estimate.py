"""Before a solve: predict its cost, and find a step for a tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .api import asked, explained, fdeint, options_of
from .base.checks import real, whole
from .base.grid import request
from .base.policy import COMPARED_TIMES
from .base.structure import is_complex, structure_of, tensors_in
from .base.torch_private import pytree
from .door.complex_numbers import in_real_numbers
from .door.cost import Prediction, predict
from .door.estimates import difference, gain
from .door.lags import read_lags
from .door.semilinear import joined
from .door.validation import read, read_args, read_params, read_scheme, refuse_surroundings
from .errors import ConvergenceError, InputError, InputTypeError
from .schemes import Scheme


@explained
def plan(func: Callable[..., Any], z0: Any, t: float | Tensor, order: Any, **options: Any) -> Prediction:
    """Predict memory and work of ``fdeint`` with the same arguments, without running ``func``; print the result."""
    given = options_of("plan", options)
    z0, t = asked(z0, t, given.past)
    if is_complex(z0):
        func, z0, order, given = in_real_numbers(func, z0, order, given)
    if given.linear is not None:
        func, given = joined(func, z0, given)
    trained = [*read_params(func, given.params), *tensors_in(z0), *tensors_in(order), *tensors_in(given.args)]
    train = torch.is_grad_enabled() and any(x.requires_grad for x in trained)
    refuse_surroundings(func)
    if given.adaptive:
        raise InputError("plan() cannot know how many steps a tolerance takes: give it step=, steps= or grid=.")
    problem = read(structure_of(z0), t, order, given, train)
    read_args(given.args, problem.structure)
    if given.lags is not None:
        read_lags(given, problem, False)
    mesh = problem.mesh(given.velocity is not None, problem.request.grid)
    problem.operator.check(problem.known, problem.scheme, mesh)
    stages = getattr(problem.scheme, "corrections", 0) + 1
    return predict(problem.history, problem.storage, problem.size, problem.structure.numel, stages, problem.why)


@explained
def suggest_step(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: Any,
    tol: float,
    *,
    method: str | Scheme = "abm",
    max_steps: int = 65536,
    **options: Any,
) -> float:
    """The largest step ``T / (16·2^k)`` whose estimated error is at most ``tol``.

    The number of steps is doubled until ``|z_h - z_2h| / (2^p - 1)`` is at most ``tol · (1 + |z|)`` at 16 times between
    the start and the end; p is the order of the method for a solution that is not smooth. An estimate, not a bound.

    Args:
        func: as in ``fdeint``.
        z0: the state at the first time.
        t: times, of which only the first and the last count.
        order: β.
        tol: the largest error, relative to ``1 + |z|``.
        method: the scheme.
        max_steps: raise ``ConvergenceError`` if more steps are needed.
        options: further arguments of ``fdeint``.

    Returns:
        The step, for use as ``step=``.
    """
    if options.keys() & {"step", "steps"}:
        raise InputTypeError("suggest_step() finds the step: leave step= and steps= out.")
    real("tol", tol, above=0)
    whole("max_steps", max_steps, least=2 * COMPARED_TIMES, hint="It compares solves of 16 and 32 steps at first.")
    grid = request(t, None, COMPARED_TIMES).grid
    start, end = grid.start, grid.end
    times = torch.linspace(start, end, COMPARED_TIMES + 1, dtype=torch.float64)
    scheme = read_scheme(method, None)
    by, coarse, worst, steps = gain(scheme, order), None, float("inf"), COMPARED_TIMES
    while steps <= max_steps:
        with torch.no_grad():
            fine = fdeint(func, z0, times, order, method=scheme, steps=steps, **options)
        if coarse is not None:
            errors = difference(fine, coarse, by)
            parts = zip(pytree.tree_leaves(errors), pytree.tree_leaves(fine), strict=True)
            worst = max(float((e / (1 + z.abs())).max()) for e, z in parts)
            if worst <= tol:
                return (end - start) / steps
        coarse, steps = fine, 2 * steps
    raise ConvergenceError(
        f"the estimated error is {worst:.1e} with {steps // 2} steps; {tol:.1e} was asked for. Use a method of higher "
        "order ('trapezoid', 'bdf2'), a larger max_steps or tol."
    )
