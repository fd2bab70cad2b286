"""Work against precision: milliseconds to reach an error, beside other solvers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .markdown import measured, table
from .record import Row, run

LEVELS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
OURS = "neuralfde"


def found() -> Row:
    return run("work-precision", "three problems")


def methods(rows: list[Row]) -> dict[str, list[str]]:
    """The methods of each solver."""
    names: dict[str, dict[str, None]] = {}
    for r in rows:
        names.setdefault(r["solver"], {})[r["method"]] = None
    return {solver: list(own) for solver, own in names.items()}


def curve(rows: list[Row], **wanted: Any) -> list[tuple[float, float]]:
    """The (error, seconds) of these rows, from the smallest error."""
    return sorted((r["error"], r["seconds"]) for r in rows if all(r[k] == v for k, v in wanted.items()))


def seconds_for(own: list[tuple[float, float]], error: float) -> float:
    """The time at which a method is this far off, interpolated on logarithmic axes; infinite beyond what was measured.

    Where its coarsest grid is better than asked for, the time of that grid counts.
    """
    if own[0][0] > error:
        return float("inf")
    return float(np.exp(np.interp(np.log(error), *np.log(np.array(own)).T)))


def cases(rows: list[Row]) -> list[Row]:
    return [{"problem": p, "members": m} for p, m in dict.fromkeys((r["problem"], r["members"]) for r in rows)]


def quickest(rows: list[Row]) -> list[tuple[Row, float, dict[str, tuple[float, str]]]]:
    """For each case and error the least time of each solver's methods, and which method it is."""
    return [
        (case, error, {
            solver: min((seconds_for(curve(rows, solver=solver, method=m, **case), error), m) for m in own)
            for solver, own in methods(rows).items()
        })
        for case in cases(rows)
        for error in LEVELS
    ]  # fmt: skip


def all_errors() -> str:
    """Milliseconds to reach each error with each solver's quickest method."""
    lines, solvers = [], list(methods(found()["rows"]))
    for case, error, times in quickest(found()["rows"]):
        cells = ["-" if x == float("inf") else f"{1000 * x:.1f} ms, {m}" for x, m in times.values()]
        lines.append([case["members"], case["problem"], f"{error:.0e}", *cells, min(times, key=lambda s: times[s])])
    versions = ", ".join(f"{name} {found()[name]}" for name in ("numpy", "pycaputo", "FDEint"))
    note = (
        f"Processor milliseconds on one thread; {versions}. The number after abm and PECE counts their corrections; "
        "- is an error that no measured number of steps reached."
    )
    return f"{table(['members', 'problem', 'error', *solvers, 'quickest'], lines)}\n\n{note} {measured(found())}"


def summary() -> str:
    """How often ours is ahead of each of the others at errors below 1e-3."""
    every = [x for x in quickest(found()["rows"]) if x[1] < 1e-3]
    lines = []
    for members in dict.fromkeys(case["members"] for case, _, _ in every):
        own = [times for case, _, times in every if case["members"] == members]
        others = [s for s in own[0] if s != OURS]
        counts = [f"{s} at {sum(t[OURS][0] < t[s][0] for t in own)}" for s in others]
        kind = f"an ensemble of {members}" if members > 1 else "one trajectory"
        lines.append(f"- With {kind}, of {len(own)} errors below 1e-3, neuralfde is ahead of {'; of '.join(counts)}.")
    return "\n".join(lines)


def envelope(rows: list[Row], solver: str, case: Row) -> list[tuple[float, float]]:
    """For each error the time of the solver's quickest method, (error, seconds); none where no method reached it."""
    own = [curve(rows, solver=solver, method=m, **case) for m in methods(rows)[solver]]
    times = [(error, min(seconds_for(each, error) for each in own)) for error in np.logspace(-2.5, -5.5, 31)]
    return [(float(error), seconds) for error, seconds in times if seconds < float("inf")]


def figure() -> Any:
    """Time that an error takes with each solver's quickest method, a panel for each case."""
    from matplotlib.figure import Figure

    rows = found()["rows"]
    picture = Figure(figsize=(8, 5.4))
    axes = picture.subplots(2, len(cases(rows)) // 2, sharex=True, sharey="row")
    for axis, case in zip(axes.flat, cases(rows), strict=True):
        for solver, line in zip(methods(rows), ("-", "--", "-.", ":"), strict=True):
            errors, seconds = zip(*envelope(rows, solver, case), strict=True)
            axis.loglog(errors, [1000 * s for s in seconds], line, label=solver)
        many = f"{case['members']} members" if case["members"] > 1 else "one trajectory"
        axis.set(title=f"{case['problem']}, {many}", xlim=(10**-2.5, 10**-5.5))
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("processor ms")
    for axis in axes[1]:
        axis.set_xlabel("largest error at the end")
    picture.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=4)
    picture.tight_layout(rect=(0, 0.06, 1, 1))
    return picture


PLACES = {"work-precision": all_errors, "work-precision-summary": summary}
FIGURES = {"work-precision.svg": ("work-precision", figure)}
