"""A solve in plain operations of PyTorch, which composes with everything that they compose with.

Forward mode, second derivatives and the transforms of ``torch.func`` follow each operation of every step. The numbers
are those of the scheme; the price is memory for the graph of N steps, and a past that is summed in full, O(N²). Nothing
is written in place, and no value decides what is done next.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ..base.policy import COMPOSED_BLOCK, COMPOSED_ITERATIONS, COMPOSED_NUMBERS, STAGE_GROWTH
from ..base.structure import replace_tensors, tensors_in
from ..base.torch_private import derivatives_are_watched, value_of
from ..base.torch_transforms import solved
from ..errors import ConvergenceError, UnsupportedError
from ..history import Block
from ..history.between import in_parts
from ..rhs.field import Field
from ..schemes import Scheme, Stages
from ..schemes.base import Slope
from .loop import forward_task
from .plan import Coefficients, Plan
from .steppers.work import traced


def composed(plan: Plan, c: Coefficients, z0: Tensor) -> tuple[Tensor, Tensor | None]:
    """``(states at nodes, states between nodes)``; ``plan.field`` takes arguments that are part of the graph."""
    scheme, field, total = plan.scheme, plan.field, plan.steps + 1
    matrix = _Matrix(plan, c)
    slopes: list[Tensor] = []  # (steps of a block, groups, width) each
    states: dict[int, Tensor] = {}
    rows: list[Tensor] = []  # of all steps, where func gets earlier states
    wanted, stages, before = set(plan.nodes), scheme.open_stages(), z0 if c.base is None else z0[0]
    for start in range(0, total, COMPOSED_BLOCK):
        block = Block(start, min(COMPOSED_BLOCK, total - start))
        sums = _initial(plan, c, z0, block)
        if slopes:
            sums = sums + torch.einsum("sncg,cgm->nsgm", matrix.rows(block, 0, start), torch.cat(slopes))
        inner = matrix.rows(block, start, block.stop).permute(2, 1, 0, 3).unsqueeze(-1)  # column, row, sum, group, 1
        task, own = forward_task(plan, c, block, sums, inner, None), []
        for k, n in enumerate(task.steps):
            x = [part.reshape(field.shape) for part in sums[0].unbind(0)]
            w0 = task.local[k][0] if sums.shape[2] == 1 else task.local[k].unsqueeze(1)
            if plan.delays is not None:
                field.args = plan.delays.arguments(field.args, n, rows or [before])
            f, given = partial(_on_copies if derivatives_are_watched() else Field.__call__, field, n), k == task.origin
            if scheme.implicit and not given:
                x[0] = _located(scheme, stages, before, f, x[0], w0)
            z, v = traced(scheme, f, x, w0, k not in task.idle, given)
            before = z
            if plan.delays is not None:
                rows.append(z)
            v = torch.zeros_like(sums[0, 0]) if v is None else v.reshape(sums.shape[2:])
            own.append(v)
            if n in wanted:
                states[n] = z.reshape(v.shape)
            sums = sums[1:] + inner[k, k + 1 :] * v
        slopes.append(torch.stack(own))
        if plan.callback is not None:
            for n in task.steps:
                plan.callback(n, plan.steps)
    if stages is not None:
        stages.warn()
    out = torch.stack([states[n] for n in plan.nodes])
    return out, None if c.dense is None else _between(c, z0, torch.cat(slopes))


def _on_copies(field: Field, n: int, z: Tensor) -> Tensor:
    """The slope of a state; what ``func`` writes to in place may share the tangents of what it is given."""
    given = field.args
    field.args = replace_tensors(given, [x.clone() for x in tensors_in(given)])
    try:
        return field(n, z.clone())
    finally:
        field.args = given


def _located(scheme: Scheme, stages: Stages | None, before: Tensor, f: Slope, c: Tensor, w0: Tensor) -> Tensor:
    """``z = c + w_0 f(z)`` with its derivatives, by Newton's method.

    From a solution on, each iteration doubles the number of derivatives that are right: after two of them, three.
    """
    if c.numel() > COMPOSED_NUMBERS:
        raise UnsupportedError(
            f"an implicit stage of {c.numel()} numbers has no second derivatives, forward mode or vmap here: up to "
            f"{COMPOSED_NUMBERS} it does. Use an explicit method, or smaller pieces of the state."
        )
    with torch.no_grad():
        z, known, own = before.detach().reshape(c.shape), c.detach(), w0.detach()
        if not derivatives_are_watched():
            z, _ = scheme.locate(f, known, own, z, stages, "a step")
        else:
            z = _settled(f, z, known, own)
    for _ in range(2):
        z = _newton(f, z, c, w0)
    return z


def _settled(f: Slope, start: Tensor, c: Tensor, w0: Tensor) -> Tensor:
    """The same by Newton's method alone: what vmap does to one state it does to all, until the last of them stands."""
    tol, z, before, rest = torch.finfo(c.dtype).eps ** 0.75, start, math.inf, c + w0 * f(start) - start
    for _ in range(COMPOSED_ITERATIONS):
        new = _newton(f, z, c, w0)
        move, size = (new - z).abs(), torch.maximum(new.abs(), c.abs())
        change, share = _most(torch.where(move > 0, move / size, 0.0)), _most(move.max() / size.max())
        z = new
        if change <= tol or (share <= tol and change > before / 2):  # beside large elements small ones keep moving
            d = z - start  # see NewtonStages.solve
            if _most((d * (d - rest - STAGE_GROWTH * d)).sum()) > 0:
                raise ConvergenceError(
                    "a stage seems to have several solutions, and a solve inside a transform cannot tell which of them "
                    "continues the step before. Use a smaller step, or an explicit method."
                )
            return z
        before = change
    raise ConvergenceError(
        f"Newton's method for a stage of a solve inside a transform did not converge: after {COMPOSED_ITERATIONS} "
        f"iterations the updates are {change:.1e} of the state. Use a smaller step, or an explicit method."
    )


def _most(x: Tensor) -> float:
    return float(value_of(x).max())


def _newton(f: Slope, z: Tensor, c: Tensor, w0: Tensor) -> Tensor:
    one = torch.eye(z.numel(), dtype=z.dtype, device=z.device)
    jacobian = torch.func.jacrev(f)(z).reshape(one.shape)  # forward mode may be what is asked for, and does not nest
    weights = (w0 * torch.ones_like(z)).reshape(-1, 1)
    residual = (c + w0 * f(z) - z).reshape(-1, 1)
    return z + solved(one - weights * jacobian, residual).reshape(z.shape)


def _initial(plan: Plan, c: Coefficients, z0: Tensor, block: Block) -> Tensor:
    """What is known before any slope is: (count, sums, groups, width)."""
    sums = plan.scheme.sums
    if plan.known is not None:
        return plan.known[block.start : block.stop]
    if c.base is None:
        return z0.expand(block.count, sums, *z0.shape)
    lines = torch.einsum("ing,igm->ngm", c.base[:, block.start : block.stop], z0)
    return lines[:, None].expand(-1, sums, -1, -1)


def _between(c: Coefficients, z0: Tensor, slopes: Tensor) -> Tensor:
    """States between nodes."""
    assert c.dense is not None
    steps = c.dense.shape[1]
    first = z0 if c.base is None else torch.einsum("iog,igm->ogm", c.base[:, steps:], z0)
    return first + torch.einsum("ong,ngm->ogm", c.dense, in_parts(slopes, c.dense)).reshape(-1, *slopes.shape[1:])


class _Matrix:
    """The weights of slopes in sums, starting weights included, as blocks of a matrix."""

    def __init__(self, plan: Plan, c: Coefficients) -> None:
        self.lags, self.start = plan.history.lags(c.weights, plan.steps), c.start

    def rows(self, block: Block, a: int, b: int) -> Tensor:
        """Weights of the slopes a … b-1 in the rows of a block: (sums, count, b - a, groups), zero unless earlier."""
        device = self.lags.device
        n, j = torch.arange(block.start, block.stop, device=device)[:, None], torch.arange(a, b, device=device)
        earlier = (n > j)[..., None]
        if self.lags.ndim == 3:
            found = self.lags[:, (n - j).clamp(min=0)]
        else:
            found = self.lags[:, block.start : block.stop, a:b]
        if self.start is not None and a < self.start.shape[1]:
            # sums, count, starts from a on, groups
            extra = self.start[:, a:b, block.start : block.stop].transpose(1, 2)
            extra = torch.nn.functional.pad(extra, (0, 0, 0, b - a - extra.shape[2]))
            found = torch.cat([found[: len(extra)] + extra, found[len(extra) :]])
        return torch.where(earlier, found, 0.0)
