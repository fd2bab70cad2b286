"""What a problem should give: the independent reference on a flat state, differentiated by autograd in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import neuralfde
from neuralfde.door.names import METHODS
from tests import reference
from tests.matrix.histories import remembered
from tests.reference import cells, formulas
from tests.reference.limit import limited

from . import problem_text, problems
from .case import Case
from .compare import Result, distances
from .equations import F64, Names, elapsed, order_of, spread, times_of, weights_of


def by_package(case: Case) -> Result:
    """States and gradients as the library has them."""
    names = problem_text.namespace(case)
    exec(problem_text.call(case), names)
    ys = names["ys"]
    if case["output"] == "end" and case["call"] != "solve":
        ys = torch.utils._pytree.tree_map(lambda x: x[None], ys)
    return finished(case, flat(case, ys, 1), names)


def by_reference(case: Case, nudge: float = 0.0) -> Result:
    """The same by the textbook; with ``nudge`` all numbers are off by about so much, relatively."""
    names = problem_text.namespace(case, wide=True)
    if nudge:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for x in names["leaves"].values():
                x.mul_(1 + nudge * (2 * torch.rand(x.shape, dtype=F64, generator=generator) - 1))
    return finished(case, _states(case, names), names)


def conditioning(case: Case, right: Result) -> float:
    """By how much the problem magnifies an error in its numbers, and its history one in its sums; at least 1 each."""
    nudge, moved = 1e-7, math.inf
    while moved > 1e-2 and nudge > 1e-14:  # in a chaotic problem, errors of 1e-7 have grown to the size of the states
        moved = max(distances(by_reference(case, nudge), right).values())
        problem, nudge = moved / nudge, 1e-3 * nudge
    return max(1.0, problem) * _cancellation(case)


def _cancellation(case: Case) -> float:
    """How much larger terms are than the weight that they add up to: of exponentials, of starting weights."""
    names = problem_text.namespace(case, wide=True)
    weights, history = weights_of(case, names, *times_of(case, names)), _history(case, names)
    lags, sizes = weights.lags.detach().flatten(2), [1.0]
    if isinstance(history, neuralfde.Exponentials):
        sizes.append(float(history.tabulate(lags).abs().max() / lags.abs().max()))
    if isinstance(METHODS[case["method"]], neuralfde.Multistep):  # the integral of s by both
        lagged = weights.lagged.detach()
        terms = torch.einsum("snj...,j->sn...", lagged.abs(), torch.arange(lagged.shape[2], dtype=F64))
        sizes.append(float(terms.max() / lagged.abs().max()))
    return max(sizes)


def finished(case: Case, ys: Tensor, names: Names) -> Result:
    """Gradients of a loss that weighs all its numbers differently."""
    if case["mode"] != "grad":
        return Result(ys.detach(), {})
    weigh = torch.cos(torch.arange(1, ys.numel() + 1, dtype=F64)).reshape(ys.shape).to(ys)
    parts = {"all": slice(None), "last": slice(-1, None), "first": slice(1), "one": (..., slice(1))}
    loss = (weigh * ys + 0.5 * ys.square())[parts[case["loss"]]].sum()
    wanted = {k: x for k, x in names["leaves"].items() if x.requires_grad}
    if not loss.requires_grad or not wanted:
        return Result(ys.detach(), dict.fromkeys(wanted))
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return Result(ys.detach(), dict(zip(wanted, grads, strict=True)))


def flat(case: Case, state: Any, lead: int = 0) -> Tensor:
    """All numbers of a state in one row."""
    parts = {"tensor": lambda z: [z], "tuple": list, "dict": lambda z: [z["x"], z["rest"][0]]}[case["nesting"]](state)
    return torch.cat([x.reshape(*x.shape[:lead], -1) for x in parts], lead)


def shaped(case: Case, row: Tensor) -> Any:
    """The state of a row."""
    size = math.prod(case["shape"])
    x, y = row[:size].reshape(case["shape"]), row[size:]
    return {"tensor": lambda: x, "tuple": lambda: (x, y), "dict": lambda: {"x": x, "rest": (y,)}}[case["nesting"]]()


def _states(case: Case, names: Names) -> Tensor:
    """The states at the output times, (times, numbers)."""
    own, step = times_of(case, names)
    weights = weights_of(case, names, own, step)
    times = [x * names.get("horizon", 1.0) for x in problem_text.start(case) + elapsed(case)]
    args = names["options"].get("args", ())

    def slope(k: int, row: Tensor) -> Tensor:
        return flat(case, names["func"](times[k], shaped(case, row), *args))

    initial = [flat(case, names["z0"])]
    if case["kind"] in problems.ABOVE:
        initial.append(flat(case, names["options"]["velocity"]))
    matrix = remembered(weights, _history(case, names))
    states = reference.solve(slope, initial, matrix, weights.stage, weights.base)
    found = []
    between = Between(case, names, own, states, slope, initial)
    for p in problem_text.positions(case):
        found.append(states[round(p)] if p == round(p) else between(p))
    return torch.stack(found)


def _history(case: Case, names: Names) -> Any:
    given = {k: v for k, v in names["options"].items() if k in ("method", "history", "storage", "steps", "step")}
    if not case["history"].startswith(("'auto", "'exp", "Exp", "Window")):
        return neuralfde.Full()
    if case["kind"] == "variable" or case["grading"] != 1:
        return neuralfde.Full()
    like = torch.utils._pytree.tree_map(lambda x: x.detach().to(getattr(torch, case["dtype"])), names["z0"])
    given["adjoint"] = case["adjoint"]
    train = torch.zeros(1, requires_grad=case["learned"] != "none")
    return neuralfde.plan(lambda t, z: z, like, names["t"], 0.5, **given, params=[train]).history


#: Schemes whose slope is defined between nodes: as at the left end of a cell, as at the right end, or on a line.
RULES = {"predictor": "left", "predictor-implicit": "right", "trapezoid": "hats", "abm": "hats"}


class Between:
    """States between nodes: the integral of the slope as the scheme has it, up to that time; else on a line.

    A slope that is constant on each cell, or linear, is defined between nodes too. Where the states at the nodes were
    made with another slope than the one at hand, the distance from them is taken away, on a line.
    """

    def __init__(
        self, case: Case, names: Names, times: Tensor, states: Sequence[Tensor], slope: Any, initial: Sequence[Tensor]
    ) -> None:
        self.case, self.names, self.times, self.states, self.initial = case, names, times, states, initial
        self.rule = RULES.get(case["method"])
        if (case["grading"] != 1 and not problems.ANY_GRID) or case["kind"] in ("variable", "custom", *problems.SERIES):
            self.rule = None
        self.slope = slope

    def __call__(self, p: float) -> Tensor:
        """The state at position ``p``."""
        low, part = int(p), p - int(p)
        left, right = self.states[low], self.states[low + 1]
        if self.rule is None:
            return torch.lerp(left, right, part)
        if self.case["method"] == "abm":
            return self.at(low, part) + torch.lerp(left - self.at(low, 0.0), right - self.at(low + 1, 0.0), part)
        found = self.at(low, part)
        return limited(found, self.states, list(self.times), low, part) if self.rule == "hats" else found

    def at(self, low: int, part: float) -> Tensor:
        """The integral up to ``part`` of the cell after node ``low``."""
        times = self.times[: low + 1]
        now = times[low] + part * (self.times[min(low + 1, len(self.times) - 1)] - times[low])
        if part:
            times = torch.cat([times, now[None]])
        order = order_of(self.case, self.names)
        if len(times) == 1:
            row = torch.zeros(1, 1, dtype=F64)
        elif self.rule == "hats":
            row = cells.trapezoid_on(order, times)[-1]
        else:
            row = cells.rectangle_on(order, times, self.rule == "right")[-1]
        vs = [self.slope(k, self.states[k]) for k in range(low + 1)]
        at = [self.times[k] for k in range(low + 1)]
        if part:
            # the last entry belongs to the slope at this very time, which the rule takes from the two nodes around
            own, next_slope = row[-1], self.slope(low + 1, self.states[low + 1])
            share = 1.0 if self.rule == "right" else part
            row = torch.cat([row[:low], (row[low] + (1 - share) * own)[None], (share * own)[None]])
            vs, at = [*vs, next_slope], [*at, self.times[low + 1]]
        if self.case["history"].startswith("Window"):
            length = self.names["options"]["history"].length
            row = torch.stack([x * (low + part - j <= length) for j, x in enumerate(row)])
        base = [torch.ones_like(now), now * (order[0] > 1)]
        if self.case["kind"].startswith("tempered"):
            rate = spread(self.case, self.names["rate"])
            row = torch.stack([x * torch.exp(-rate * (now - s)) for x, s in zip(row, at, strict=True)])
            fade = torch.exp(-rate * now)
            base = [fade * (1 + rate * base[1]), fade * base[1]] if len(self.initial) > 1 else [fade]
        known = sum(b * z for b, z in zip(base, self.initial, strict=False))
        return known + sum(x * v for x, v in zip(row, vs, strict=True))  # type: ignore[no-any-return]


def stage_of(case: Case) -> str:
    """Explicit, implicit or corrected."""
    return formulas.formula(case["method"]).stage
