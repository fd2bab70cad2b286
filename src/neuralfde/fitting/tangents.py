"""The derivatives of a solution in everything a fit may change: forward mode along a solution that is known.

A step has sums ``x_k = z_0 + Σ_j W_k v_j`` of the slopes before it, and then ``(z, v) = local(x)``. Its tangents are

    ẋ_k = ż_0 + W_k v̇ + Ẇ_k v,      (ż, v̇) = the derivative of local along (ẋ, ẇ_0, θ̇).

The derivatives of all steps come from one call of ``torch.func.jvp``; what is left is a linear recursion for v̇. The
result is the derivative of the discrete solution itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vmap

from ..base.grid import Request, request
from ..base.policy import TANGENT_STEPS
from ..door.output import limited
from ..door.validation import read_history, read_scheme
from ..history import FFT, Full
from ..schemes import Scheme
from .unknowns import INITIAL, ORDER

if TYPE_CHECKING:
    from .problem import Problem

#: The step of the differences in the order.
_DELTA = 1e-4


class Matrices(NamedTuple):
    """The solve as a linear map of slopes: sums (sums, row, slope), the weight of each row's own slope, and outputs.

    A state at an output time is ``nodes z + between v``, and the initial state for what is left of ``nodes`` to 1.
    """

    sums: Tensor
    local: Tensor
    nodes: Tensor
    between: Tensor


def tangents(problem: Problem, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """States (T, B, d) and their derivatives (T, columns, B, d): model, variables of the initial state, order.

    None where the grid is not uniform or long, the past not summed in full, or ``func`` not to be vectorised over time.
    """
    options, learned = problem.options, ORDER in named
    exact = isinstance(read_history(options.get("history", "auto")), Full | FFT | None)
    others = ("grid", "horizon", "jumps", "event", "past", "lags", "linear")
    plain = (
        options.get("grading", 1.0) == 1 and problem.velocity is None and all(options.get(k) is None for k in others)
    )
    if options.get("step") is None and options.get("steps") is None:
        return None
    wanted = request(problem.data.times, options.get("step"), options.get("steps"), options.get("grading", 1.0))
    if not (exact and plain and wanted.grid.steps <= TANGENT_STEPS):
        return None
    scheme = read_scheme(options.get("method"), options.get("solver"))
    m, change = _numbers(scheme, wanted, float(named.get(ORDER, problem.order)))
    times = wanted.grid.start + wanted.grid.elapsed
    states = problem.solve(named, times)
    values, z0 = [named[n] for n in problem.names], states[0]
    units, seeds = _columns(values, z0, INITIAL in named, learned)
    try:
        slopes = vmap(lambda t, z: problem.field_of(t, z, *values))(times, states)
        sums, drift = ((x @ slopes.flatten(1)).view(-1, *states.shape) for x in (m.sums, change.sums))
        moves = seeds[:, None, None].repeat(1, len(times), len(m.sums), 1, 1)
        weights = torch.zeros(len(seeds), len(times), dtype=torch.float64)
        if learned:
            moves[-1], weights[-1] = drift.transpose(0, 1), change.local
        here = _local(problem, scheme, values, times, (z0 + sums).transpose(0, 1), m.local, (moves, weights, units))
    except RuntimeError:  # what func does depends on the value of a time
        return None
    if _differs(problem, values, times, states, here.states):
        return None
    moved = _recursion(m, here, scheme.implicit)
    past = torch.einsum("knj,jbcd->nbckd", m.sums, moved).flatten(-2)
    found = here.states_direct + past @ here.states_by_sums
    out = torch.einsum("tn,nbcd->tcbd", m.nodes, found) + torch.einsum("tn,nbcd->tcbd", m.between, moved)
    out = out + (1 - m.nodes.sum(1))[:, None, None, None] * seeds
    if learned:
        out[:, -1] += torch.einsum("tn,nbd->tbd", change.between, slopes)
    seen = torch.einsum("tn,nbd->tbd", m.nodes, states - z0) + torch.einsum("tn,nbd->tbd", m.between, slopes)
    seen = z0 + seen
    if scheme.dense_is_limited and len(wanted.between):
        _limit(wanted, states, found, seen, out)
    return seen, out


def _limit(wanted: Request, states: Tensor, moved: Tensor, seen: Tensor, out: Tensor) -> None:
    """Hold continuous output to what the states bear out, and its derivatives along; writes to the last two."""
    low, nodes = wanted.cells.long(), tuple(range(len(states)))
    hold = partial(limited, wanted.grid, low, wanted.between - low, nodes)
    at = torch.tensor(wanted.nodes) < 0
    rows, own = (x.flatten(1)[:, None] for x in (states, seen[at]))
    pushes = moved.permute(2, 0, 1, 3).flatten(2)[:, :, None], out[at].transpose(0, 1).flatten(2)[:, :, None]
    along = vmap(lambda *d: jvp(hold, (rows, own), d)[1])(*pushes)
    seen[at], out[at] = hold(rows, own).view_as(seen[at]), along.transpose(0, 1).reshape(out[at].shape)


def output_is_limited(problem: Problem) -> bool:
    """Whether output is no linear map of states and slopes, so that an equation for its derivatives has another one."""
    options = problem.options
    given = [options.get(name) for name in ("step", "steps", "grading", "grid")]
    wanted = request(problem.data.times, given[0], given[1], given[2] or 1.0, given[3])
    return len(wanted.between) > 0 and read_scheme(options.get("method"), options.get("solver")).dense_is_limited


def _differs(problem: Problem, values: list[Tensor], times: Tensor, states: Tensor, again: Tensor) -> bool:
    """Whether ``func`` is another function when it is vectorised over time, or a trajectory depends on another one."""
    return not bool((again - states).abs().max() <= 1e-6 * states.abs().max()) or coupled(
        problem, values, times, states
    )


def coupled(problem: Problem, values: list[Tensor], times: Tensor, states: Tensor) -> bool:
    """Whether the slope of a trajectory depends on another one, at the first, a middle or the last of these states.

    Trajectories are moved whose number has, or has not, a certain bit: for any two of them one is then moved alone.
    """
    count = states.shape[1]
    if count == 1 or problem.each:
        return False
    bits = torch.arange(count) >> torch.arange((count - 1).bit_length())[:, None] & 1
    for k in {0, len(states) // 2, len(states) - 1}:
        here = _slope(problem, values, times[k], states[k])
        for moved in torch.cat([bits, 1 - bits]).bool():
            other = torch.where(moved[:, None], 1.001 * states[k] + 1e-3 * states[k].abs().mean(), states[k])
            change = (_slope(problem, values, times[k], other) - here)[~moved]
            if bool((change.abs() > 1e-12 * here[~moved].abs()).any()):
                return True
    return False


def _slope(problem: Problem, values: list[Tensor], t: Tensor, z: Tensor) -> Tensor:
    """With the same random numbers every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return problem.field_of(t, z, *values).detach()


def _columns(values: list[Tensor], z0: Tensor, initial: bool, learned: bool) -> tuple[Tensor, Tensor]:
    """By which parameters (columns, parameters) and initial states (columns, B, d) each column is moved."""
    count, width = sum(v.numel() for v in values), z0.shape[-1] if initial else 0
    units = torch.eye(count + width + learned, count, dtype=z0.dtype)
    seeds = z0.new_zeros(len(units), *z0.shape)
    seeds[count : count + width] = torch.eye(width, z0.shape[-1], dtype=z0.dtype)[:, None]
    return units, seeds


def _numbers(scheme: Scheme, wanted: Request, order: float) -> list[Matrices]:
    """The matrices, and their derivatives in the order: by differences of fourth order, to some 1e-12 of a weight.

    Forward mode through the series behind the weights takes a hundred times as long.
    """
    offsets = _DELTA * (torch.arange(5, dtype=torch.float64) - 2) + min(0.0, 1 - order - 2 * _DELTA)
    powers = torch.linalg.vander(offsets / _DELTA).T
    slope = torch.linalg.solve(powers, torch.eye(5, dtype=torch.float64)[1]) / _DELTA
    value_and_slope = torch.stack([torch.eye(6, dtype=torch.float64)[0], torch.cat([slope.new_zeros(1), slope])], 1)
    kernel = scheme.kernel(order + torch.cat([slope.new_zeros(1), offsets]), wanted.grid.step, wanted.grid.steps)
    start = kernel.weights.new_zeros(0, 0, 1, 2) if kernel.start is None else kernel.start @ value_and_slope
    parts = [x.unbind(-1) for x in (kernel.weights @ value_and_slope, kernel.local @ value_and_slope, start)]

    def dense(position: float, k: int) -> Tensor:
        assert kernel.dense is not None
        return kernel.dense(torch.tensor([[position]], dtype=torch.float64))[0] @ value_and_slope[:, k]

    return [
        Matrices(
            *_sums(scheme, kernel.first, *(x[k] for x in parts)),
            *_outputs(scheme, wanted, None if kernel.dense is None else partial(dense, k=k)),
        )
        for k in (0, 1)
    ]


def _sums(scheme: Scheme, first: int, weights: Tensor, local: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of lags, of each row's own slope and of the first slopes, as matrices."""
    n = torch.arange(weights.shape[1])
    lag = n[:, None] - n
    table = weights[:, lag.clamp(min=0)]
    starts = min(start.shape[1], len(n))
    table[: len(start), :, :starts] += start[:, :starts].mT
    table = torch.where((lag > 0) & (n >= first), table, 0.0)
    own = torch.where(n > 0, local, 0.0)
    return (table + torch.diag(own) if scheme.implicit else table), own


def _outputs(scheme: Scheme, wanted: Request, dense: Callable[[float], Tensor] | None) -> tuple[Tensor, Tensor]:
    """The weights of states and slopes in the states at the output times, as the solver has them."""
    nodes = torch.zeros(len(wanted.positions), wanted.grid.steps + 1, dtype=torch.float64)
    between = torch.zeros_like(nodes)
    for k, (node, position) in enumerate(zip(wanted.nodes, wanted.positions, strict=True)):
        low = node if node >= 0 else math.floor(position)
        part = 0.0 if node >= 0 else position - low
        if node >= 0 or dense is None or not scheme.dense_meets_nodes:
            nodes[k, low], nodes[k, low + (part > 0)] = 1 - part, part or 1.0
        if node < 0 and dense is not None:
            between[k] = dense(position)
            if not scheme.dense_meets_nodes:
                between[k] -= torch.lerp(dense(float(low)), dense(low + 1.0), part)
    return nodes, between


class Local(NamedTuple):
    """States, and the derivatives of states and slopes of each step: in its sums (N + 1, B, sums · d, d), and along
    what each column moves directly (N + 1, B, columns, d)."""

    states: Tensor
    states_by_sums: Tensor
    slopes_by_sums: Tensor
    states_direct: Tensor
    slopes_direct: Tensor


def _local(
    problem: Problem, scheme: Scheme, values: list[Tensor], times: Tensor, sums: Tensor, weights: Tensor,
    direct: tuple[Tensor, Tensor, Tensor],
) -> Local:  # fmt: skip
    """Of all steps at once; ``direct`` are the moves of sums, own weights and parameters behind each column."""
    _, kinds, batch, width = sums.shape
    each = torch.eye(kinds * width, dtype=sums.dtype).view(-1, 1, kinds, 1, width)
    moves = torch.cat([each.expand(-1, len(times), -1, batch, -1), direct[0]])
    own, units = (torch.cat([x.new_zeros(len(each), x.shape[1]), x]) for x in direct[1:])
    sizes, shapes = [v.numel() for v in values], [v.shape for v in values]

    def at(t: Tensor, x: Tensor, w0: Tensor, dx: Tensor, dw: Tensor) -> Any:
        def step(x: Tensor, w0: Tensor, *values: Tensor) -> Any:
            return scheme.evaluate(lambda y: problem.field_of(t, y, *values), x.unbind(0), w0)

        def along(dx: Tensor, dw: Tensor, unit: Tensor) -> Any:
            parts = [p.reshape(s) for p, s in zip(unit.split(sizes), shapes, strict=True)]
            return jvp(step, (x, w0, *values), (dx, dw, *parts))

        return vmap(along)(dx, dw, units)

    (states, _), moved = vmap(at, in_dims=(0, 0, 0, 1, 1))(times, sums, weights, moves, own)
    found = [part for x in moved for part in x.transpose(1, 2).split([len(each), len(direct[0])], dim=2)]
    return Local(states[:, 0], found[0], found[2], found[1], found[3])


def _recursion(m: Matrices, here: Local, implicit: bool) -> Tensor:
    """The tangents of the slopes (N + 1, B, columns, d), row by row."""
    moved, by, count = torch.empty_like(here.slopes_direct), here.slopes_by_sums, len(m.sums)
    if implicit:
        one = torch.eye(by.shape[-1], dtype=by.dtype)
        inverse = torch.linalg.inv(one - m.local[:, None, None, None] * by)
    for n in range(len(moved)):
        past = (m.sums[:, n, :n] @ moved[:n].flatten(1)).view(count, *moved.shape[1:])
        row = here.slopes_direct[n] + past.permute(1, 2, 0, 3).flatten(-2) @ by[n]
        moved[n] = row @ inverse[n] if implicit else row
    return moved
