"""Steps to a tolerance: how well it is met, the gradients, and the memory.

    python benchmarks/adaptive.py                  all parts but memory
    python benchmarks/adaptive.py tolerances ...   some of: tolerances, decades, gradients, memory
    python benchmarks/adaptive.py tolerances=lorenz,sir   only these problems, or runs: memory=solve:50000

Writes results/adaptive.json, a run for each part. ``tolerances`` solves all problems of ``neuralfde.problems`` that
adaptive steps can solve (one Caputo derivative of orders up to 1). The error is that at the end, in units of
``atol + rtol |z|``; if it is far from 1, the largest error on the way is recorded too, and why the end is more
accurate. ``memory`` solves, and trains on, forced oscillations of several lengths, each in a separate process: a
million steps take a quarter of an hour, three to train; ``memory=solve:500`` repeats one of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from report.adaptive import summary
from report.record import Row, asked, here, known, put
from torch import Tensor

import neuralfde as nf
from neuralfde.cli.measuring import resident_mib
from neuralfde.problems import PROBLEMS, Problem, problem

METHODS = {"trapezoid": nf.Trapezoid(), "ABM(ahead=True)": nf.ABM(ahead=True)}
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
INSIDE = 1 / 30, 3.0  # what an error over its tolerance should be
NUMBERS = 1000  # of the state whose memory is measured: 64 × 32 in single precision
LENGTHS = {"solve": (500, 5000, 50_000), "training": (500, 5000, 50_000)}  # about 20 steps each
ONE = torch.ones(1, dtype=torch.float64)


def tolerances(names: str) -> list[Row]:
    """Error over tolerance for each problem, method and tolerance."""
    wanted = names.split(",") if names else list(PROBLEMS)
    found = [r for run in known("adaptive") if run["part"] == "tolerances" for r in run["rows"]]
    found = [r for r in found if r["problem"] not in wanted]
    for name in wanted:
        p = problem(name)
        if p.options or not isinstance(p.order, (float, Tensor)):
            continue  # several derivatives, an order above 1, or one that changes
        for method, scheme in METHODS.items():
            for rtol in TOLERANCES:
                began = time.process_time()
                s = nf.solve(p.func, p.z0, p.t, p.order, rtol=rtol, method=scheme)
                exact = p.solution()
                ratio = float(((s.ys[-1][: len(exact)] - exact).abs() / (rtol * (1 + exact.abs()))).max())
                row = {"problem": name, "method": method, "rtol": rtol, "ratio": ratio, "steps": s.stats.accepted}
                found.append({**row, "rejected": s.stats.rejected, "seconds": round(time.process_time() - began, 2)})
                if not INSIDE[0] <= ratio <= INSIDE[1]:
                    found[-1] |= explained(signed_errors(p, scheme, rtol, s.grid))
                print(found[-1], flush=True)
    return sorted(found, key=lambda r: list(PROBLEMS).index(r["problem"]))


def signed_errors(p: Problem, scheme: nf.schemes.Scheme, rtol: float, mesh: Tensor) -> Tensor:
    """Errors in units of the tolerance at forty times, (times, numbers); a solve to a tenth of it stands in for a
    solution that is known at the end alone."""
    at = torch.linspace(float(mesh[0]), float(mesh[-1]), 41, dtype=torch.float64)
    with torch.no_grad():
        z = nf.fdeint(p.func, p.z0, at, p.order, grid=mesh, method=scheme)
        if p.exact is None:
            close = nf.fdeint(p.func, p.z0, at, p.order, rtol=rtol / 10)
        else:
            close = torch.stack([p.exact(t) for t in at])
    z = z[:, : close.shape[1]]
    return (z - close) / (rtol * (1 + close.abs()))


def explained(errors: Tensor) -> Row:
    """The largest error on the way, and why that at the end is smaller, by what the worst number did."""
    worst = errors[:, int(errors.abs().amax(0).argmax())]
    most, late = float(worst.abs().max()), worst[len(worst) * 3 // 4 :]
    if most < 1e-6:
        why = "exact"
    elif float(late.min()) * float(late.max()) < 0 or float(late[-1].abs()) < float(late.abs().max()) / 10:
        why = "passes zero"
    else:
        why = "fades"
    return {"on the way": most, "why": why}


def decades() -> list[Row]:
    """``D^½ y = -y`` to T=1000, whose largest error over all times is known."""
    found = []
    for name, scheme in METHODS.items():
        s = nf.solve(_decay, ONE, 1000.0, 0.5, rtol=1e-5, method=scheme, stepper="single")
        ys = nf.fdeint(_decay, ONE, s.grid, 0.5, grid=s.grid, method=scheme)[:, 0]
        error = float((ys - torch.special.erfcx(s.grid.sqrt())).abs().max())
        row = {"method": name, "steps": s.stats.accepted, "rejected": s.stats.rejected, "largest error": error}
        found.append({**row, "evaluations": s.stats.evaluations, "smallest step": s.stats.smallest_step})
    uniform = nf.fdeint(_decay, ONE, torch.linspace(0, 1000, 20_001).double(), 0.5, steps=20_000, method="trapezoid")
    t = torch.linspace(0, 1000, 20_001).double()
    error = float((uniform[:, 0] - torch.special.erfcx(t.sqrt())).abs().max())
    return [*found, {"method": "trapezoid, uniform", "steps": 20_000, "largest error": error}]


def gradients() -> list[Row]:
    """The exact adjoint on the accepted mesh against autograd through its steps, a loss over off-mesh times."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()

    def func(t: Tensor, z: Tensor, u: Tensor) -> Tensor:
        return net(z) * u + torch.sin(t)

    z0, u = torch.randn(2, 3).double().requires_grad_(), torch.ones(3).double().requires_grad_()
    order = torch.tensor([0.4, 0.7, 1.0]).double().requires_grad_()
    times, found = torch.tensor([0.0, 0.2, 0.9, 2.0]).double(), []
    for name, scheme in METHODS.items():
        given = {"args": (u,), "params": list(net.parameters()), "method": scheme}
        if scheme.implicit:
            given["solver"] = nf.Newton(tol=1e-14)
        mesh = nf.solve(func, z0, times, order, rtol=1e-4, **given)
        for history, storage in (("full", "device"), ("exponentials", "device"), ("exponentials", "checkpoint")):
            kept = {**given, "grid": mesh.grid, "history": history}
            ours = nf.fdeint(func, z0, times, order, storage=storage, **kept)
            direct = nf.fdeint(func, z0, times, order, adjoint="direct", **kept)
            inputs = [z0, u, order, *net.parameters()]
            pairs = zip(*[torch.autograd.grad(y.square().sum(), inputs) for y in (ours, direct)], strict=True)
            worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
            row = {"method": name, "history": history, "storage": storage, "steps": mesh.stats.accepted}
            found.append({**row, "relative difference": worst})
    return found


def memory(runs: str) -> list[Row]:
    """Resident memory of a solve, and of a training step that keeps checkpoints, in processes of their own."""
    every = [f"{kind}:{end}" for kind, ends in LENGTHS.items() for end in ends]
    found = {r["run"]: r for run in known("adaptive") if run["part"] == "memory" for r in run["rows"] if "run" in r}
    for each in runs.split(",") if runs else every:
        kind, end = each.split(":")
        told = subprocess.run(
            [sys.executable, __file__, "--one", kind, end], capture_output=True, check=True, text=True
        )
        steps, more, resident, seconds = told.stdout.split()
        row = {"run": each, "kind": kind, "steps": int(steps), "above a short one, MiB": float(more)}
        found[each] = {**row, "resident MiB": float(resident), "numbers": NUMBERS, "seconds": float(seconds)}
        print(found[each], flush=True)
    return [found[name] for name in every if name in found]


def _one(kind: str, end: float) -> None:
    """Forced oscillations, whose steps are as many as they are long."""
    k = torch.ones((), dtype=torch.float64, requires_grad=kind != "solve")
    z0 = torch.linspace(0, 1, NUMBERS, dtype=torch.float64)

    def once(t: float) -> int:
        s = nf.solve(
            lambda t, z, k: torch.sin(t) - k * z, z0, t, 0.6, args=(k,), rtol=1e-4, storage="checkpoint",
            method=nf.ABM(ahead=True), history="exponentials", max_steps=2_000_000,
        )  # fmt: skip
        if kind != "solve":
            s.ys[-1].sum().backward()
        return s.stats.accepted

    once(1.0)
    before, began = resident_mib(), time.process_time()
    steps, after = once(end), resident_mib()
    print(steps, round(after - before, 1), round(after, 1), round(time.process_time() - began, 1))


def _decay(t: Tensor, z: Tensor) -> Tensor:
    return -z


PARTS: dict[str, Callable[[str], list[Row]]] = {
    "tolerances": tolerances,
    "decades": lambda _: decades(),
    "gradients": lambda _: gradients(),
    "memory": memory,
}


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--one"]:
        return _one(sys.argv[2], float(sys.argv[3]))
    for name in asked(__doc__, PARTS, alone=["memory"]):
        part, _, some = name.partition("=")
        put("adaptive", part, PARTS[part](some), **here(), command=f"python benchmarks/adaptive.py {part}")
    print(summary())
    return None


if __name__ == "__main__":
    main()
