"""Small states on the CPU, where a step costs as much as its calls: many steps at once.

The slopes of a block obey ``v = f(t, c + W v)``: W holds the weights inside the block and is strictly lower triangular,
``c`` is all that was known before. A *sweep* puts a guess of all slopes into the right-hand side, with ``func``
vectorised over time. It makes at least one more step exact; on a short interval, as Picard's iteration does, about a
digit in all of them, so that some twenty sweeps give a hundred steps as the scheme defines them, to rounding. Stages
inside a step are swept along with the rest: see :meth:`Scheme.relax`.

Few implicit steps of a tiny state are found by Newton's method for the same equation, if their stages are: it needs a
few calls, and does not mind stiffness.

Where sweeps do not settle soon, or ``func`` cannot be vectorised, steps are taken one by one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..history import Blocked, Engine, Full, History
from ..schemes import NewtonKrylov, OneStage, Scheme
from ..storage import Tape
from .again import Segments
from .gathered import largest, same
from .plain import is_plain
from .plan import Coefficients, Plan
from .step import plain_step

log = logging.getLogger("neuralfde")

_T = TypeVar("_T")

#: Functions that gave the same values when they were vectorised.
_KNOWN: weakref.WeakSet[Any] = weakref.WeakSet()

#: Numbers in a state up to which a step is mostly calls; in all parameters of func up to which func is.
WIDE, MOST_PARAMETERS = 1 << 14, 1 << 15
#: Numbers in a state up to which steps are swept; sweeps compute each of them many times, implicit steps do so anyway.
MOST_NUMBERS, MOST_NUMBERS_IMPLICIT = 64, 2048
# Calls of func in an implicit step, about; and in all steps of a sweep, from which on sweeps have fewer.
_CALLS_IMPLICIT, _FEWEST = 8, 40
# Numbers in all steps of a sweep: more of them take longer than the calls.
_TOGETHER = 1 << 14
#: Sweeps before one looks whether they have settled, which costs as much as a small func.
BLIND = 4
# Numbers in all steps up to which Newton's method finds them; its iterations; how exact its differences are.
_DENSE, _MOST_NEWTON, _ROUGH = 64, 8, 1e-6
# Sweeps that may be made beside half of the calls they replace.
_EXTRA = 16


def suits(plan: Plan, c: Coefficients, engine: Engine, z0: Tensor) -> bool:
    """Whether the steps of this solve can be taken here."""
    small = z0.device.type == "cpu" and z0.numel() <= WIDE and plan.scheme.stages > 0
    alone = c.base is None and plan.known is None
    if not (small and alone and isinstance(engine, Blocked) and engine.toeplitz.groups == 1):
        return False
    return may_sweep(plan, z0) or not is_plain(engine, plan, c)


def history_for(plan: Plan, z0: Tensor) -> History:
    """The history, with longer blocks where these will be swept."""
    short = isinstance(plan.history, Full) and plan.graphs is False and z0.numel() <= MOST_NUMBERS
    return replace(plan.history, block=2 * plan.history.block) if short else plan.history  # type: ignore[type-var]


def advance(
    plan: Plan,
    c: Coefficients,
    engine: Blocked,
    z0: Tensor,
    tape: Tape | Segments | None,
    out: Tensor,
    heads: list[Tensor],
) -> None:
    """A forward sweep over all steps; states at nodes go to ``out``, the first slopes to ``heads``."""
    block = Block(plan, c, engine, z0, out, keep=tape is not None)
    for first in range(0, plan.steps + 1, engine.block):
        block.open(first, engine.recall_block(first), heads)
        block.fill()
        if first == 0 and c.start is not None and (plan.train or plan.steps >= engine.block):
            heads.extend(block.slopes[: c.start.shape[0]].clone().unsqueeze(1).unbind())
        if plan.slopes is not None:
            plan.slopes.extend(block.slopes[: plan.steps - first].clone().split(1))
        if plan.callback is not None:
            for n in range(first, first + block.count):
                plan.callback(n, plan.steps)
        if tape is not None:
            tape.write_rows(first, block.rows.unsqueeze(2))
        engine.filled(block.count)
    if block.settled and not block.unproven:
        plan.tally["swept"] = 1  # so will be the backward pass


class Block:
    """The block being filled: its slopes (steps, width), and the ``rows`` (steps, sums, width) to store."""

    def __init__(self, plan: Plan, c: Coefficients, engine: Blocked, z0: Tensor, out: Tensor, keep: bool) -> None:
        self.plan, self.scheme, self.c, self.engine, self.z0, self.keep = plan, plan.scheme, c, engine, z0, keep
        self.nodes = dict(zip(plan.nodes, out.unbind(0), strict=True))
        self.latest = z0  # the last slope
        self.tol, self.calls, self.by_newton = 4 * torch.finfo(z0.dtype).eps, plan.scheme.stages, False
        if isinstance(plan.scheme, OneStage) and plan.scheme.implicit:
            self.tol, self.calls = max(self.tol, plan.scheme.solver.tol or 0.0), _CALLS_IMPLICIT
            self.by_newton = isinstance(plan.scheme.solver, NewtonKrylov)
        self.unproven, self.settled = not _is_known(plan.field.func), True
        self.most = min(engine.block, _TOGETHER // z0.numel()) if may_sweep(plan, z0) else 0  # steps in a sweep

    def open(self, first: int, far: Tensor | None, heads: list[Tensor]) -> None:
        """Begin the block at step ``first``, to which older rows contribute ``far``."""
        self.first, self.count = first, min(self.engine.block, self.plan.steps + 1 - first)
        sums, count, width, start = self.scheme.sums, self.count, self.z0.shape[1], self.c.start
        base = self.z0 if far is None else far.view(sums, count, width).add_(self.z0)
        self.sums = base.expand(sums, count, width)
        self.weights = self.once((count,), lambda: self.inner_weights(first, count))
        if start is not None and first > 0:
            self.sums[0].addmm_(start[:, first : first + count, 0].t(), torch.cat(heads))
        self.slopes = self.engine.room(first)
        self.rows = self.z0.new_empty(count if self.keep else 0, sums, width)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """A table of the first block is kept for later solves."""
        return self.plan.once(key, make) if self.first == 0 else make()

    def inner_weights(self, first: int, count: int) -> Tensor:
        """What the slopes of a block weigh in its rows, (sums, steps, steps)."""
        weights = self.engine.toeplitz.block(first, count, first, first + count, latest_first=False)[:, 0]
        if self.c.start is not None and first == 0:
            early = self.c.start[:count, :count, 0].t().tril(-1)
            weights = weights.contiguous()
            weights[0, :, : early.shape[1]] += early
        return weights

    def fill(self) -> None:
        """All steps of the block."""
        k = 0
        while k < self.count:
            size = min(self.most, self.count - k)
            if size * self.calls < _FEWEST or self.first + k == 0:
                self.step(k)
                k += 1
            else:
                done = self.sweep(k, k + size)
                if done < size:
                    self.most, self.settled = min(self.most, size // 2), False
                k += done

    def step(self, k: int) -> None:
        """One step."""
        n = self.first + k
        sums = torch.addmm(self.sums[:, k], self.weights[:, k, :k], self.slopes[:k]) if k else self.sums[:, 0]
        x, local = sums.unsqueeze(1), self.c.local_at(n)
        if n > 0:
            x = self.scheme.locate(self.plan.field, n, x, local)
        slope = self.plan.needs_slope(n, self.c.dense is not None)
        _, z, v = plain_step(self.plan, n, x, local, slope)
        self.latest = torch.zeros_like(z) if v is None else v
        self.slopes[k] = self.latest[0]
        if n in self.nodes:
            self.nodes[n].copy_(z)
        if self.keep:
            self.rows[k] = x[:, 0]

    def sweep(self, a: int, b: int) -> int:
        """Steps a … b-1 together; returns how many of them have settled: all, the first half, or none."""
        scheme, field, count, width = self.scheme, self.plan.field, b - a, self.z0.shape[1]
        if self.by_newton and count * width <= _DENSE:
            return self.newton(a, count)
        past = self.slopes[:a].expand(scheme.sums, a, width)
        base = torch.baddbmm(self.sums[:, a:b], self.weights[:, a:b, :a], past).view(-1, width)
        weights = self.weights[:, a:b, a:b].reshape(-1, count)
        local = self.c.local if self.c.local.ndim == 1 else self.c.local[self.first + a : self.first + b]
        times = field.times[self.first + a : self.first + b].repeat(scheme.stages)
        slopes = self.latest.expand(scheme.stages, count, width)
        states = before = slopes[-1]
        for k in range(most_sweeps(scheme, count)):
            sums = torch.addmm(base, weights, slopes[-1]).view(scheme.sums, count, width)
            stages = scheme.relax(sums, slopes, local)
            try:
                slopes = field.batch(times, stages)
            except Exception as error:
                return self.give_up(f"{type(error).__name__}: {error}")
            before, states = states, stages[-1]
            if k > BLIND and k % 2 and (more := excess(before, states, self.tol)) <= 0:
                return self.take(a, count, sums, states, slopes[-1], states, slopes[-1])
            if k > BLIND and k % 2 and not math.isfinite(more):
                return 0
        half = count // 2
        settled = excess(before[:half], states[:half], self.tol) <= 0
        return self.take(a, half, sums, states, slopes[-1], states, slopes[-1]) if settled else 0

    def newton(self, a: int, count: int) -> int:
        """Steps from ``a`` on by Newton's method for ``v = f(t, base + W v)``, all at once; returns how many settled.

        The call of ``func`` that gives their slopes gives the differences, too, from which the Jacobians are made.
        """
        width, batch = self.z0.shape[1], self.plan.field.batch
        tables = self.once((a, count), lambda: self.newton_tables(a, count, width))
        weights, outer, past, one, unit, times = tables
        base = torch.addmm(self.sums[0, a : a + count], past, self.slopes[:a])
        slopes = self.latest.expand(count, width)
        try:
            slopes = batch(times[:count], torch.addmm(base, weights, slopes))
        except Exception as error:
            return self.give_up(f"{type(error).__name__}: {error}")
        states = torch.addmm(base, weights, slopes)
        top, size = 1 + largest(states), 0.0
        reach = top * math.sqrt(torch.finfo(base.dtype).eps)
        probes = unit * reach
        for k in range(_MOST_NEWTON):
            found = batch(times, states + probes)
            here = found[0]
            jacobians = (found[1:] - here).permute(1, 2, 0).unsqueeze(2)
            matrix = torch.addcmul(one, jacobians, outer, value=-1 / reach).view(count * width, -1)
            update, _ = torch.linalg.solve_ex(matrix, (here - slopes).view(-1, 1))
            slopes = slopes + update.view(count, width)
            before, states = states, torch.addmm(base, weights, slopes)
            last, size = size, largest(states - before) / top
            if not math.isfinite(size):
                break
            # the change that would follow is the smaller the more this one is smaller than the last
            if size == 0 or (k > 0 and size * max((size / last) ** 1.5, _ROUGH) <= self.tol):
                return self.take(a, count, base.unsqueeze(0), states, slopes, before, here)
        return 0

    def newton_tables(self, a: int, count: int, width: int) -> tuple[Tensor, ...]:
        """W with the weights of the steps' own slopes, its place in the matrix, what weighs the slopes before, …"""
        first, dtype = self.first + a, self.weights.dtype
        own = self.c.local.expand(self.plan.steps + 1, 1)[first : first + count, 0]
        inner, past = self.weights[0, a : a + count, : a + count].split((a, count), dim=1)[::-1]
        weights = inner + torch.diag(own)
        one = torch.eye(count * width, dtype=dtype).view(count, width, count, width)
        directions = torch.eye(width + 1, dtype=dtype)[:, 1:].unsqueeze(1)
        times = self.plan.field.times[first : first + count].repeat(width + 1)
        return weights, weights[:, None, :, None], past, one, directions, times

    def take(self, a: int, count: int, sums: Tensor, states: Tensor, slopes: Tensor, put: Tensor, got: Tensor) -> int:
        """Keep the first ``count`` steps of a sweep from ``a`` on.

        The first time for this ``func`` only if it, which was ``put`` states and gave the slopes ``got`` when it was
        vectorised, says the same when it is not.
        """
        first, last, plan = self.first + a, self.first + a + count - 1, self.plan
        unproven, self.unproven, self.latest = self.unproven, False, slopes[count - 1 : count]
        if unproven and not same(got[count - 1 : count], plan.field(last, put[count - 1 : count])):
            return self.give_up("it gives other values")
        if unproven:
            with contextlib.suppress(TypeError):  # a func that cannot be referred to weakly
                _KNOWN.add(plan.field.func)
        self.slopes[a : a + count] = slopes[:count]
        if self.keep:
            rows = states.unsqueeze(1) if self.scheme.sums == 1 else sums.transpose(0, 1)
            self.rows[a : a + count] = rows[:count]
        for n in range(first, last + 1):
            if n in self.nodes:
                self.nodes[n].copy_(states[n - first])
        if last == plan.steps and not plan.needs_slope(last, self.c.dense is not None):
            self.slopes[a + count - 1] = 0.0
        return count

    def give_up(self, reason: str) -> int:
        """Take all further steps one by one."""
        log.debug("steps one by one, since func cannot be vectorised over time: %s", reason)
        self.most = 0
        return 0


def most_sweeps(scheme: Scheme, count: int) -> int:
    """Sweeps that so many steps may take."""
    return _EXTRA + count * (_CALLS_IMPLICIT if scheme.implicit else scheme.stages) // 2


def excess(before: Tensor, now: Tensor, tol: float) -> float:
    """By how much a change is larger than what counts as none, relative to the largest value of each column."""
    change = (now - before).abs_().amax(0)
    return float(change.sub_(now.abs().amax(0), alpha=tol).max())


def _is_known(func: Any) -> bool:
    try:
        return func in _KNOWN
    except TypeError:
        return False


def may_sweep(plan: Plan, z0: Tensor) -> bool:
    """Whether the state is small, and func seems cheap and does nothing but return a value."""
    func, most = plan.field.func, MOST_NUMBERS_IMPLICIT if plan.scheme.implicit else MOST_NUMBERS
    if z0.numel() > most or plan.field.noise.active:
        return False
    if not isinstance(func, nn.Module):
        return True
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in func.modules())
    return not hooked and sum(p.numel() for p in func.parameters()) <= MOST_PARAMETERS
