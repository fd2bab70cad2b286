"""Error against time, compared with pycaputo and FDEint (both from PyPI), on three problems, in one run.

``pip install pycaputo FDEint``, ``python benchmarks/work_precision.py``: writes ``results/work-precision.json``; with
the names of problems only these are measured again.

Each problem is solved as one trajectory and as an ensemble of 256, about the size of a batch in training, whose members
have different initial values (or rates, for the linear problem). Every solver gets the same equations, order and
interval in float64; the error is the largest over all members at the end. An equation is written once and runs as a
function made before the clock starts: in torch for neuralfde and FDEint, in numpy for pycaputo, which would otherwise
pay for conversions. Each solver gets the ensemble in the layout that is fastest for it. pycaputo asks for one
derivative for each equation, and computes weights for each; a single one for all equations happens to be accepted and
is much faster, so it is measured as a separate solver.

All run on one thread, those in torch in inference mode; a point is the least of at least three runs in processor
seconds, taken in turns, so that a slow minute of the machine affects every solver. A method that took more than a
second is not run on finer grids.
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
from report import record  # noqa: E402
from report.work_precision import all_errors, summary  # noqa: E402
from torch import Tensor  # noqa: E402

from neuralfde import ABM, FixedPoint, Newton, fdeint, mittag_leffler  # noqa: E402
from neuralfde.problems import problem  # noqa: E402

REFERENCES = Path(__file__).parent / "references.json"
PART = "three problems"
STEPS = (5, 7, 10, 14, 20, 50, 100, 200, 400, 800)
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
    found = json.loads(REFERENCES.read_text())[name]
    z0, end = (torch.tensor(found[k], dtype=torch.float64)[:members].T.contiguous() for k in ("z0", "z"))
    return Case(name, p.order, p.t, equation, z0, end)


def ours(method: str | ABM, solver: type[FixedPoint | Newton] | None = None) -> Callable[[Case, int], Tensor]:
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
        "flmm-trapezoid, newton": ours("flmm-trapezoid", Newton),
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


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or list(PROBLEMS)
    found = measure([PROBLEMS[name](m) for m in (MEMBERS, 1) for name in wanted])
    if sys.argv[1:]:
        found += [r for r in record.rows("work-precision", PART) if r["problem"] not in wanted]
    found.sort(key=lambda r: (-r["members"], list(PROBLEMS).index(r["problem"])))
    versions = {name: version(name) for name in ("numpy", "pycaputo", "FDEint")}
    record.put(
        "work-precision", PART, found, **record.here(), **versions, command="python benchmarks/work_precision.py"
    )
    print(f"{summary()}\n\n{all_errors()}")


if __name__ == "__main__":
    main()
