"""Solves with an event: found by solves without gradients, then differentiated on the mesh that was found."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..base.grid import Request, read_times, request
from ..base.policy import ADAPTIVE_AGAIN, ADAPTIVE_ATTEMPTS, EVENT_FIRST_SHARE, EVENT_ROUNDS, JUMP_LENGTH
from ..base.structure import Structure, alike, all_finite, as_numbers, structure_of
from ..base.torch_private import derivatives_are_watched, pytree
from ..door.adaptive import Adapted, adapted
from ..door.validation import Options, read_args
from ..errors import ConvergenceError, InputError, UnsupportedError
from ..solver import Solved, run
from ..time import Event, read_jumps
from ..time.events import Cell, Moment, early, root, samples_of, support, times_of
from ..time.jumps import points_of, time_slack

Spans = list[list[tuple[float, float]]]  # for each sample the cells of the mesh in which its event happens


class Watched:
    """One equation and its event; ``own``: each sample has one of its own."""

    def __init__(self, func: Callable[..., Any], z0: Any, t: Any, order: Any, given: Options) -> None:
        self.event = given.event if isinstance(given.event, Event) else Event(given.event)
        self.ends = self.event.reset is None and self.event.terminal
        self.func, self.z0, self.order, self.given = func, z0, order, given._replace(event=None, jumps=None)
        self.asked, self.terminal = read_times(t)
        self.structure: Structure = structure_of(z0)
        self.args, self.like = read_args(given.args, self.structure), pytree.tree_leaves(z0)[0].detach()
        self.jumps, self.spent = self._given_jumps(given, t), 0
        self.doses = {j.when for j in self.jumps}  # all others will be resets
        self.share, self.excess = 1.0, 0.0  # of a tolerance: asked for each step, and found at the end
        self.beyond = 0  # how many steps a march goes on after its event: that of the solve may be later
        with torch.no_grad():
            first = self._value(self.asked[0], z0)
        self.own, self.samples = first.ndim > 0, first.numel()

    def _given_jumps(self, given: Options, t: Any) -> list[Moment]:
        if given.jumps is None:
            return []
        known = read_jumps(given.jumps, self.structure, t)
        times = torch.tensor(known.times, dtype=torch.float64) if known.moving is None else known.moving
        found = [Moment(self.asked[0] + x, self.structure.unpack(v)) for x, v in zip(times, known.rows, strict=True)]
        whens = {x: j.when for x, j in zip(known.times, found, strict=True)}
        start, whole = self.asked[0], self.asked[-1] - self.asked[0]
        for k, x in enumerate(self.asked[1:], 1):  # the times asked for, as rounded, that mean these jumps
            self.asked[k] = whens.get(known.snapped(x - start, start, whole), x)
        return found

    def _value(self, time: float, z: Any) -> Tensor:
        return self.event.value(self.like.new_tensor(time), z, self.args, self.structure)

    def _value_of(self, k: int, t: Tensor, z: Any) -> Tensor:
        """The event of sample ``k`` in this state of it."""
        found = self.event.fn(t, self.everywhere(z), *self.args)
        return found[k] if self.own else found  # type: ignore[no-any-return]

    def everywhere(self, state: Any) -> Any:
        """A batch in which every sample has the state of one: other tensors may hold a value for each sample."""
        if not self.own:
            return state
        return pytree.tree_map(lambda x: x.expand(self.samples, *x.shape[1:]), state)

    def sample(self, tree: Any, k: int, axis: int = 0) -> Any:
        """Sample ``k`` of a state: a batch of one, or the whole state where that has one event."""
        return pytree.tree_map(lambda x: x.narrow(axis, k, 1), tree) if self.own else tree

    def mesh(self) -> tuple[Tensor, Options, Adapted | None]:
        """The points at which steps end, and the options that say so; a march to a tolerance ends with the event."""
        given = self._jumping(self.given, math.inf)
        ends = torch.tensor(self.asked, dtype=torch.float64)
        if given.adaptive:
            given, march = adapted(self.func, self.z0, ends, self.order, given, False, self.share, self._until())
            return points_of(self.asked[0], march.found.times), given, march
        grid = request(ends, given.step, given.steps, given.grading, given.grid).grid
        points = points_of(grid.start, grid.elapsed)
        points[-1] = self.asked[-1]
        return points, given._replace(step=None, steps=None, grading=1.0), None

    def _until(self) -> Callable[[float, Any], bool] | None:
        """Whether every sample has had its event, asked after each accepted step of a march; None where it goes on."""
        if not self.ends:
            return None
        values, ended = [self._value(self.asked[0], self.z0)], torch.zeros(self.samples, dtype=torch.bool)
        left = self.beyond + 1

        def until(time: float, z: Any) -> bool:
            nonlocal left
            values.append(self._value(time, z))
            ended.logical_or_(self.event.crossed(*values[-2:]).reshape(-1).cpu())
            left -= bool(ended.all())
            return left <= 0

        return until

    @torch.no_grad()
    def spans(self, points: Tensor, given: Options, march: Adapted | None) -> Spans:
        """Where the event happens; a solve that is to end is tried over a part of the mesh, then over twice as much."""
        total = len(points) - 1
        count = math.ceil(total * EVENT_FIRST_SHARE) if self.ends and march is None else total
        while True:
            found = self._crossed(points[: count + 1], given, march if count == total else None)
            if count == total or all(found):
                return [x[:1] for x in found] if self.ends else found
            count = min(2 * count, total)

    def _crossed(self, points: Tensor, given: Options, march: Adapted | None) -> Spans:
        end = float(points[-1])
        times = sorted({*self._apart(points).tolist(), *(j.when for j in self.jumps if j.when < end), end})
        size = max(map(abs, self.asked))
        pairs = [(a, b) for a, b in itertools.pairwise(times) if self._begins(a)]
        times = sorted({*times, *(x for a, b in pairs for x in early(a, b, size) if a < x < b)})
        given = self._jumping(given, end)._replace(grid=points, callback=None, check_finite=False)
        solved = run(self.func, self.z0, torch.tensor(times, dtype=torch.float64), self.order, given)
        self.spent += solved.plan.field.evaluations
        jumps = {j.when: j.state for j in self.jumps}
        before, after = [], []
        for k, time in enumerate(times):
            z = pytree.tree_map(lambda x, k=k: x[k], solved.ys)
            after.append(self._value(time, z).reshape(-1))
            if bool(after[-1].isnan().any()) and all(map(all_finite, pytree.tree_leaves(z))):
                raise InputError(f"event returned NaN at t={time:g}: return a number that crosses zero.")
            before.append(after[-1])
            if time in jumps:
                before[-1] = self._value(time, pytree.tree_map(lambda a, b: a - b, z, jumps[time])).reshape(-1)
        self.excess = 0.0 if march is None else march.excess(solved.last)
        inside = self.event.crossed(torch.stack(after[:-1]), torch.stack(before[1:])).cpu()
        across = self.event.crossed(torch.stack(before), torch.stack(after)).cpu()  # by a jump
        found: Spans = [[] for _ in range(self.samples)]
        for n, k in inside.nonzero().tolist():
            found[k].append((times[n], times[n + 1]))
        for n, k in across.nonzero().tolist():
            if times[n] in self.doses:
                found[k].append((times[n], times[n]))
        return [sorted(spans) for spans in found]

    def _begins(self, time: float) -> bool:
        """Whether the solution begins like a power at this time: at the start, and after a jump."""
        return time == self.asked[0] or any(j.when == time for j in self.jumps)

    def _apart(self, points: Tensor) -> Tensor:
        """The points without those next to a jump, where the state is looked at before and after it."""
        jumps = torch.tensor([j.when for j in self.jumps], dtype=torch.float64)
        whole = self.asked[-1] - self.asked[0]
        near = 2 * time_slack(torch.finfo(torch.float64).eps, whole, self.asked[0], whole)
        return points[((points[:, None] - jumps).abs() > near).all(1)]

    def solve(self, points: Tensor, given: Options, spans: Spans) -> tuple[Solved, list[float], list[list[Moment]]]:
        """The solve up to its end, its times, and what happened in each of these cells."""
        end = float(points[-1])
        if self.ends and all(spans):  # the end of the step in which the last of them happens
            last = max(found[0][1] for found in spans)
            end = min(x for x in (*points.tolist(), *(j.when for j in self.jumps)) if x >= last)
        jumps = {j.when: j.at for j in self.jumps}
        inside = {x for found in spans for a, b in found if a < b for x in samples_of(*support(a, b, jumps))}
        times = sorted({*(x for x in self.asked if x < end), *inside, *(b for found in spans for _, b in found), end})
        points = torch.cat([points[points < end], torch.tensor([end], dtype=torch.float64)])
        given = self._jumping(given, end)._replace(grid=points)
        solved = run(self.func, self.z0, torch.tensor(times, dtype=torch.float64), self.order, given)
        place = {x: n for n, x in enumerate(times)}

        def happened(k: int, a: float, b: float) -> Moment:
            if a == b:  # a jump leads across zero
                return Moment(jumps[b], self.sample(pytree.tree_map(lambda x: x[place[b]], solved.ys), k))
            rows = [place[x] for x in samples_of(*support(a, b, jumps))]
            states = self.sample(pytree.tree_map(lambda x: x[rows], solved.ys), k, 1)
            first = a if self._begins(a) else -math.inf
            return root(Cell(*support(a, b, jumps), states, first), partial(self._value_of, k))

        return solved, times, [[happened(k, *span) for span in found] for k, found in enumerate(spans)]

    def _jumping(self, given: Options, end: float) -> Options:
        """The options with the jumps up to a time."""
        known = sorted((j for j in self.jumps if j.when <= end), key=lambda j: j.when)
        if not known:
            return given._replace(jumps=None)
        values = pytree.tree_map(lambda *x: torch.stack(x), *[j.state for j in known])
        return given._replace(jumps=(torch.stack([j.at.cpu() for j in known]), values))

    def reset(self, k: int, event: Moment) -> float:
        """The state of a sample jumps; when."""
        apart, shift = 3 * JUMP_LENGTH * (self.asked[-1] - self.asked[0]), 0.0
        while any(abs(event.when + shift - j.when) < apart for j in self.jumps):
            shift -= apart
        assert self.event.reset is not None
        whole = self.everywhere(event.state)
        after = as_numbers(self.event.reset(whole))
        if not alike(after, whole) or not all_finite(*pytree.tree_leaves(after)):
            raise InputError(
                "reset must return a state of the structure, shapes and dtype that it is given, in finite numbers: "
                "torch.zeros_like(z), for example."
            )
        value = pytree.tree_map(lambda a, b: a - b, self.sample(after, k), event.state)
        if self.own:
            place = torch.tensor([k], device=self.like.device)
            value = pytree.tree_map(lambda z, v: torch.zeros_like(z).index_copy(0, place, v), self.z0, value)
        self.jumps.append(Moment(event.at + shift, value))
        return self.jumps[-1].when


def run_with_event(func: Callable[..., Any], z0: Any, t: Any, order: Any, given: Options) -> Solved:
    """The solve, with the times of the event; what has ended stays where it is."""
    watched = Watched(func, z0, t, order, given)
    happened: list[list[Moment]] = [[] for _ in range(watched.samples)]
    last = [watched.asked[0]] * watched.samples
    for _ in range(EVENT_ROUNDS):
        points, options, march, spans = _located(watched)
        if watched.event.reset is not None:
            spans = [[x for x in found if x[0] >= since][:1] for found, since in zip(spans, last, strict=True)]
        solved, times, new = watched.solve(points, options, spans)
        new = [[x for x in found if x.when <= watched.asked[-1] or watched.ends] for found in new]
        happened = [[*old, *found] for old, found in zip(happened, new, strict=True)]
        if watched.event.reset is None or not any(new):
            break
        last = [watched.reset(k, found[0]) if found else last[k] for k, found in enumerate(new)]
    else:
        raise ConvergenceError(
            f"an event happened {EVENT_ROUNDS} times up to t={min(last):g}: a reset that leaves the state where the "
            "event happens at once again has no end. Reset it further away, or ask for a shorter time."
        )
    return _as_asked(watched, solved, times, happened)._replace(march=march, spent=watched.spent)


def _located(watched: Watched) -> tuple[Tensor, Options, Adapted | None, Spans]:
    """A mesh and where the event happens on it; to a tolerance, as often as its error takes."""
    for _ in range(ADAPTIVE_ATTEMPTS):
        points, options, march = watched.mesh()
        spans = watched.spans(points, options, march)
        reached = -math.inf
        while not all(spans) and reached < float(points[-1]) < watched.asked[-1]:  # later than in the march
            reached, watched.beyond = float(points[-1]), 2 * watched.beyond + 1
            points, options, march = watched.mesh()
            spans = watched.spans(points, options, march)
        if march is None or watched.excess <= 1:
            return points, options, march, spans
        if not math.isfinite(watched.excess):
            break
        watched.share *= ADAPTIVE_AGAIN / watched.excess
    assert march is not None
    raise ConvergenceError(march.told(watched.excess))


def _as_asked(watched: Watched, solved: Solved, times: list[float], happened: list[list[Moment]]) -> Solved:
    """The solution at the times that were asked for."""
    place = {x: n for n, x in enumerate(times)}
    rows = [place[x] for x in watched.asked if x in place]
    ys = pytree.tree_map(lambda x: x[rows], solved.ys)
    ys = _ended(watched, ys, happened) if watched.ends else ys
    grid, wanted = solved.problem.request.grid, watched.asked[-1:] if watched.terminal else watched.asked
    problem = replace(solved.problem, request=Request(grid, grid.positions(wanted), watched.terminal))
    if watched.terminal:
        ys = pytree.tree_map(lambda x: x[-1].clone(), ys)
    return solved._replace(
        ys=ys, problem=problem, event_times=times_of(happened, watched.ends, watched.own, watched.like)
    )


def _ended(watched: Watched, ys: Any, happened: list[list[Moment]]) -> Any:
    """The states at the times asked for, each sample's frozen from its event on."""
    parts = []
    for k, found in enumerate(happened):
        own = watched.sample(ys, k, 1)
        if found:
            before = bisect.bisect_left(watched.asked, found[0].when)
            after = len(watched.asked) - before
            own = pytree.tree_map(
                lambda x, z, n=before, m=after: torch.cat([x[:n], z.expand(m, *z.shape)]), own, found[0].state
            )
        parts.append(own)
    return pytree.tree_map(lambda *x: torch.cat(x, dim=1), *parts) if watched.own else parts[0]


def refuse_event(given: Options, t: Any) -> None:
    """Raise where an event cannot be."""
    if derivatives_are_watched():
        raise UnsupportedError(
            "event= looks at the sign of a value, which transforms and forward mode hide. Use plain autograd there; a "
            "batch axis of z0 needs no vmap."
        )
    if given.horizon is not None or given.before is not None or (isinstance(t, Tensor) and t.ndim == 2):
        raise InputError(
            "event= ends each sample in its own time: leave horizon= and a solve as past= out, and give all times in "
            "one row, t.unique()."
        )
