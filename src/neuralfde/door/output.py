"""Output at any time: the scheme's continuous extension at all requested times, and the states in their order.

The samples of a batch share their output times, or each sample has its own. In the latter case a row is divided into
``parts``, each of one sample and one group; positions and weights have one column for each part, or one for all.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..base.caches import to_device
from ..base.grid import Grid, Request
from ..base.policy import AHEAD_SHORTEST, OUTPUT_NUMBERS
from ..base.structure import Structure
from ..base.torch_private import outside_of_programs
from ..errors import InputError
from ..history import History, Window
from ..schemes import Scheme
from ..weights.kernel import Kernel


def in_rows(t: Any) -> Any:
    """A nested tensor or list with the times of each sample, as (batch, times), padded with NaN; others as given."""
    rows = list(t.unbind()) if isinstance(t, Tensor) and t.is_nested else t
    if not isinstance(rows, list | tuple) or not rows or any(getattr(x, "ndim", 0) != 1 for x in rows):
        return t
    return pad_sequence([torch.as_tensor(x, dtype=torch.float64) for x in rows], True, torch.nan)


class Output(NamedTuple):
    """What a solve has to compute for the requested times.

    Attributes:
        nodes: the grid points whose states are needed, ascending.
        positions: where continuous output is evaluated, in steps: (times, 1 or samples).
        dense: its weights (times, steps + 1, parts); None if nothing is evaluated between grid points.
    """

    nodes: tuple[int, ...]
    positions: Tensor
    dense: Tensor | None


def output(
    wanted: Request, structure: Structure, scheme: Scheme, kernel: Kernel, history: History, every: bool
) -> Output:
    """Grid points and weights for the requested times; ``every``: the states at all grid points are needed too."""
    nodes, positions = {n for n in wanted.nodes if n >= 0} or {wanted.grid.steps}, wanted.between
    if wanted.series and not (structure.bare and structure.shapes[0][:1] == positions.shape[1:]):
        raise InputError(
            f"t (batch, times) has times for {positions.shape[1]} samples: z0 must be one tensor with as many entries "
            "along its first axis."
        )
    if every:
        nodes = set(range(wanted.grid.steps + 1))
    continuous = kernel.dense is not None and len(positions) > 0
    if len(positions) and not (continuous and scheme.dense_meets_nodes and not scheme.dense_is_limited):
        lows = set(wanted.cells.long().flatten().tolist())
        around = range(-2, 3) if scheme.dense_is_limited else range(2)  # at least both ends of each cell
        nodes |= {n + k for n in lows for k in around if 0 <= n + k <= wanted.grid.steps}
    found = tuple(sorted(nodes))
    if not continuous:
        return Output(found, positions, None)
    if not scheme.dense_meets_nodes:  # also evaluate it at the grid points, to correct it by its distance there
        more = (
            [wanted.cells, wanted.cells + 1] if wanted.series else [torch.tensor(found, dtype=torch.float64)[:, None]]
        )
        positions = torch.cat([positions, *more])
    return Output(found, positions, _weights(wanted, positions, structure, kernel, history))


def _weights(wanted: Request, positions: Tensor, structure: Structure, kernel: Kernel, history: History) -> Tensor:
    """The weights at all positions, (times, steps + 1, parts)."""
    if wanted.series and kernel.base is not None:
        raise InputError(
            "times for each sample need one initial value, without velocity= and Tempered. Give all times in one row, "
            "t.unique(), and take those of each sample from the result."
        )
    if not wanted.series:
        return _rows(wanted, wanted.grid.held(positions), kernel, history)
    if _by_sample(structure):
        return _rows(wanted, _spread(positions, structure), kernel, history)
    once, again = positions.unique(return_inverse=True)
    found = _rows(wanted, once[:, None], kernel, history).index_select(0, again.flatten())
    return found.unflatten(0, again.shape).permute(0, 2, 3, 1).flatten(2)


def _rows(wanted: Request, positions: Tensor, kernel: Kernel, history: History) -> Tensor:
    """The weights at positions (times, 1 or groups), computed in parts; zero for slopes that a window has forgotten."""
    assert kernel.dense is not None
    width = (wanted.grid.steps + 1) * kernel.weights.shape[-1]
    found = torch.cat([kernel.dense(some) for some in positions.split(max(1, OUTPUT_NUMBERS // width))])
    if not isinstance(history, Window):
        return found
    lags = positions[:, None] - torch.arange(found.shape[1])[:, None]
    return torch.where(lags <= history.length, found, 0.0)


def _by_sample(structure: Structure) -> bool:
    """Whether each group of a row belongs to one sample; otherwise each group contains all samples."""
    return structure.spans is not None and structure.spans[0][0] == 0


def _spread(samples: Tensor, structure: Structure) -> Tensor:
    """Values for each sample (times, samples), repeated for each part of a row (times, parts)."""
    groups = structure.groups
    if _by_sample(structure):
        return samples.repeat_interleave(groups // samples.shape[1], 1)
    return samples.repeat(1, groups)


def assembled(
    wanted: Request,
    structure: Structure,
    scheme: Scheme,
    nodes: tuple[int, ...],
    at_nodes: Tensor,
    between: Tensor | None,
) -> Tensor:
    """The states in the order of the requested times; without continuous output, linear between grid points.

    Continuous output that misses the states at grid points is corrected by its distance from them, linearly between.
    """
    if between is not None and scheme.dense_meets_nodes:
        here = between
        if scheme.dense_is_limited:
            here = limited(wanted.grid, *_places(wanted, structure), nodes, at_nodes, between)
    else:
        here = _moved(wanted, structure, nodes, at_nodes, between) if len(wanted.between) else at_nodes[:0]
    if wanted.series:
        return here
    with _as_constants():
        asked = torch.tensor(wanted.nodes)
        later = (asked < 0).cumsum(0) + (len(nodes) - 1)
        order = torch.where(asked < 0, later, torch.searchsorted(torch.tensor(nodes), asked))
    return _pick(torch.cat([at_nodes, here]), order[:, None]).view(-1, *at_nodes.shape[1:])


def _moved(
    wanted: Request, structure: Structure, nodes: tuple[int, ...], at_nodes: Tensor, between: Tensor | None
) -> Tensor:
    """States between grid points: linear, or continuous output plus its linear correction, see :func:`assembled`."""
    with _as_constants():
        (cells, shares), count = _places(wanted, structure), len(wanted.between)
        low = torch.searchsorted(torch.tensor(nodes), cells)
    share = _like(shares, at_nodes)
    if between is None or wanted.series:
        left, right = _pick(at_nodes, low), _pick(at_nodes, low + 1)
    else:
        beside = at_nodes - between[count:]
        left, right = _pick(beside, low), _pick(beside, low + 1)
    if between is not None and wanted.series:
        left, right = (x - y.reshape(x.shape) for x, y in zip((left, right), between[count:].chunk(2), strict=True))
    moved = torch.lerp(left, right, share).view(count, *at_nodes.shape[1:])
    return moved if between is None else moved + between[:count]


def _as_constants() -> AbstractContextManager[Any]:
    """Context for indices of states: a program that is exported has their values, not what computes them."""
    return outside_of_programs() if torch.compiler.is_exporting() else nullcontext()


def limited(
    grid: Grid, low: Tensor, shares: Tensor, nodes: tuple[int, ...], at_nodes: Tensor, between: Tensor
) -> Tensor:
    """Continuous output of an implicit scheme, as far as the states at the grid points around bear it out.

    A stage damps the error of a state, but its slope is off by that error times the rate ``λ`` of a stiff equation, and
    nothing damps an integral of slopes up to a time inside a cell. A smooth solution is an eighth of its second
    difference away from the straight line between both ends of the cell. So output is held to half of the larger one at
    the two points before, and where the solution begins like a power (at the start or after a jump), to the
    states at both ends and half of the second difference behind it. The line alone is of order 2, so that this keeps
    the order.
    """
    times = grid.elapsed if grid.moving is None else grid.moving
    known, points = torch.tensor(nodes), [(low + k).clamp(0, grid.steps) for k in range(-2, 3)]
    z = [_pick(at_nodes, torch.searchsorted(known, n)) for n in points]
    lengths = [times[b] - times[a] for a, b in itertools.pairwise(points)]
    moves = [b - a for a, b in itertools.pairwise(z)]

    def bend(k: int) -> Tensor:
        """The second difference at the point between two cells, for the length of the cell with the output."""
        before, after = lengths[k], lengths[k + 1]
        meant = torch.minimum(before, after) > AHEAD_SHORTEST * lengths[2]
        one, two = (torch.where(meant, lengths[2] / torch.where(meant, x, 1.0), 0.0) for x in (before, after))
        gain = torch.where(meant, 2 * lengths[2] / torch.where(meant, before + after, 1.0), 0.0)
        found = _like(gain, at_nodes) * (_like(two, at_nodes) * moves[k + 1] - _like(one, at_nodes) * moves[k]).abs()
        return torch.minimum(found, moves[k].abs() + moves[k + 1].abs()) / 2

    line = torch.lerp(z[2], z[3], _like(shares, at_nodes))
    begins = _like((lengths[1] <= AHEAD_SHORTEST * lengths[2]).to(lengths[2]), at_nodes) > 0
    slack = torch.finfo(line.dtype).eps ** 0.75 * torch.maximum(z[2].abs(), z[3].abs()).detach()
    most = torch.where(begins, bend(2), torch.maximum(bend(0), bend(1))) + slack
    top = torch.where(begins, torch.maximum(z[2], z[3]), line) + most
    least = torch.where(begins, torch.minimum(z[2], z[3]), line) - most
    here = between.reshape(line.shape)
    return (here - (here - top).clamp(min=0) + (least - here).clamp(min=0)).reshape(between.shape)


def _places(wanted: Request, structure: Structure) -> tuple[Tensor, Tensor]:
    """For each part of a row the grid point before each output time, and the share of the cell that has passed."""
    cells, shares = wanted.cells, wanted.grid.held(wanted.between) - wanted.cells
    if wanted.series:
        cells, shares = _spread(cells, structure), _spread(shares, structure)
    return cells.long(), shares


def _like(numbers: Tensor, rows: Tensor) -> Tensor:
    """Numbers for all times and parts, to be multiplied with rows."""
    return (numbers.to(rows) if numbers.requires_grad else to_device(numbers, rows))[..., None]


def _pick(rows: Tensor, which: Tensor) -> Tensor:
    """For each part of rows (n, groups, width), those with the indices ``which`` (times, parts): (times, parts, …)."""
    times, parts = which.shape
    flat = (which * parts + torch.arange(parts)).flatten()
    found = rows.reshape(rows.shape[0] * parts, -1)
    return found.index_select(0, to_device(flat, rows.new_empty(0, dtype=torch.long))).view(times, parts, -1)
