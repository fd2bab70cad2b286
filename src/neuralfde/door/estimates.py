"""Estimates of errors: by a solve with steps of twice the size, and by sums over every other slope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..base.torch_private import pytree
from ..errors import InputError
from ..orders import Caputo, CustomKernel, read_order
from ..schemes import Scheme
from ..solve.plan import Plan, Run
from ..weights.embedded import step_errors
from ..weights.kernel import Kernel
from .validation import Options, Problem


def refuse_estimate(problem: Problem) -> None:
    """Raise if no solve has steps of twice the size: their number is odd, or the weights are for one size."""
    operator, count = problem.operator, problem.request.grid.steps
    if isinstance(operator, CustomKernel) and not callable(operator.weights):
        raise InputError(
            "estimate_error= compares with steps of twice the size, but the weights of this CustomKernel are for one "
            "step size. Pass a function weights(order, h, n), or drop estimate_error=."
        )
    if count % 2:
        raise InputError(
            f"estimate_error= compares with steps of twice the size, but there are {count}, an odd number. Use an "
            f"even number, such as steps={count + 1}."
        )


def gain(scheme: Scheme, order: Any) -> float:
    """``2^p - 1``: how many times the error with h the solutions with h and 2h differ; p is the order if not smooth."""
    operator = read_order(order)
    if not isinstance(operator, Caputo):
        return 1.0
    values = [float(torch.as_tensor(x).detach().min()) for x in pytree.tree_leaves(operator.order)]
    return max(1.0, 2.0 ** scheme.expected_order(min(values), smooth=False) - 1)


def difference(fine: Any, coarse: Any, by: float) -> Any:
    """``|fine - coarse| / by`` in the structure of the states, without gradients."""
    return pytree.tree_map(lambda a, b: (a - b).detach().abs() / by, fine, coarse)


def errors_of_steps(
    plan: Plan, went: Run, problem: Problem, rows: Tensor, row0: Tensor, given: Options, by: float
) -> Tensor:
    """The error of each step, from sums over every other slope; ``by`` is the :func:`gain`."""
    rows, row0 = rows.detach(), row0.detach()
    if isinstance(problem.operator, CustomKernel):
        raise InputError("estimate_error='embedded' needs weights for longer steps; CustomKernel has none. Drop it.")
    mesh = replace(problem.mesh(given.velocity is not None, problem.request.grid), rates=None)

    def kernel(stride: int) -> Kernel:
        part = replace(mesh, steps=mesh.steps // stride, elapsed=mesh.elapsed[::stride])
        return problem.operator.kernel(problem.known, plan.scheme, part)

    initial = row0 if row0.ndim > rows.ndim - 1 else row0[None]
    with torch.no_grad():
        last = plan.field(plan.steps, rows[-1].view(plan.field.shape)).view_as(rows[-1])
        slopes = torch.cat([*went.slopes, last[None]])
        return step_errors(kernel, rows, slopes, initial, by)
