"""Solves whose course is not plain against the textbook on the mesh that they took: values and all gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import neuralfde
from tests.reference.course import Course, crossing

from .. import courses
from ..case import Case, Failed, Part
from ..compare import Result, allowed, demand_equal, distances

WIDE = {"float32": "float64", "float64": "float64", "complex128": "complex128"}
Names = dict[str, Any]


def namespace(case: Case, wide: bool, nudge: float = 0.0) -> Names:
    """The names of the problem; ``wide``: in double precision, with the numbers of the narrow one."""
    names: Names = {}
    exec(courses.HEAD.format(**case), names)
    if wide:
        made = names["make"]
        narrow = {names["DTYPE"], names["REAL"]}
        names["DTYPE"], names["REAL"] = getattr(torch, WIDE[case["dtype"]]), torch.float64

        def make(*shape: int, dtype: torch.dtype | None = None, **bounds: float) -> Tensor:
            dtype = names["DTYPE"] if dtype is None else dtype
            first = torch.float32 if torch.float32 in narrow else dtype
            x = made(*shape, dtype=first, **bounds).to(dtype)
            return x * (1 + nudge * torch.cos(1e3 * x.abs()))

        names["make"] = make
    exec(courses.text(case), names)
    return names


def by_package(case: Case, names: Names) -> neuralfde.Solution:
    exec(courses.call(case), names)
    return names["found"]  # type: ignore[no-any-return]


def course_of(case: Case, names: Names, grid: Tensor, times: Tensor | None) -> Course:
    """The textbook on this mesh."""
    options, z0 = names["options"], names["window"][-1] if case["past"] else names["z0"]
    lags = options.get("lags", ())
    jumps = options.get("jumps")
    if case["event"] == "reset" and times is not None:
        known = [float(grid[grid <= t + 1e-6][-1]) for t in times]  # as exact as the mesh has them
        jumps = _with_resets(known, z0, jumps)
    return Course(
        lambda t, z, *ago: names["func"](t, z, *ago, names["w"]),
        z0,
        grid,
        torch.as_tensor(names["order"], dtype=torch.float64),
        case["method"],
        courses.even(case),
        jumps,
        options.get("past"),
        lags if isinstance(lags, list) else [lags] if case["lags"] != "none" else [],
        matrix_of(case, names),
    )


def _with_resets(known: list[float], z0: Tensor, jumps: Any) -> Any:
    """Jumps of a case and resets, which take 1 off, in the order of their times."""
    off = -torch.ones_like(z0)
    if jumps is None:
        return known, [off] * len(known)
    given = zip(jumps[0], [jumps[1]] * len(jumps[0]) if callable(jumps[1]) else jumps[1], strict=True)
    reset = (lambda z: off) if callable(jumps[1]) else off
    every = [*[(t, reset) for t in known], *[(float(t), v) for t, v in given]]
    every.sort(key=lambda pair: pair[0])
    return [t for t, _ in every], [v for _, v in every]


def matrix_of(case: Case, names: Names) -> Tensor | None:
    if case["linear"] == "none":
        return None
    a = names["a"]
    if case["linear"] == "bands":
        return torch.diag(a[0][1:], -1) + torch.diag(a[1]) + torch.diag(a[2][:-1], 1)
    return torch.stack([a, 0.7 * a]) if case["linear"] == "batch" else 0.5 * a if case["linear"] == "function" else a


def expected(case: Case, names: Names, course: Course) -> list[Tensor]:
    """States at the times asked for, and the times of the event."""
    asked = names["t"] if isinstance(names["t"], Tensor) else torch.tensor([names["t"]], dtype=torch.float64)
    if case["times"] == "own":
        ends = [row[~row.isnan()][-1] for row in asked]
        rows = [[course.at(ends[b] if x.isnan() else x)[b] for b, x in enumerate(col)] for col in asked.mT]
        return [torch.stack([torch.stack(row) for row in rows])]
    if case["event"] in ("none", "reset"):
        return [torch.stack([course.at(x) for x in asked])]
    return _with_event(case, course, asked, lambda t, z: names["event"].fn(t, z))


def _with_event(case: Case, course: Course, asked: Tensor, value: Any) -> list[Tensor]:
    each = case["event"] == "each ends"
    rows, noted = [], []
    for b in range(2 if each else 1):
        g = torch.stack([value(t, z).reshape(-1)[b] for t, z in zip(course.mesh, course.states, strict=True)]).detach()
        cells = [n for n in range(len(g) - 1) if (g[n] < 0) != (g[n + 1] < 0) and g[n] != 0]
        found = [crossing(course, lambda t, z, b=b: value(t, z).reshape(-1)[b], n) for n in cells]
        own = slice(b, b + 1) if each else slice(None)
        if case["event"] == "noted" or not found:
            rows.append(torch.stack([course.at(x)[own] for x in asked]))
            noted += [t for t, _ in found]
            continue
        at, state = found[0]
        rows.append(torch.stack([(state if x >= at else course.at(x))[own] for x in asked]))
        noted.append(at)
    return [torch.cat(rows, 1), torch.stack(noted) if noted else torch.zeros(0, dtype=torch.float64)]


def result(case: Case, parts: list[Tensor], names: Names) -> Result:
    """All numbers in one row, and the gradients of their loss."""
    ys = in_one_row(parts)
    leaves = {k: x for k, x in names["leaves"].items() if x.requires_grad}
    if not leaves or case["event"] == "reset":
        return Result(ys.detach()[None], {})
    grads = torch.autograd.grad(loss(ys), list(leaves.values()), allow_unused=True)
    real = [None if g is None else torch.view_as_real(g) if g.is_complex() else g for g in grads]
    return Result(ys.detach()[None], dict(zip(leaves, real, strict=True)))


def in_one_row(parts: list[Tensor]) -> Tensor:
    wide = torch.float64 if parts[0].real.dtype == torch.float64 else torch.float32
    flat = [torch.view_as_real(x).reshape(-1) if x.is_complex() else x.reshape(-1).to(wide) for x in parts]
    return torch.cat(flat)


def loss(ys: Tensor) -> Tensor:
    """One that weighs all numbers differently."""
    weigh = torch.cos(torch.arange(1, ys.numel() + 1, dtype=torch.float64)).to(ys)
    return (weigh * ys + 0.5 * ys.square()).sum()


def cancellation(case: Case, names: Names, course: Course) -> float:
    """How much larger the terms of the gradient of a lag are than it is, those of the points that move with it."""
    if not any(x.requires_grad for x in course.moves):
        return 1.0
    ys = in_one_row(expected(case, names, course))
    whole, *terms = torch.autograd.grad(loss(ys), [names["lag"], *course.moves])
    return max(1.0, float(sum(x.abs() for x in terms) / whole.abs()))


def check(case: Case) -> float:
    """The library first: what it refuses needs no reference."""
    own = namespace(case, False)
    solved = by_package(case, own)
    parts = [solved.ys] if solved.event_times is None or case["event"] == "reset" else [solved.ys, solved.event_times]
    found = result(case, parts, own)
    assert solved.grid is not None
    grid, times = solved.grid.detach(), None if solved.event_times is None else solved.event_times.detach().double()
    if case["event"] == "each ends" and bool(torch.isinf(parts[1]).any()):
        raise Failed("never: an event that happens by then")

    def right(nudge: float = 0.0) -> Result:
        names = namespace(case, True, nudge)
        return result(case, expected(case, names, course_of(case, names, grid, times)), names)

    exact = right()
    tolerance = allowed(getattr(torch, case["dtype"]), len(grid), courses.implicit(case)) + _more(case) * len(grid)

    def conditioning() -> float:
        names = namespace(case, True)
        terms = cancellation(case, names, course_of(case, names, grid, times))
        return terms * max(1.0, *(x / 1e-7 for x in distances(right(1e-7), exact).values()))

    return demand_equal(found, exact, tolerance, conditioning)


def _more(case: Case) -> float:
    """What a choice adds for each step: exponentials on a mesh their tolerance; a reset the error of its time."""
    fading = "exponentials" in case["history"] or (case["history"] == "auto" and case["storage"] == "auto")
    return (1e-6 if fading and not courses.even(case) else 0.0) + (1e-9 if case["event"] == "reset" else 0.0)


PART = Part("courses", courses.SETTINGS, check, courses.script, courses.arrange, share=2)
