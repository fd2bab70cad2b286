"""Accuracy: orders of convergence, a published table, weights and gradients. ``make bench-accuracy``.

``python benchmarks/accuracy.py [orders] [dff] [weights] [gradients] [estimates]`` writes these parts of
``results/accuracy.json``, without arguments all of them.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import mpmath as mp
import torch
from report.record import asked, here, put

from neuralfde import FixedPoint, InputError, fdeint, solve
from neuralfde.door.names import METHODS
from neuralfde.problems import problem
from neuralfde.weights import uniform

ORDERS = (0.2, 0.5, 0.8, 1.0)
#: Where the next power of h in the error is only a little higher, the order shows late: for abm the error is a series
#: in h^{1+β}, h^{1+2β}, h^{1+3β}, …, for L1 on a graded grid the gap is β again. Finer grids there.
LATE = {
    ("abm", 0.2, False): 20480,
    ("abm", 0.2, True): 3200,
    ("l1", 0.2, True): 1600,
    ("flmm-trapezoid", 0.8, False): 2560,
}


def grading(method: str, order: float) -> float:
    """What brings a generic solution to the full order of the scheme."""
    return (2 - order) / order if method.startswith("l1") else 2.5 / (1 + order)


def theory(method: str, order: float, kind: str, graded: bool) -> float:
    scheme = METHODS[method]
    if graded and kind == "generic" and method in ("trapezoid", "l1"):
        return scheme.expected_order(order, smooth=True)
    return scheme.expected_order(order, kind == "smooth")


def observed(method: str, order: float, kind: str, graded: bool) -> tuple[int, list[float]]:
    p = problem("smooth" if kind == "smooth" else "relaxation", order=order)
    steps = finest(method, order, graded)
    options = {"solver": FixedPoint(tol=1e-12)} if METHODS[method].implicit else {}
    if graded:
        options["grading"] = grading(method, order)
    with torch.no_grad():
        pair = [
            p.error(fdeint(p.func, p.z0, p.t, order, steps=n, method=method, **options)) for n in (steps // 2, steps)
        ]
    return steps, pair


def finest(method: str, order: float, graded: bool) -> int:
    """The number of steps the order is read off at, together with half of it."""
    usual = 400 if graded else 1280 if method in ("bdf2", "flmm-trapezoid") else 640
    return LATE.get((method, order, graded), usual)


def orders(grids: tuple[bool, ...] = (False, True)) -> list[dict]:
    rows = []
    for method in METHODS:
        for graded in grids:
            for kind in ("smooth", "generic"):
                for order in ORDERS:
                    try:
                        steps, errors = observed(method, order, kind, graded)
                    except InputError:
                        continue  # this scheme has no graded grids
                    print(f"{method} {kind} {order} {errors}", flush=True)
                    exact = errors[-1] < 1e-13  # the solution lies in the space the rule is exact for
                    rate = math.nan if exact else math.log2(errors[-2] / errors[-1])
                    want = theory(method, order, kind, graded)
                    rows.append(
                        {
                            "method": method,
                            "grid": f"graded r={grading(method, order):.2f}" if graded else "uniform",
                            "solution": kind,
                            "order β": order,
                            "theory": want,
                            "observed": "exact" if exact else round(rate, 3),
                            "off": 0.0 if exact else round(rate - want, 3),
                            "steps": steps,
                            "error": f"{errors[-1]:.3e}",
                        }
                    )
    return rows


def dff() -> list[dict]:
    printed = {
        0.25: (2.50e-1, 1.81e-2, 3.61e-3, 1.45e-3, 6.58e-4, 2.97e-4),
        1.25: (5.53e-3, 1.59e-3, 4.33e-4, 1.14e-4, 2.97e-5, 7.66e-6),
    }
    rows = []
    for order, values in printed.items():
        p = problem("diethelm-ford-freed", order=order)
        for k, value in enumerate(values):
            error = p.error(fdeint(p.func, p.z0, 1.0, order, steps=10 * 2**k, method="abm", **p.options))
            same = f"{error:.2e}" == f"{value:.2e}"
            rows.append(
                {"β": order, "h": f"1/{10 * 2**k}", "printed": f"{value:.2e}", "ours": f"{error:.4e}", "same": same}
            )
    return rows


def weights(steps: int = 1_000_000) -> list[dict]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.special.l1 import l1_by_branch_cut, l1_by_recurrence

    lags = (1, 2, 3, 10, 31, 32, 33, 100, 4095, 65_536, 524_289, 999_999)
    rows = []
    mp.mp.dps = 60
    for order in (0.05, 0.2, 0.5, 0.8, 0.99, 1.0):
        beta, b = torch.tensor([order], dtype=torch.float64), mp.mpf(order)
        rectangle = uniform.rectangle(beta, 1.0, steps)[:, 0]
        trapezoid = uniform.trapezoid(beta, 1.0, steps)[0][:, 0]
        binomial = uniform.grunwald_letnikov(beta, 1.0, steps)[:, 0]
        exact = {
            "predictor": (rectangle, lambda m, b=b: (mp.mpf(m) ** b - mp.mpf(m - 1) ** b) / mp.gamma(b + 1)),
            "trapezoid": (
                trapezoid,
                lambda m, b=b: (
                    (mp.mpf(m + 1) ** (b + 1) - 2 * mp.mpf(m) ** (b + 1) + mp.mpf(m - 1) ** (b + 1)) / mp.gamma(b + 2)
                ),
            ),
            "gl": (binomial, lambda m, b=b: mp.gamma(m + b) / mp.gamma(b) / mp.gamma(m + 1)),
        }
        early = l1_by_recurrence(order, 101)  # as far as the recurrence is quick

        def l1(m: int, order: float = order, b: mp.mpf = b, early: list = early) -> mp.mpf:
            if m < len(early):
                return mp.gamma(2 - b) * early[m]
            with mp.workdps(25):
                return mp.gamma(2 - b) * (1 if order == 1 else l1_by_branch_cut(order, m))

        exact["l1"] = (uniform.l1(beta, 1.0, steps)[:, 0], l1)
        for name in ("bdf2", "flmm-trapezoid"):
            true = multistep(name, b, lags)
            exact[name] = (METHODS[name].kernel(beta, 1.0, steps).weights[0, :, 0], true.__getitem__)
        for name, (w, true) in exact.items():
            worst = max(abs(mp.mpf(float(w[m])) / true(m) - 1) for m in lags)
            rows.append({"weights": name, "β": order, "N": steps, "worst relative error": mp.nstr(worst, 3)})
    return rows


def multistep(name: str, b: mp.mpf, lags: tuple[int, ...]) -> dict[int, mp.mpf]:
    """Coefficients of ``δ(ξ)^{-β}`` by the recurrence that its logarithmic derivative gives."""
    if name == "bdf2":  # δ y' = -β δ' y with δ = 3/2 - 2ξ + ξ²/2
        start, scale = mp.mpf(2) / 3, mp.mpf(2) / 3
        one, two = (lambda m: 2 * m + 2 * b), (lambda m: -(m - 1) / mp.mpf(2) - b)
    else:  # (1 - ξ²) y' = 2β y with y = ((1+ξ)/(1-ξ))^β, times 2^{-β}
        start, scale = mp.mpf(1) / 2, mp.mpf(1)
        one, two = (lambda m: 2 * b), (lambda m: mp.mpf(m - 1))
    before, now, found = mp.mpf(0), start**b, {}
    for m in range(max(lags) + 1):
        if m in lags:
            found[m] = now
        before, now = now, scale * (one(m) * now + two(m) * before) / (m + 1)
    return found


def estimates() -> list[dict]:
    """What the two estimates of the error say, over the error."""
    rows = []
    for name in ("relaxation", "smooth", "rotation", "brusselator", "riccati", "xue-bai-linear", "saturation"):
        p = problem(name)
        for method in ("predictor", "abm", "trapezoid", "gl", "l1", "bdf2"):
            row: dict = {"problem": name, "T": p.t, "method": method, "steps": 160}
            for title, how in (("embedded / error", "embedded"), ("doubled / error", True)):
                found = solve(p.func, p.z0, p.t, p.order, steps=160, method=method, estimate_error=how)
                error = p.error(found.ys[-1])
                known = len(p.solution())
                row |= {"error": f"{error:.1e}", title: f"{float(found.error[-1][:known].max()) / error:.2g}"}
            rows.append(row)
    return rows


def gradients() -> list[dict]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.orders.cases import CASES
    from tests.orders.gradients import differences, distance, projected
    from tests.orders.gradients import gradients as found

    rows = []
    for case in CASES:
        exact = found(case, "exact")
        direct = distance(exact, found(case, "direct"))
        central = distance(projected(exact), differences(case))
        for name in exact:
            rows.append(
                {
                    "case": case.name,
                    "method": case.method,
                    "gradient of": name,
                    "from direct": f"{direct[name]:.1e}",
                    "from differences": f"{central[name]:.1e}",
                }
            )
    return rows


PARTS = {"orders": orders, "dff": dff, "weights": weights, "gradients": gradients, "estimates": estimates}


def main() -> None:
    for name in asked(__doc__, PARTS):
        start = time.perf_counter()
        rows = PARTS[name]()
        put("accuracy", name, rows, **here(), command=f"python benchmarks/accuracy.py {name}")
        print(f"{name}: {len(rows)} rows in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
