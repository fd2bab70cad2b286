"""What a problem should give: the independent reference on a flat state, differentiated by autograd in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import neuralfde
from tests import reference
from tests.matrix.histories import remembered
from tests.reference import cells, formulas
from tests.reference.weights import Weights

from . import problem_text, problems
from .case import Case
from .compare import Result, distances

F64 = torch.float64
Names = dict[str, Any]


def by_package(case: Case) -> Result:
    """States and gradients as the library has them."""
    names = problem_text.namespace(case)
    exec(problem_text.CALLS[case["call"]], names)
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
    nudge = 1e-7
    problem = max(x / nudge for x in distances(by_reference(case, nudge), right).values())
    return max(1.0, problem) * _cancellation(case)


def _cancellation(case: Case) -> float:
    """How much larger the terms of a sum of exponentials are than the weight that they add up to."""
    names = problem_text.namespace(case, wide=True)
    history, lags = _history(case, names), _weights(case, names, *_times(case, names)).lags.detach().flatten(2)
    if not isinstance(history, neuralfde.Exponentials):
        return 1.0
    return max(1.0, float(history.tabulate(lags).abs().max() / lags.abs().max()))


def finished(case: Case, ys: Tensor, names: Names) -> Result:
    """Gradients of a loss that weighs all numbers differently."""
    weigh = torch.cos(torch.arange(1, ys.numel() + 1, dtype=F64)).reshape(ys.shape).to(ys)
    loss = (weigh * ys + 0.5 * ys.square()).sum()
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


def _spread(case: Case, number: Tensor, other: Tensor | None = None) -> Tensor:
    """A number, or a tensor that broadcasts to the state, as one number or one for each of the row."""
    if number.ndim == 0 and other is None:
        return number.reshape(1)
    wide = number.expand(case["shape"]).reshape(-1)
    return wide if other is None else torch.cat([wide, other.reshape(1).expand(2)])


def _states(case: Case, names: Names) -> Tensor:
    """The states at the output times, (times, numbers)."""
    own, step = _times(case, names)
    weights = _weights(case, names, own, step)
    times = [x * names.get("horizon", 1.0) for x in problem_text.start(case) + _elapsed(case)]
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


def _elapsed(case: Case) -> Tensor:
    n = case["steps"]
    return case["span"] * (torch.arange(n + 1, dtype=F64) / n) ** case["grading"]


def _times(case: Case, names: Names) -> tuple[Tensor, Tensor]:
    """The time since the start (steps + 1, groups) and the step (groups,), both in the time of each group."""
    scale = _spread(case, names["horizon"]) if case["horizon"] else torch.ones(1, dtype=F64)
    return _elapsed(case)[:, None] * scale, case["span"] / case["steps"] * scale


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


def _weights(case: Case, names: Names, times: Tensor, step: Tensor) -> Weights:
    """The matrices of the equation on times (steps + 1, groups)."""
    kind, method, n = case["kind"], case["method"], case["steps"]
    if kind == "custom":
        w = names["weights"](names["beta"].reshape(1), step, n)
        return reference.custom(method, w)
    if kind in problems.SERIES:
        orders, factors = _terms(case, names)
        return reference.several(method, orders, factors, step, n, kind in problems.ABOVE)
    order = _order(case, names)
    if case["grading"] != 1:
        found = reference.graded(method, order, times)
    else:
        found = reference.uniform(method, order, step, n)
    if kind.startswith("tempered"):
        rate = _spread(case, names["rate"])
        return reference.tempered(found, rate, times.expand(-1, max(len(rate), times.shape[1])), kind in problems.ABOVE)
    if kind in problems.ABOVE:
        return _with_velocity(found, times, order[0])
    return found


def _with_velocity(w: Weights, times: Tensor, order: Tensor) -> Weights:
    """An order up to 1 has one initial value."""
    line = times * (order > 1)
    return Weights(w.lagged, w.extra, w.first, w.stage, torch.stack([torch.ones_like(line), line]))


def _order(case: Case, names: Names) -> Tensor:
    """One order for all rows, or one for each: (1 or steps + 1, groups)."""
    if case["kind"] == "number":
        return torch.full((1, 1), case["beta"], dtype=F64)
    if case["kind"] == "variable":
        b = names["b"]
        return (b[0] + b[1] * torch.sin(problem_text.start(case) + _elapsed(case)))[:, None]
    return _spread(case, names["beta"], names.get("other"))[None]


def _terms(case: Case, names: Names) -> tuple[list[Tensor], list[Tensor]]:
    c, zero = names["c"], torch.zeros(1, dtype=F64)
    if case["kind"] == "distributed":
        nodes = torch.tensor([0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15)], dtype=F64)
        weights = torch.tensor([5 / 18, 8 / 18, 5 / 18], dtype=F64) * (c[0] + c[1] * nodes)
        return [x.reshape(1) for x in nodes], [x.reshape(1) for x in weights]
    second = {"multi": case["beta"] / 2, "multi-zero": 0.0, "multi-above": case["beta"]}[case["kind"]]
    second = float(f"{second:.6g}")
    return [names["beta"].reshape(1), zero + second], [c[0].reshape(1), c[1].reshape(1)]


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
        self.rule = {"predictor": "left", "predictor-implicit": "right", "trapezoid": "hats", "abm": "hats"}.get(
            case["method"]
        )
        if case["grading"] != 1 or case["kind"] in ("variable", "custom", *problems.SERIES):
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
        return self.at(low, part)

    def at(self, low: int, part: float) -> Tensor:
        """The integral up to ``part`` of the cell after node ``low``."""
        times = self.times[: low + 1]
        now = times[low] + part * (self.times[min(low + 1, len(self.times) - 1)] - times[low])
        if part:
            times = torch.cat([times, now[None]])
        order = _order(self.case, self.names)
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
        base = [torch.ones_like(now), now * (order[0] > 1)]
        if self.case["kind"].startswith("tempered"):
            rate = _spread(self.case, self.names["rate"])
            row = torch.stack([x * torch.exp(-rate * (now - s)) for x, s in zip(row, at, strict=True)])
            fade = torch.exp(-rate * now)
            base = [fade * (1 + rate * base[1]), fade * base[1]] if len(self.initial) > 1 else [fade]
        known = sum(b * z for b, z in zip(base, self.initial, strict=False))
        return known + sum(x * v for x, v in zip(row, vs, strict=True))  # type: ignore[no-any-return]


def stage_of(case: Case) -> str:
    """Explicit, implicit or corrected."""
    return formulas.formula(case["method"]).stage
