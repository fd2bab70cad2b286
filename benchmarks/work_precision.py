"""Error against time, side by side with pycaputo and FDEint (both from PyPI), on three problems, in one run.

``pip install pycaputo FDEint matplotlib``, ``python benchmarks/work_precision.py``: writes
``results/work-precision.json``, ``.md`` and ``.svg``.

Every solver gets the same equation, order, interval and number of steps, in float64, and the error is taken at the end
of the interval. Each gets the right-hand side in its own language: torch for neuralfde and FDEint, numpy for pycaputo,
which would otherwise pay for conversions. All run on one thread; a point is the least of at least five runs in
processor seconds, taken in turns, so that a slow minute of the machine meets every solver.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

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

from neuralfde import FixedPoint, fdeint  # noqa: E402
from neuralfde.problems import Problem, problem  # noqa: E402

RESULTS = Path(__file__).parent / "results"
STEPS = (20, 50, 100, 200, 400, 800)
PROBLEMS = (problem("relaxation", order=0.5), problem("brusselator"), problem("predator-prey"))


LEVELS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
#: The same right-hand sides for numpy.
NUMPY: dict[str, Callable[[float, np.ndarray], np.ndarray]] = {
    "relaxation": lambda t, z: -z,
    "brusselator": lambda t, z: np.array([1 - 5 * z[0] + z[0] ** 2 * z[1], 4 * z[0] - z[0] ** 2 * z[1]]),
    "predator-prey": lambda t, z: np.array([z[0] * (1 - z[0] - z[1]), z[1] * (2 * z[0] - 1)]),
}


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
    method = PECE(
        ds=(CaputoDerivative(p.order),) * p.z0.numel(),
        control=make_fixed_controller(p.t / n, tstart=0.0, tfinal=p.t),
        source=NUMPY[p.name],
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
        for n in STEPS:
            best = dict.fromkeys(SOLVERS, float("inf"))
            errors = {}
            spent, turns = 0.0, 0
            while turns < 5 or (spent < 2 and turns < 30):
                for name, run in SOLVERS.items():
                    start = time.process_time()
                    state = run(p, n)
                    took = time.process_time() - start
                    best[name], spent = min(best[name], took), spent + took
                    errors[name] = p.error(state)
                turns += 1
            for name in SOLVERS:
                rows.append(
                    {"problem": p.name, "solver": name, "steps": n, "seconds": best[name], "error": errors[name]}
                )
                print(rows[-1], flush=True)
    return rows


def seconds_for(rows: list[dict], name: str, solver: str, error: float) -> float | None:
    """The time at which a solver is this far off, interpolated on logarithmic axes; None beyond what was measured.

    Where its coarsest grid is better than asked for, the time of that grid counts.
    """
    own = sorted((r["error"], r["seconds"]) for r in rows if r["problem"] == name and r["solver"] == solver)
    if own[0][0] > error:
        return None
    return float(np.exp(np.interp(np.log(error), *np.log(np.array(own)).T)))


def markdown(rows: list[dict]) -> str:
    """Milliseconds to reach an error, and whether the better of our two methods is ahead of both peers."""
    peers = [s for s in SOLVERS if not s.startswith("neuralfde")]
    lines = ["| problem | error | " + " | ".join(SOLVERS) + " | ahead |", "| --- " * (3 + len(SOLVERS)) + "|"]
    for p in PROBLEMS:
        for error in LEVELS:
            found = {s: seconds_for(rows, p.name, s, error) for s in SOLVERS}
            ours_best = min((x for s, x in found.items() if s not in peers and x is not None), default=float("inf"))
            ahead = all(found[s] is None or ours_best < found[s] for s in peers)  # type: ignore[operator]
            cells = ["-" if x is None else f"{1000 * x:.1f} ms" for x in found.values()]
            lines.append(f"| {p.name} | {error:.0e} | " + " | ".join(cells) + f" | {'yes' if ahead else 'no'} |")
    made = ", ".join(f"{n} {version(n)}" for n in ("torch", "numpy", "pycaputo", "FDEint"))
    return "\n".join([*lines, "", f"Processor milliseconds on one thread; {made}.", ""])


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
    (RESULTS / "work-precision.md").write_text(markdown(rows))
    plot(rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
