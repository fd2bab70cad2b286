"""The weights of an equation in the reference, on a flat state: one number for all of it, or one for each number."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests import reference
from tests.reference.weights import Weights

from . import problem_text, problems
from .case import Case

F64 = torch.float64
Names = dict[str, Any]


def spread(case: Case, number: Tensor, other: Tensor | None = None) -> Tensor:
    """A number, or a tensor that broadcasts to the state, as one number or one for each of the row."""
    if number.ndim == 0 and other is None:
        return number.reshape(1)
    wide = number.expand(case["shape"]).reshape(-1)
    return wide if other is None else torch.cat([wide, other.reshape(1).expand(2)])


def elapsed(case: Case) -> Tensor:
    """The time since the start at which each step ends."""
    return torch.tensor(problem_text.points(case), dtype=F64)


def times_of(case: Case, names: Names) -> tuple[Tensor, Tensor]:
    """The time since the start (steps + 1, groups) and the step (groups,), both in the time of each group."""
    scale = spread(case, names["horizon"]) if case["horizon"] else torch.ones(1, dtype=F64)
    return elapsed(case)[:, None] * scale, case["span"] / case["steps"] * scale


def weights_of(case: Case, names: Names, times: Tensor, step: Tensor) -> Weights:
    """The matrices of the equation on times (steps + 1, groups)."""
    kind, method, n = case["kind"], case["method"], case["steps"]
    if kind == "custom":
        w = names["weights"](names["beta"].reshape(1), step, n)
        return reference.custom(method, w)
    if kind in problems.SERIES:
        orders, factors = _terms(case, names)
        return reference.several(method, orders, factors, step, n, kind in problems.ABOVE)
    order = order_of(case, names)
    if case["grading"] != 1:
        found = reference.graded(method, order, times)
    else:
        found = reference.uniform(method, order, step, n)
    if kind.startswith("tempered"):
        rate = spread(case, names["rate"])
        return reference.tempered(found, rate, times.expand(-1, max(len(rate), times.shape[1])), kind in problems.ABOVE)
    if kind in problems.ABOVE:
        return _with_velocity(found, times, order[0])
    return found


def _with_velocity(w: Weights, times: Tensor, order: Tensor) -> Weights:
    """An order up to 1 has one initial value."""
    line = times * (order > 1)
    return Weights(w.lagged, w.extra, w.first, w.stage, torch.stack([torch.ones_like(line), line]))


def order_of(case: Case, names: Names) -> Tensor:
    """One order for all rows, or one for each: (1 or steps + 1, groups)."""
    if case["kind"] == "number":
        return torch.full((1, 1), case["beta"], dtype=F64)
    if case["kind"] == "variable":
        b = names["b"]
        return (b[0] + b[1] * torch.sin(problem_text.start(case) + elapsed(case)))[:, None]
    return spread(case, names["beta"], names.get("other"))[None]


def _terms(case: Case, names: Names) -> tuple[list[Tensor], list[Tensor]]:
    c, zero = names["c"], torch.zeros(1, dtype=F64)
    if case["kind"] == "distributed":
        nodes = torch.tensor([0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15)], dtype=F64)
        weights = torch.tensor([5 / 18, 8 / 18, 5 / 18], dtype=F64) * (c[0] + c[1] * nodes)
        return [x.reshape(1) for x in nodes], [x.reshape(1) for x in weights]
    second = {"multi": case["beta"] / 2, "multi-zero": 0.0, "multi-above": case["beta"]}[case["kind"]]
    second = float(f"{second:.6g}")
    return [names["beta"].reshape(1), zero + second], [c[0].reshape(1), c[1].reshape(1)]
