"""Error against time, side by side with pycaputo and FDEint (both from PyPI), on three problems, in one run.

``pip install pycaputo FDEint matplotlib``, ``python benchmarks/work_precision.py``: writes
``results/work-precision.json``, ``.md`` and ``.svg``; with ``render`` the last two from the first; with the
names of problems only these are measured anew.

Each problem is solved as one trajectory and as an ensemble of 256, about the size of a batch in training, with initial
values (or, for the linear one, rates) of their own. Every solver gets the same equations, order and interval in
float64; the error is the largest over all members at the end. An equation is written once and runs in each solver's own
language, as a function made before the clock starts: torch for neuralfde and FDEint, numpy for pycaputo, which would
otherwise pay for conversions. Each gets the ensemble in the layout it is quickest with. pycaputo asks for one
derivative for each equation, and computes weights for each; one for all of them happens to be accepted and is much
quicker, so it is measured as a solver of its own.

All run on one thread, those in torch in inference mode; a point is the least of at least three runs in processor
seconds, taken in turns, so that a slow minute of the machine meets every solver. A method that took more than a second
is not run on finer grids.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"  # before numpy and torch read them

import numpy as np  # noqa: E402
import torch  # noqa: E402
from FDEint import FDEint  # noqa: E402
from pycaputo.controller import make_fixed_controller  # noqa: E402
from pycaputo.derivatives import CaputoDerivative  # noqa: E402
from pycaputo.events import StepCompleted  # noqa: E402
from pycaputo.fode.caputo import PECE  # noqa: E402
from pycaputo.stepping import evolve  # noqa: E402
from torch import Tensor  # noqa: E402

from neuralfde import ABM, FixedPoint, NewtonKrylov, fdeint, mittag_leffler  # noqa: E402
from neuralfde.problems import problem  # noqa: E402
from neuralfde_experiments import tables  # noqa: E402

RESULTS = Path(__file__).parent / "results"
STEPS = (5, 7, 10, 14, 20, 50, 100, 200, 400, 800)
LEVELS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
MEMBERS = 256
LONGEST = 1.0
SHORT = "pycaputo, one derivative for all"


@dataclass(frozen=True)
class Case:
    """One problem with one or many members: initial and end values are (components, members).

    ``equation`` gives the derivative of each component from all of them and ``rates``, for tensors, arrays and numbers.
    """

    name: str
    order: float
    t: float
    equation: Callable[..., tuple[Any, ...]]
    z0: Tensor
    end: Tensor
    rates: tuple[Tensor, ...] = ()

    @property
    def members(self) -> int:
        return self.z0.shape[1]

    @cached_property
    def by_components(self) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda t, z: torch.stack(self.equation(*z.unbind(), *self.rates))

    @cached_property
    def by_members(self) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda t, z: torch.stack(self.equation(*z.unbind(1), *self.rates), dim=1)

    @cached_property
    def in_numpy(self) -> Callable[[float, np.ndarray], np.ndarray]:
        rates, shape = tuple(r.numpy() for r in self.rates), tuple(self.z0.shape)
        if self.members == 1:
            return lambda t, y: np.array(self.equation(*y, *rates)).ravel()
        return lambda t, y: np.concatenate(self.equation(*y.reshape(shape), *rates))

    def error(self, state: Tensor) -> float:
        return float((state.reshape(self.end.shape) - self.end).abs().max())


def relaxation(members: int) -> Case:
    rates = -torch.linspace(0.5, 2.0, members) if members > 1 else -torch.ones(1)
    rates, order = rates.double(), 0.5
    end = mittag_leffler(rates, order)[None]
    return Case("relaxation", order, 1.0, lambda z, rate: (rate * z,), torch.ones_like(end), end, (rates,))


def brusselator(members: int) -> Case:
    def equation(x: Any, y: Any) -> tuple[Any, Any]:
        meet = x * x * y
        return 1 - 5 * x + meet, 4 * x - meet

    return with_references("brusselator", members, equation)


def predator_prey(members: int) -> Case:
    return with_references("predator-prey", members, lambda x, y: (x * (1 - x - y), y * (2 * x - 1)))


PROBLEMS = {"relaxation": relaxation, "brusselator": brusselator, "predator-prey": predator_prey}


def with_references(name: str, members: int, equation: Callable[..., tuple[Any, ...]]) -> Case:
    p = problem(name)
    if members == 1:
        return Case(name, p.order, p.t, equation, p.z0[:, None], p.solution()[:, None])
    found = json.loads((RESULTS / "work-precision-references.json").read_text())[name]
    z0, end = (torch.tensor(found[k], dtype=torch.float64)[:members].T.contiguous() for k in ("z0", "z"))
    return Case(name, p.order, p.t, equation, z0, end)


def ours(method: str | ABM, solver: type[FixedPoint | NewtonKrylov] | None = None) -> Callable[[Case, int], Tensor]:
    def run(case: Case, n: int) -> Tensor:
        # the method's own error falls like 1/n², so stages need not be solved much closer than that
        stages = solver and solver(tol=5e-3 / n**2)
        with torch.inference_mode():
            return fdeint(case.by_components, case.z0, case.t, case.order, steps=n, method=method, solver=stages)

    return run


def with_fdeint(case: Case, n: int) -> Tensor:
    t = torch.tensor([0.0, case.t], dtype=torch.float64)
    order = torch.tensor(case.order, dtype=torch.float64)
    with torch.inference_mode():
        return FDEint(case.by_members, t, case.z0.T.contiguous(), order, h=case.t / n, dtype=torch.float64)[:, -1].T


def with_pycaputo(corrections: int, short: bool = False) -> Callable[[Case, int], Tensor]:
    def run(case: Case, n: int) -> Tensor:
        method = PECE(
            ds=(CaputoDerivative(case.order),) * (1 if short else case.z0.numel()),
            control=make_fixed_controller(case.t / n, tstart=0.0, tfinal=case.t),
            source=case.in_numpy,
            y0=(case.z0.numpy().ravel(),),
            corrector_iterations=corrections,
        )
        last = method.y0[0]
        for event in evolve(method, dtinit=case.t / n):  # else it begins with a step of its own and misses the end
            if isinstance(event, StepCompleted):
                last = event.y
        return torch.from_numpy(np.asarray(last))

    return run


#: For each solver the methods a user may choose from, by name and number of corrections; at each error the quickest
#: counts.
SOLVERS: dict[str, dict[str, Callable[[Case, int], Tensor]]] = {
    "neuralfde": {
        **{f"abm {k}": ours(ABM(corrections=k)) for k in (1, 2, 3)},
        "flmm-trapezoid": ours("flmm-trapezoid", FixedPoint),
        "flmm-trapezoid, newton": ours("flmm-trapezoid", NewtonKrylov),
    },
    "pycaputo": {f"PECE {k}": with_pycaputo(k) for k in (1, 2, 3)},
    "FDEint": {"PECE 1": with_fdeint},
    SHORT: {f"PECE {k}": with_pycaputo(k, short=True) for k in (1, 2, 3)},
}


def measure(cases: Sequence[Case]) -> list[dict]:
    rows = []
    for case in cases:
        left = [(solver, method) for solver, methods in SOLVERS.items() for method in methods]
        for n in STEPS:
            best, errors = dict.fromkeys(left, float("inf")), {}
            spent, turns = 0.0, 0
            while turns < 3 or (spent < 2 and turns < 30):
                for solver, method in left:
                    start = time.process_time()
                    state = SOLVERS[solver][method](case, n)
                    took = time.process_time() - start
                    best[solver, method], spent = min(best[solver, method], took), spent + took
                    errors[solver, method] = case.error(state)
                turns += 1
            for key in left:
                names = {"problem": case.name, "members": case.members, "solver": key[0], "method": key[1]}
                rows.append({**names, "steps": n, "seconds": best[key], "error": errors[key]})
                print(rows[-1], flush=True)
            left = [key for key in left if best[key] < LONGEST]
    return rows


def curve(rows: list[dict], **wanted: Any) -> list[tuple[float, float]]:
    """The (error, seconds) of these rows, from the smallest error."""
    return sorted((r["error"], r["seconds"]) for r in rows if all(r[k] == v for k, v in wanted.items()))


def seconds_for(own: list[tuple[float, float]], error: float) -> float:
    """The time at which a method is this far off, interpolated on logarithmic axes; infinite beyond what was measured.

    Where its coarsest grid is better than asked for, the time of that grid counts.
    """
    if own[0][0] > error:
        return float("inf")
    return float(np.exp(np.interp(np.log(error), *np.log(np.array(own)).T)))


def quickest(rows: list[dict], solver: str, error: float, **case: Any) -> tuple[float, str]:
    """The least time of a solver's methods, and which it is."""
    return min((seconds_for(curve(rows, solver=solver, method=m, **case), error), m) for m in SOLVERS[solver])


def cases_in(rows: list[dict]) -> list[dict]:
    return [{"problem": p, "members": m} for p, m in dict.fromkeys((r["problem"], r["members"]) for r in rows)]


def markdown(rows: list[dict]) -> str:
    """Milliseconds to reach an error with each solver's quickest method, and where ours is ahead of the others."""
    heads = ["members", "problem", "error", *SOLVERS, "quickest"]
    lines, wins = [], []
    for case in cases_in(rows):
        for error in LEVELS:
            found = {s: quickest(rows, s, error, **case) for s in SOLVERS}
            cells = ["-" if x == float("inf") else f"{1000 * x:.1f} ms, {m}" for x, m in found.values()]
            first = min(found, key=lambda s: found[s])
            own = found["neuralfde"][0]
            wins += [(case["members"], s) for s in SOLVERS if error < 1e-3 and own < found[s][0]]
            lines.append([case["members"], case["problem"], f"{error:.0e}", *cells, first])
    return "\n".join([*summary(rows, wins), "", tables.markdown(heads, lines), "", made_with(), ""])


def summary(rows: list[dict], wins: list[tuple[int, str]]) -> list[str]:
    """How often ours is ahead of each of the others at errors below 1e-3."""
    lines = []
    for members in dict.fromkeys(r["members"] for r in rows):
        of = len({r["problem"] for r in rows if r["members"] == members}) * sum(error < 1e-3 for error in LEVELS)
        counts = [f"{s} at {wins.count((members, s))}" for s in SOLVERS if s != "neuralfde"]
        kind = f"an ensemble of {members}" if members > 1 else "one trajectory"
        lines.append(f"- With {kind}, of {of} errors below 1e-3, neuralfde is ahead of " + "; of ".join(counts) + ".")
    return lines


def made_with() -> str:
    versions = ", ".join(f"{n} {version(n)}" for n in ("torch", "numpy", "pycaputo", "FDEint"))
    return (
        f"Processor milliseconds on one thread; {versions}. The number after abm and PECE counts their corrections; "
        "- is an error that no measured number of steps reached."
    )


def plot(rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases, colours = cases_in(rows), dict(zip(SOLVERS, ("C0", "C1", "C2", "C3"), strict=True))
    figure, axes = pyplot.subplots(2, len(cases) // 2, figsize=(11, 6.4), height_ratios=(5, 3))
    for axis, case in zip(axes.flat, cases, strict=True):
        for solver, methods in SOLVERS.items():
            for method, line in zip(methods, ("-", "--", ":", "-.", (0, (1, 3))), strict=False):
                points = zip(*curve(rows, solver=solver, method=method, **case), strict=True)
                style = {"linestyle": line, "color": colours[solver], "marker": "o", "markersize": 3}
                axis.loglog(*points, label=f"{solver}: {method}", **style)
        many = f"{case['members']} members" if case["members"] > 1 else "one trajectory"
        axis.set(title=f"{case['problem']}, {many}", xlim=(1e-2, 1e-6))
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("processor seconds")
    for axis in axes[1]:
        axis.set_xlabel("largest error at the end")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(RESULTS / "work-precision.svg")


def main() -> None:
    torch.set_num_threads(1)
    kept = RESULTS / "work-precision.json"
    if sys.argv[1:] != ["render"]:
        wanted = sys.argv[1:] or list(PROBLEMS)
        found = measure([PROBLEMS[name](m) for m in (MEMBERS, 1) for name in wanted])
        known = json.loads(kept.read_text()) if kept.exists() else []
        rows = [*found, *[r for r in known if r["problem"] not in wanted]]
        rows.sort(key=lambda r: (-r["members"], list(PROBLEMS).index(r["problem"])))
        kept.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    rows = json.loads(kept.read_text())
    (RESULTS / "work-precision.md").write_text(markdown(rows))
    plot(rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
