"""Steps to a tolerance: errors beside tolerances, work beside other solvers, gradients, memory, data over decades."""

from __future__ import annotations

import math

from .markdown import measured, table
from .record import Row, rows, run, runs
from .work_precision import seconds_for

LEVELS = (1e-2, 1e-3, 1e-4, 1e-5)
#: Why an error at the end may be outside of 1/30 … 3, as benchmarks/adaptive.py decides.
WHY = {
    "exact": "every rule is exact",
    "passes zero": "the error changes sign near the end",
    "fades": "the error decays with the solution",
}


def summary() -> str:
    """The figures beside their targets."""
    done = {r["part"]: r["rows"] for r in runs("adaptive")}
    implicit, explicit, uniform = done["decades"]
    lines = [
        ["D^½ y = -y to T = 1000, `rtol=1e-5`: steps / largest error, `trapezoid`", "≤ 500 / ≤ 1e-5",
         f"{implicit['steps']} / {implicit['largest error']:.1e}"],
        ["the same by `ABM(ahead=True)`", "≤ 900 / ≤ 1e-5", f"{explicit['steps']} / {explicit['largest error']:.1e}"],
        ["the same by 20,000 uniform steps", "", f"{uniform['largest error']:.1e}"],
        *[_ratios(done["tolerances"], method) for method in ("trapezoid", "ABM(ahead=True)")],
        *_saved(done["work"]),
        ["gradients on the accepted mesh against autograd, order included", "≤ 1e-12",
         f"{max(r['relative difference'] for r in done['gradients']):.0e}"],
    ]  # fmt: skip
    for kind, name in {"solve": "a solve", "training": "a training step"}.items():
        own = [r for r in done["memory"] if r["kind"] == kind]
        steps, resident = (", ".join(f"{r[k]:,.0f}" for r in own) for k in ("steps", "resident MiB"))
        grown = own[-1]["resident MiB"] / own[0]["resident MiB"] - 1
        lines.append([f"memory of a process, {name} with `checkpoint` of {steps} steps", "within 10 %",
                      f"{resident} MiB: {100 * grown:+.0f} %"])  # fmt: skip
    return f"{table(['figure', 'target', 'measured'], lines)}\n\n{measured(*runs('adaptive'))}"


def _ratios(found: list[Row], method: str) -> list[str]:
    """Errors at the end of all solves by one method, and why some are outside."""
    own = [r for r in found if r["method"] == method]
    told = []
    for why, text in WHY.items():
        if some := [r["on the way"] for r in own if r.get("why") == why]:
            way = "" if why == "exact" else f", from up to {max(some):.2g} before"
            told.append(f"{len(some)} ({text}{way})")
    inside = f"{sum('why' not in r for r in own)} inside, outside: {', '.join(told) or 'none'}"
    return [f"error at the end / tolerance, `{method}`, {len(own)} solves", "1/30 … 3", inside]


def outside() -> str:
    """Every solve whose error is outside, and why."""
    found, lines = [r for r in rows("adaptive", "tolerances") if r.get("why", "exact") != "exact"], []
    for r in found:
        errors = [f"{r[k]:.2g}" for k in ("rtol", "ratio", "on the way")]
        lines.append([r["problem"], f"`{r['method']}`", *errors, WHY[r["why"]]])
    return table(["problem", "method", "`rtol`", "error / tolerance at the end", "largest on the way", "why"], lines)


def _saved(found: list[Row]) -> list[list[str]]:
    """Evaluations beside uniform grids at the smallest error, and how often least beside both at all errors."""
    problems, saved, ahead = list(dict.fromkeys(r["problem"] for r in found)), [], {"evaluations": 0, "seconds": 0}
    for problem in problems:
        own = {
            s: [r for r in found if (r["problem"], r["solver"]) == (problem, s)] for s in {r["solver"] for r in found}
        }
        ours, _ = least(own["tolerance"], LEVELS[-1], "evaluations")
        theirs, _ = least(own["uniform"], LEVELS[-1], "evaluations")
        most = max(r["evaluations"] for r in own["uniform"] if "error" in r)
        saved.append(f"{'' if math.isfinite(theirs) else '> '}{min(theirs, most) / ours:.0f}")
        for what in ahead:
            others = [*own["uniform"], *own["pycaputo"]]
            ahead[what] += sum(least(own["tolerance"], x, what)[0] < least(others, x, what)[0] for x in LEVELS)
    told, count = ", ".join(f"{n} of {len(problems) * len(LEVELS)} in {k}" for k, n in ahead.items()), len(problems)
    return [
        [f"evaluations for an error of {LEVELS[-1]:.0e} over four decades, uniform / tolerance, {count} problems",
         "≥ 20", ", ".join(saved)],
        ["the same at four errors: ahead of uniform grids and pycaputo", "all", told],
    ]  # fmt: skip


def tolerances() -> str:
    """Error over tolerance, a line for each problem and method."""
    found = rows("adaptive", "tolerances")
    each = list(dict.fromkeys(r["rtol"] for r in found))
    lines = []
    for problem, method in dict.fromkeys((r["problem"], r["method"]) for r in found):
        own = {r["rtol"]: r for r in found if (r["problem"], r["method"]) == (problem, method)}
        cells = [f"{own[x]['ratio']:.2g} ({own[x]['steps']})" if x in own else "-" for x in each]
        lines.append([problem, f"`{method}`", *cells])
    head = ["problem", "method", *(f"{x:.0e}" for x in each)]
    return f"{table(head, lines, right=2)}\n\n{measured(run('adaptive', 'tolerances'))}"


def least(found: list[Row], error: float, what: str) -> tuple[float, str]:
    """The least work for an error, interpolated on logarithmic axes, and by which method; infinite beyond all runs."""
    own: dict[str, list[tuple[float, float]]] = {}
    for r in found:
        if math.isfinite(r.get("error", math.inf)):
            own.setdefault(r["method"], []).append((r["error"], r[what]))
    return min(((seconds_for(sorted(points), error), m) for m, points in own.items()), default=(math.inf, ""))


def work() -> str:
    """The least evaluations and seconds of each solver for each error."""
    found = rows("adaptive", "work")
    problems, solvers = (list(dict.fromkeys(r[k] for r in found)) for k in ("problem", "solver"))
    lines = []
    for problem in problems:
        for error in LEVELS:
            own = {s: [r for r in found if (r["problem"], r["solver"]) == (problem, s)] for s in solvers}
            lines.append([problem, f"{error:.0e}", *(_cell(own[s], error) for s in solvers)])
    return f"{table(['problem', 'error', *solvers], lines, right=2)}\n\n{measured(run('adaptive', 'work'))}"


def _cell(found: list[Row], error: float) -> str:
    (evaluations, method), (seconds, _) = (least(found, error, what) for what in ("evaluations", "seconds"))
    if math.isfinite(evaluations):
        return f"{evaluations:.0f} by {method}, {seconds:.2f} s"
    best = min((r["error"] for r in found if math.isfinite(r.get("error", math.inf))), default=math.inf)
    most = max((r["evaluations"] for r in found if "error" in r), default=0)
    return f"not with {most} ({best:.0e})" if most else "-"


def data() -> str:
    """Fits through the solver beside those of the closed form."""
    lines = []
    for r in rows("adaptive", "relaxation"):
        pairs = [f"{r['solver'][k]:.4g} / {r['closed form'][k]:.4g}" for k in ("order", "τ", "G")]
        saved = f"{r['uniform steps'] / r['mesh']:.0f}"
        lines.append([f"{r['material']}, {r['points']} points, {r['from']:g} … {r['to']:g} s", *pairs,
                      f"{100 * r['largest difference']:.2f} %", r["mesh"], f"{r['error']:.0e}", saved])  # fmt: skip
    head = ["material", "order", "τ", "G", "largest difference", "steps", "error", "times fewer than uniform"]
    return f"{table(head, lines, right=1)}\n\n{measured(run('adaptive', 'relaxation'))}"


def doses() -> str:
    """Theophylline: errors of fitted and held-out concentrations, fractional and of order 1."""
    found, lines = rows("adaptive", "theophylline"), []
    for model in ("fractional", "order 1"):
        own = [r for r in found if r["model"] == model]
        orders = ", ".join(f"{r['order']:.3f}" for r in own)
        errors = [", ".join(f"{r[k]:.2f}" for r in own) for k in ("fitted", "held out")]
        whole = math.sqrt(sum(r["held out"] ** 2 * r["points held out"] for r in own)
                          / sum(r["points held out"] for r in own))  # fmt: skip
        lines.append([model, orders, *errors, f"{whole:.3f}"])
    head = ["model", "order in each fold", "fitted, mg/l", "held out, mg/l", "held out, all folds"]
    return f"{table(head, lines, right=1)}\n\n{measured(run('adaptive', 'theophylline'))}"


def steps_of(which: int) -> str:
    """How many steps a method took over six decades."""
    return str(rows("adaptive", "decades")[which]["steps"])


PLACES = {
    "adaptive-implicit": lambda: steps_of(0),
    "adaptive-explicit": lambda: steps_of(1),
    "adaptive-data": data,
    "adaptive-doses": doses,
    "adaptive": summary,
    "adaptive-tolerances": tolerances,
    "adaptive-outside": outside,
    "adaptive-work": work,
}
