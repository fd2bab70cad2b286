"""Work against precision over four decades of time, compared with pycaputo's adaptive steps and with uniform grids.

``pip install pycaputo``, ``python benchmarks/adaptive_work.py``: writes the part ``work`` of results/adaptive.json.

Four problems with closed solutions on [0, 1000]. The error of a solver is the largest at its own grid points from
t = 0.1 on, relative to ``1 + |z|``. Work is the number of all evaluations of ``func``: in rejected steps, march and
solve, corrections and iterations; ours are counted with ``stepper="single"``. Seconds are processor time on one thread
with default options, the least of several runs if they are short. pycaputo has three adaptive controllers; its methods
for Caputo's derivative accept one, after Jannelli, and refuse the others. For every solver the best of its methods at
each error counts. A method that took more than ``LONGEST`` seconds is not run for smaller errors, and pycaputo is
stopped after twice as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from math import pi, sqrt
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"  # before numpy and torch read them

import numpy as np  # noqa: E402
import torch  # noqa: E402
from pycaputo.controller import make_jannelli_controller  # noqa: E402
from pycaputo.derivatives import CaputoDerivative  # noqa: E402
from pycaputo.events import StepAccepted  # noqa: E402
from pycaputo.fode.caputo import PECE, Trapezoidal  # noqa: E402
from pycaputo.stepping import evolve  # noqa: E402
from report.adaptive import work  # noqa: E402
from report.record import Row, here, put  # noqa: E402
from torch import Tensor  # noqa: E402

import neuralfde as nf  # noqa: E402

END, FIRST, LONGEST, SHORT = 1000.0, 0.1, 2.5, 0.5
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
CHANGES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # for pycaputo: how much a step may change the state, as it scales that
UNIFORM = (1000, 4000, 16_000, 32_000)


@dataclass(frozen=True)
class Case:
    """One equation: ``func(t, z, sin, sqrt, arctanh)`` for tensors and arrays, and its solution at times (n,)."""

    name: str
    order: float
    z0: tuple[float, ...]
    func: Callable[..., Any]
    exact: Callable[[Tensor], Tensor]
    jacobian: Callable[..., Any] | None = None  # pycaputo's implicit methods need that of a system

    def error(self, t: Tensor, z: Tensor) -> float:
        t, z = t[t >= FIRST], z[t >= FIRST]
        exact = self.exact(t).reshape(z.shape)
        return float(((z - exact).abs() / (1 + exact.abs())).max())


def _relaxed(order: float, rate: complex) -> Callable[[Tensor], Tensor]:
    return lambda t: nf.mittag_leffler(torch.tensor(rate) * t**order, order)


def _spiral(t: Any, z: Any) -> Any:
    turned = z.flip(0) if isinstance(z, Tensor) else z[::-1]
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64) if isinstance(z, Tensor) else np.array([1.0, -1.0])
    return sign * turned - 0.5 * z


def _algebraic(t: Any, z: Any) -> Any:
    """``z = 1/(1+t)``, whose half derivative is known, with ``u + u³ - z - z³`` added to it."""
    of = torch if isinstance(z, Tensor) else np
    u = 1 / (1 + t)
    half = -(of.sqrt(t) * u + of.arctanh(of.sqrt(t * u)) * u**1.5) / sqrt(pi)
    return half + u + u**3 - z - z**3


CASES = (
    Case("relaxation, β = 0.5", 0.5, (1.0,), lambda t, z: -z, lambda t: torch.special.erfcx(t.sqrt())),
    Case("saturation, β = 0.8", 0.8, (0.0,), lambda t, z: 1 - z, lambda t: 1 - _relaxed(0.8, -1.0)(t)),
    Case("spiral, β = 0.7", 0.7, (1.0, 0.0), _spiral,
         lambda t: torch.view_as_real(_relaxed(0.7, -0.5 - 1j)(t.to(torch.complex128))),
         lambda t, y: np.array([[-0.5, 1.0], [-1.0, -0.5]])),
    Case("algebraic, nonlinear, β = 0.5", 0.5, (1.0,), _algebraic, lambda t: 1 / (1 + t)),
)  # fmt: skip


def adaptive(method: nf.schemes.Scheme) -> Callable[[Case, float], tuple[Tensor, Tensor, int, float]]:
    def run(case: Case, rtol: float) -> tuple[Tensor, Tensor, int, float]:
        z0 = torch.tensor(case.z0, dtype=torch.float64)
        solver = nf.Newton(tol=1e-2 * rtol) if method.implicit else None
        with torch.inference_mode():
            s, seconds = timed(
                lambda: nf.solve(case.func, z0, END, case.order, rtol=rtol, method=method, solver=solver)
            )
            one = nf.solve(case.func, z0, END, case.order, rtol=rtol, method=method, solver=solver, stepper="single")
            ys = nf.fdeint(case.func, z0, s.grid, case.order, grid=s.grid, method=method, solver=solver)
        return s.grid, ys, one.stats.evaluations, seconds

    return run


def uniform(method: str) -> Callable[[Case, int], tuple[Tensor, Tensor, int, float]]:
    def run(case: Case, steps: int) -> tuple[Tensor, Tensor, int, float]:
        z0, t = torch.tensor(case.z0, dtype=torch.float64), torch.linspace(0, END, steps + 1, dtype=torch.float64)
        solver = nf.Newton(tol=1e-8) if method == "bdf2" else None
        given: dict[str, Any] = {"steps": steps, "method": method, "solver": solver}
        with torch.inference_mode():
            ys, seconds = timed(lambda: nf.fdeint(case.func, z0, t, case.order, **given))
            few = nf.solve(case.func, z0, END / 16, case.order, **{**given, "steps": steps // 16}, stepper="single")
        return t, ys, 16 * few.stats.evaluations, seconds

    return run


def with_pycaputo(kind: type, **more: Any) -> Callable[[Case, float], tuple[Tensor, Tensor, int, float]]:
    def run(case: Case, change: float) -> tuple[Tensor, Tensor, int, float]:
        control = make_jannelli_controller(0.0, END, None, dtmin=1e-9, chimin=change / 10, chimax=change)
        calls, times, states = [0], [0.0], [np.array(case.z0)]

        def source(t: float, y: np.ndarray) -> np.ndarray:
            calls[0] += 1
            return case.func(np.float64(t), y)

        def march() -> None:
            began, z0 = time.process_time(), np.array(case.z0)
            ds = (CaputoDerivative(case.order),) * len(z0)
            jacobian = {} if kind is PECE else {"source_jac": case.jacobian}
            method = kind(ds=ds, control=control, source=source, y0=(z0,), **jacobian, **more)
            for event in evolve(method, dtinit=1e-6):
                if isinstance(event, StepAccepted):
                    times.append(event.t)
                    states.append(event.y)
                if time.process_time() - began > 2 * LONGEST:
                    raise TimeoutError

        _, seconds = timed(march)
        return torch.tensor(times), torch.from_numpy(np.stack(states)), calls[0], seconds

    return run


def timed(job: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return job(), time.process_time() - began


SOLVERS: dict[str, dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "tolerance": {
        "trapezoid": (adaptive(nf.Trapezoid()), TOLERANCES),
        "ABM(ahead=True)": (adaptive(nf.ABM(ahead=True)), TOLERANCES),
    },
    "uniform": {m: (uniform(m), UNIFORM) for m in ("abm", "bdf2")},
    "pycaputo": {
        "PECE 1": (with_pycaputo(PECE, corrector_iterations=1), CHANGES),
        "PECE 2": (with_pycaputo(PECE, corrector_iterations=2), CHANGES),
        "Trapezoidal": (with_pycaputo(Trapezoidal), CHANGES),
    },
}


def main() -> None:
    torch.set_num_threads(1)
    rows: list[Row] = []
    adaptive(nf.Trapezoid())(CASES[0], 0.1)  # what is loaded at the first call
    for case in CASES:
        for solver, methods in SOLVERS.items():
            for method, (run, settings) in methods.items():
                for setting in settings:
                    row: Row = {"problem": case.name, "solver": solver, "method": method, "setting": setting}
                    try:
                        t, z, evaluations, seconds = run(case, setting)
                        again = range(9 if seconds < SHORT / 10 else 2 if seconds < SHORT else 0)
                        seconds = min([seconds, *(run(case, setting)[-1] for _ in again)])
                    except Exception as error:  # a peer's controller may fail in its own ways
                        rows.append({**row, "failed": f"{type(error).__name__}: {error}"[:120]})
                        print(rows[-1], flush=True)
                        break
                    found = {"steps": len(t) - 1, "error": case.error(t, z), "evaluations": evaluations}
                    rows.append({**row, **found, "seconds": round(seconds, 4)})
                    print(rows[-1], flush=True)
                    if seconds > LONGEST:
                        break
    put("adaptive", "work", rows, **here(), pycaputo=version("pycaputo"), command="python benchmarks/adaptive_work.py")
    print(work())


if __name__ == "__main__":
    main()
