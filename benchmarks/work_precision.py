"""Error against time, side by side with pycaputo and FDEint (both from PyPI), on three problems, in one run.

``pip install pycaputo FDEint``, ``python benchmarks/work_precision.py``: writes ``results/work-precision.json`` and
``.svg``. Each point is the best of three runs of the whole solve in processor seconds, on one thread, in float64.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from FDEint import FDEint
from pycaputo.controller import make_fixed_controller
from pycaputo.derivatives import CaputoDerivative
from pycaputo.events import StepCompleted
from pycaputo.fode.caputo import PECE
from pycaputo.stepping import evolve

from neuralfde import FixedPoint, fdeint
from neuralfde.problems import Problem, problem

RESULTS = Path(__file__).parent / "results"
STEPS = (50, 100, 200, 400, 800)
PROBLEMS = (problem("relaxation", order=0.5), problem("brusselator"), problem("predator-prey"))


def ours(method: str) -> Callable[[Problem, int], torch.Tensor]:
    options = {"solver": FixedPoint(tol=1e-9)} if method in ("bdf2", "trapezoid") else {}

    def run(p: Problem, n: int) -> torch.Tensor:
        with torch.no_grad():
            return fdeint(p.func, p.z0, p.t, p.order, steps=n, method=method, **options)

    return run


def with_fdeint(p: Problem, n: int) -> torch.Tensor:
    t = torch.linspace(0, p.t, n + 1, dtype=torch.float64)
    with torch.no_grad():
        out = FDEint(p.func, t, p.z0[None], torch.tensor(p.order, dtype=torch.float64), h=p.t / n, dtype=torch.float64)
    return out[0, -1]


def with_pycaputo(p: Problem, n: int) -> torch.Tensor:
    def source(t: float, y: np.ndarray) -> np.ndarray:
        return p.func(torch.tensor(t), torch.from_numpy(y)).numpy()

    method = PECE(
        ds=(CaputoDerivative(p.order),) * p.z0.numel(),
        control=make_fixed_controller(p.t / n, tstart=0.0, tfinal=p.t),
        source=source,
        y0=(p.z0.numpy(),),
        corrector_iterations=1,
    )
    last = p.z0.numpy()
    for event in evolve(method, dtinit=p.t / n):  # else it begins with a step of its own and misses the end
        if isinstance(event, StepCompleted):
            last = event.y
    return torch.from_numpy(np.asarray(last))


SOLVERS = {
    "neuralfde abm": ours("abm"),
    "neuralfde bdf2": ours("bdf2"),
    "pycaputo PECE": with_pycaputo,
    "FDEint": with_fdeint,
}


def measure() -> list[dict]:
    rows = []
    for p in PROBLEMS:
        for name, run in SOLVERS.items():
            for n in STEPS:
                best = float("inf")
                for _ in range(3):
                    start = time.process_time()
                    state = run(p, n)
                    best = min(best, time.process_time() - start)
                    if best > 5:
                        break
                rows.append({"problem": p.name, "solver": name, "steps": n, "seconds": best, "error": p.error(state)})
                print(rows[-1], flush=True)
                if best > 20:
                    break
    return rows


def seconds_for(rows: list[dict], name: str, solver: str, error: float) -> float | None:
    """The least time at which a solver was at most this far off, interpolated on logarithmic axes."""
    own = sorted((r["error"], r["seconds"]) for r in rows if r["problem"] == name and r["solver"] == solver)
    if own[0][0] > error:
        return None
    return float(np.exp(np.interp(np.log(error), *np.log(np.array(own)).T)))


def plot(rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PROBLEMS), figsize=(11, 3.6), sharey=True)
    for axis, p in zip(axes, PROBLEMS, strict=True):
        for name in SOLVERS:
            own = [r for r in rows if r["problem"] == p.name and r["solver"] == name]
            axis.loglog([r["error"] for r in own], [r["seconds"] for r in own], "o-", label=name)
        axis.set(title=f"{p.name}, β = {p.order}", xlabel="error at the end")
        axis.invert_xaxis()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("processor seconds")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS / "work-precision.svg")


def main() -> None:
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    rows = measure()
    (RESULTS / "work-precision.json").write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows)
    for p in PROBLEMS:
        for error in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
            found = {s: seconds_for(rows, p.name, s, error) for s in SOLVERS}
            print(f"{p.name:14s} {error:.0e}", {s: None if x is None else round(x, 4) for s, x in found.items()})


if __name__ == "__main__":
    main()
