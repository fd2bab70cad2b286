"""The solver itself: the core, accuracy, small states, the bias of the paper's adjoint, several processes."""

from __future__ import annotations

from collections.abc import Sequence

from .markdown import measured, table
from .record import Row, rows, run, runs


def core() -> str:
    """The figures of the core."""
    found = {r["part"]: r["rows"] for r in runs("core")}
    errors, speed, growth, memory, imports = (
        found[k][0] for k in ("gradient_errors", "speed", "growth", "memory", "imports")
    )
    worst, peer = errors["worst relative error"], speed["FDEint / ours at N=1000"]
    gap = max(abs(r - row["declared"]) for row in found["analytic"] for r in row["observed (z, ∂λ, ∂β)"])
    exact = f"{worst['explicit']:.1e} (implicit {worst['implicit']:.1e})"
    lines = [
        [f"error of gradients, exact adjoint against autograd, float64, {errors['cases']} cases", exact],
        ["orders of convergence of z, ∂z/∂λ and ∂z/∂β for D^β z = λz, observed - declared", f"within ±{gap:.2f}"],
        ["time of a training step, perceptron, N = 2000: textbook loop / ours", f"{speed['loop / ours']:.0f}"],
        ["the same: ours / bare kernels, N·f + N·(f + VJP)", f"{speed['ours / bare']:.2f}"],
        ["time of a solve, N = 1000: FDEint (PyPI) / ours", peer if isinstance(peer, str) else f"{peer:.0f}"],
        ["cost with `fft`, N = 10³ … 10⁵: grows as N to the power of", f"{growth['log-log slope']:.2f}"],
        ["memory that a training step adds, `full` + `device`, d elements", f"{memory['ratio']:.2f} N·d"],
        ["packages imported besides torch and the standard library", imports["further packages"].strip("[]") or "none"],
    ]
    return f"{table(['figure', 'measured'], lines, right=1)}\n\n{measured(*runs('core'))}"


def orders() -> str:
    """Observed orders beside the theory, a column for each β."""
    found: dict[tuple[str, str, str], dict[float, Row]] = {}
    for r in rows("accuracy", "orders"):
        key = r["method"], r["grid"].split()[0], r["solution"]
        found.setdefault(key, {})[r["order β"]] = r
    betas = sorted({r["order β"] for r in rows("accuracy", "orders")})
    lines = [
        [f"`{m}`", grid, kind, *(f"{own[b]['observed']} ({own[b]['theory']:g})" for b in betas), _steps(own)]
        for (m, grid, kind), own in found.items()
    ]
    head = ["method", "grid", "solution", *(f"β = {b:g}" for b in betas), "steps"]
    return f"{table(head, lines)}\n\n{measured(run('accuracy', 'orders'))}"


def _steps(own: dict[float, Row]) -> str:
    """The number of steps, and where another one was needed."""
    counts = [r["steps"] for r in own.values()]
    usual = max(set(counts), key=counts.count)
    return ", ".join([str(usual), *(f"{r['steps']} at β = {b:g}" for b, r in own.items() if r["steps"] != usual)])


def weights() -> str:
    """The worst relative error of each table of weights, a column for each β."""
    found = rows("accuracy", "weights")
    betas, names = (list(dict.fromkeys(r[k] for r in found)) for k in ("β", "weights"))
    cell = {(r["weights"], r["β"]): r["worst relative error"] for r in found}
    lines = [[f"`{name}`", *(cell[name, b] for b in betas)] for name in names]
    head = ["weights", *(f"β = {b:g}" for b in betas)]
    return f"{table(head, lines, right=1)}\n\n{measured(run('accuracy', 'weights'))}"


def as_they_are(part: str) -> str:
    """Rows of a part of the accuracies, all their columns."""
    found = rows("accuracy", part)
    lines = [[{True: "yes", False: "no"}[x] if isinstance(x, bool) else x for x in r.values()] for r in found]
    return f"{table(list(found[0]), lines)}\n\n{measured(run('accuracy', part))}"


def gradients() -> str:
    """The worst of all gradients of each case and method."""
    found: dict[tuple[str, str], list[Row]] = {}
    for r in rows("accuracy", "gradients"):
        found.setdefault((r["case"], r["method"]), []).append(r)
    ways = ("from direct", "from differences")
    lines = [
        [case, f"`{method}`", ", ".join(r["gradient of"] for r in own), *(worst(own, way) for way in ways)]
        for (case, method), own in found.items()
    ]
    return f"{table(['case', 'method', 'gradients of', *ways], lines)}\n\n{measured(run('accuracy', 'gradients'))}"


def worst(found: Sequence[Row], way: str) -> str:
    return max((r[way] for r in found), key=float)


def small_states() -> str:
    """One training step of a small state, vectorised over time and step by step."""
    found = run("small-states", "training step")
    r = found["rows"][0]
    each = ("step by step", "vectorised", "forward only")
    cells = [r["trajectories"], r["steps"], *(f"{1000 * r[k]:.0f} ms" for k in each)]
    head = ["trajectories", "steps", "training, step by step", "training, all steps together", "forward pass alone"]
    more = ["ratio of the first two", "difference of their gradients"]
    cells += [f"{r['ratio']:.2f}", f"{r['gradient difference']:.1e}"]
    return f"{table([*head, *more], [cells], right=0)}\n\n{measured(found)}"


def small_states_by_work() -> str:
    """Networks of growing work, their steps taken in each way."""
    found, lines = run("small-states", "by work"), []
    ways = list(found["rows"][0]["training"])
    for r in found["rows"]:
        forward, training = ([f"{1000 * r[part][k]:.1f}" for k in ways] for part in ("forward", "training"))
        network = r["network"].replace("-", "\N{NON-BREAKING HYPHEN}")
        lines.append([network, r["samples"], f"{r['KiB']:.0f}", *forward, *training])
    names = ["`auto`" if k == "auto" else k for k in ways[1:]]
    head = ["network", "samples", "KiB a call", "forward, ms: single", *names, "training, ms: single", *names]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}"


def irregular() -> str:
    """A training step with output on the grid, at many times, and at those of each series."""
    found, lines = run("irregular", "training step"), []
    for r in found["rows"]:
        times = [f"{1000 * r[k]:.0f} ms" for k in ("grid", "all", "own")]
        lines.append([r["method"], *times, *(f"{r[f'{k} / grid']:.2f}" for k in ("all", "own"))])
    head = ["method", "on the grid", "1,663 times", "the same, 26 a series", "ratio, 1,663 times", "ratio, 26 a series"]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}"


def practice() -> str:
    """What everyday work takes."""
    found = run("practice", "everyday")
    got = {r["what"]: r for r in found["rows"]}
    lines = [
        ["`fit`, 60 points, three parameters and the order, with intervals", f"{got['fit']['seconds']:.2f} s", "0.7 s"],
        ["the same where the order is barely determined and is profiled", f"{got['profiled']['seconds']:.2f} s", ""],
        ["`fit`, a network, 64 ragged series, one epoch", f"{got['epoch']['seconds']:.2f} s", "0.5 s"],
        ["a model of 64 ragged series, its training and forecast", f"{got['lines']['count']} lines", "15 lines"],
    ]
    return f"{table(['', 'measured', 'at most'], lines, right=1)}\n\n{measured(found)}"


def composing() -> str:
    """Derivatives and transforms beside a plain solve; on a GPU too, where that was measured."""
    found = [(r["part"], row) for r in runs("composing") for row in r["rows"]]
    lines = []
    for part, r in found:
        times = [f"{r[k]:.0f} ms" if k in r else "" for k in ("own", "beside")]
        what = r["what"] if part == "cost" else f"{r['what']}, {part}"
        figure = f"{r['figure']:.2g}"
        lines.append([what, figure if _met(r["figure"], r["target"]) else f"**{figure}**", r["target"], *times])
    return f"{table(['', 'measured', 'target', 'time', 'compared with'], lines)}\n\n{measured(*runs('composing'))}"


def _met(figure: float, target: str) -> bool:
    """Whether a figure meets a target such as ``≥ 20``, or there is none."""
    if not target:
        return True
    sign, limit = target.split()
    return figure >= float(limit) if sign == "≥" else figure <= float(limit)


def stiff() -> str:
    """Implicit steps of the diffusion equation beside scipy's loop, which has no gradients."""
    found = run("stiff", "diffusion")
    lines = []
    for r in found["rows"]:
        ratios = [f"{r[k] / r['scipy']:.1f}" for k in ("forward", "both")]
        times = [f"{1000 * r[k]:.0f} ms" for k in ("scipy", "forward", "both")]
        lines.append([r["way"], r["samples"], r["dtype"], *times, *ratios, f"{r['difference']:.1e}"])
    head = ["matrix from", "samples", "dtype", "scipy, one sample forward", "forward", "forward + backward"]
    more = ["forward / scipy", "forward + backward / scipy", "difference from scipy"]
    return f"{table([*head, *more], lines, right=3)}\n\n{measured(found)}"


def stiff_gpu() -> str:
    """Implicit steps beside explicit ones on a GPU; nothing where none were measured."""
    found = [r for r in runs("stiff") if r["part"] == "on a GPU"]
    lines = []
    for r in (row for each in found for row in each["rows"]):
        times = [f"{r[k]:.2f} s" for k in ("trapezoid", "predictor")]
        lines.append([r["what"], r["steps"], *times, f"{r['ratio']:.1f}", f"`{r['trapezoid by']}`"])
    head = ["", "steps", "`trapezoid`", "`predictor`", "ratio", "stepper"]
    return f"{table(head, lines, right=1)}\n\n{measured(*found)}" if found else "Not measured yet."


def scaling() -> str:
    """Step times and traffic of one process and more."""
    found, names = run("scaling", "processes"), {"alone": "alone", "ddp": "DDP", "fsdp2": "FSDP2"}
    lines = []
    for r in found["rows"]:
        calls = ", ".join(f"{count} {name}" for name, count in r["collectives"].items())
        moved = f"{r['bytes'] / 1000:.0f} kB: {calls}" if calls else "nothing"
        times = [f"{r['cpu_seconds']} s", f"{r['wall_seconds']} s"]
        lines.append([names[r["how"]], r["processes"], *times, moved, f"{r['parameter_bytes'] / 1000:.0f} kB"])
    head = ["", "processes", "CPU time", "wall time", "sent or received", "parameters held"]
    return f"{table(head, lines)}\n\n{measured(found)}"


def cell() -> str:
    """One streamed step of a cell, at the beginning and at the end of a long stream."""
    found = run("cell", "step")
    lines = []
    for r in found["rows"]:
        times = [f"{r[k]:.1f} µs" for k in ("first tenth", "last tenth")]
        lines.append([r["way"], r["steps"], r["rows"], *times, f"{r['off']:.1e}"])
    head = [
        "",
        "steps",
        "rows of the past",
        "a step, first tenth",
        "a step, last tenth",
        "difference from a whole solve",
    ]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}"


PLACES = {
    "core": core,
    "accuracy-orders": orders,
    "accuracy-dff": lambda: as_they_are("dff"),
    "accuracy-weights": weights,
    "accuracy-estimates": lambda: as_they_are("estimates"),
    "accuracy-gradients": gradients,
    "small-states": small_states,
    "small-states-by-work": small_states_by_work,
    "irregular": irregular,
    "practice": practice,
    "composing": composing,
    "stiff": stiff,
    "stiff-gpu": stiff_gpu,
    "scaling": scaling,
    "cell": cell,
}
