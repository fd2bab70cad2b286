"""The figures of the core in one run: gradient error, speed on the CPU, growth of the cost, memory, import.

    python benchmarks/core.py                 # everything, about three minutes
    python benchmarks/core.py --only speed    # one part

Writes benchmarks/results/core.json. Times are ratios within one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from report.record import here, put
from report.solver import core
from torch import Tensor, nn

from neuralfde import FFT, Full, Window, fdeint
from neuralfde.cli.measuring import least_seconds, resident_mib
from neuralfde.door.names import METHODS

F64 = torch.float64


class MLP(nn.Module):
    """32-64-32 with a tanh."""

    def __init__(self, width: int = 32, hidden: int = 64, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, hidden, dtype=dtype), nn.Tanh(), nn.Linear(hidden, width, dtype=dtype)
        )

    def forward(self, t: Tensor, z: Tensor, u: Tensor | float = 0.0) -> Tensor:
        """The slope at z, plus a control input."""
        return self.net(z) + u


def gradient_errors() -> dict:
    """Exact against direct in float64 over schemes × history × structure × loss."""
    torch.manual_seed(0)
    worst: dict[str, float] = {"explicit": 0.0, "implicit": 0.0}
    cases = 0
    net = MLP(3, 8, F64)
    for name, scheme in METHODS.items():
        for history in (Full(), Full(8), FFT(4, 2), Window(7)):
            for nested in (False, True):
                for t in (1.0, torch.tensor([0.0, 0.25, 0.7, 1.0], dtype=F64)):
                    found = [_gradient(net, name, history, nested, t, a) for a in ("exact", "direct")]
                    error = float((found[0] - found[1]).norm() / found[1].norm())
                    kind = "implicit" if scheme.implicit else "explicit"
                    worst[kind] = max(worst[kind], error)
                    cases += 1
    return {"worst relative error": worst, "cases": cases, "target": {"explicit": 1e-12, "implicit": 1e-10}}


def _gradient(net: MLP, method: str, history: object, nested: bool, t: object, adjoint: str) -> Tensor:
    z = torch.linspace(-1, 1, 6, dtype=F64).reshape(2, 3).requires_grad_()
    u = torch.full((3,), 0.3, dtype=F64, requires_grad=True)
    beta = torch.tensor(0.6, dtype=F64, requires_grad=True)
    f = (lambda s, x, u: {"a": net(s, x["a"], u), "b": (-x["b"][0],)}) if nested else net
    z0 = {"a": z, "b": (z.sum(0),)} if nested else z
    y = fdeint(
        f, z0, t, beta, args=(u,), params=list(net.parameters()), method=method, history=history, steps=40,
        adjoint=adjoint,
    )  # fmt: skip
    parts = [y["a"], y["b"][0]] if nested else [y]
    loss = sum((p * torch.arange(p.numel(), dtype=F64).reshape(p.shape).cos()).sum() for p in parts)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [z, u, beta, *net.parameters()])])


def analytic() -> list[dict]:
    """Convergence of value, ∂z/∂λ and ∂z/∂β of E_β(λ t^β) at t = 1, λ = -1 to the values of mpmath.

    The error is C(β) h^p(β), so that of ∂z/∂β is h^p (C' + C p' ln h): where p depends on β it is divided by ln(1/h)
    before its order is read off.
    """
    exact = {
        0.3: (0.456594408330, 0.257722663434, -0.145254250880),
        0.5: (0.427583576156, 0.273212014784, -0.144070581343),
        0.7: (0.399611978116, 0.300561923413, -0.132926289765),
        0.9: (0.376066021425, 0.342387553085, -0.0969861613397),
    }
    rows = []
    for method in ("predictor", "abm", "trapezoid", "gl", "l1"):
        for beta, want in exact.items():
            errors = []
            scheme = METHODS[method]
            order = scheme.expected_order(beta, smooth=False)
            varies = scheme.expected_order(beta - 0.05, smooth=False) != order
            for steps in (1280, 2560):
                b = torch.tensor(beta, dtype=F64, requires_grad=True)
                k = torch.tensor(-1.0, dtype=F64, requires_grad=True)
                z = fdeint(
                    lambda t, z, k: k * z, torch.ones((), dtype=F64), 1.0, b, args=(k,), method=method, steps=steps
                )
                got = (z.detach(), *torch.autograd.grad(z, [k, b]))
                error = [abs(float(g) - w) for g, w in zip(got, want, strict=True)]
                error[2] /= math.log(steps) if varies else 1.0
                errors.append(error)
            rates = [math.log2(a / b) for a, b in zip(*errors, strict=True)]
            rows.append({"method": method, "beta": beta, "declared": order, "observed (z, ∂λ, ∂β)": rates})
    return rows


def textbook(net: MLP, z0: Tensor, beta: float, h: float, steps: int) -> Tensor:
    """The loop of a textbook: one multiply-add for each term of the history."""
    gain = h**beta / math.gamma(beta + 1)
    zero = torch.zeros(())
    z, slopes = z0, []
    for n in range(1, steps + 1):
        slopes.append(net(zero, z))
        z = z0
        for j, v in enumerate(slopes):
            z = z + gain * ((n - j) ** beta - (n - 1 - j) ** beta) * v
    return z


def speed() -> dict:
    """N = 2000, MLP 32-64-32, batch 64, float32, forward and backward."""
    torch.manual_seed(0)
    net, z0, beta, steps, h = MLP(), torch.randn(64, 32), 0.5, 2000, 1e-3
    weights = list(net.parameters())
    zero = torch.zeros(())

    def bare() -> None:
        with torch.no_grad():
            for _ in range(steps):
                net(zero, z0)
        for _ in range(steps):
            z = z0.detach().requires_grad_()
            torch.autograd.grad(net(zero, z), [z, *weights], z0)

    def ours(n: int = steps) -> None:
        fdeint(net, z0.clone().requires_grad_(), n * h, beta, step=h).sum().backward()

    def loop() -> None:
        textbook(net, z0.clone().requires_grad_(), beta, h, steps).sum().backward()

    ours(), bare()
    t_bare, t_ours = least_seconds({"bare": bare, "ours": ours}, 5).values()
    t_loop = least_seconds({"loop": loop}, 1)["loop"]
    row = {
        "bare kernels s": t_bare, "ours s": t_ours, "textbook loop s": t_loop,
        "ours / bare": t_ours / t_bare, "loop / ours": t_loop / t_ours, "threads": torch.get_num_threads(),
        "target": {"ours / bare": 1.4, "loop / ours": 12, "FDEint / ours at N=1000": 20},
    }  # fmt: skip
    return row | _fdeint_pypi(net, z0, beta, h, lambda: ours(1000))


def _fdeint_pypi(net: MLP, z0: Tensor, beta: float, h: float, ours: Callable[[], None]) -> dict:
    try:
        from FDEint import FDEint
    except ImportError:
        return {"FDEint / ours at N=1000": "FDEint is not installed (pip install FDEint)"}
    n = 1000
    grid = torch.linspace(0, n * h, n + 1)

    def peer() -> None:
        FDEint(lambda t, y: net(t, y), grid, z0.clone().requires_grad_(), beta, h=h)[:, -1].sum().backward()

    try:
        t_peer, t_ours = least_seconds({"peer": peer, "ours": ours}, 2).values()
    except Exception as error:  # the peer's call changes between releases; a failure is a finding, not a crash
        return {"FDEint / ours at N=1000": f"failed: {error!r}"}
    return {"FDEint s at N=1000": t_peer, "ours s at N=1000": t_ours, "FDEint / ours at N=1000": t_peer / t_ours}


def growth() -> dict:
    """Cost against N with a cheap right-hand side, state of 64 numbers, history by FFT."""
    rows = []
    for steps in (1000, 3162, 10_000, 31_623, 100_000):
        z0 = torch.randn(64)

        def job(z0: Tensor = z0, steps: int = steps) -> None:
            fdeint(lambda t, z: -z, z0.clone().requires_grad_(), 1.0, 0.5, steps=steps, history="fft").sum().backward()

        job() if steps == 1000 else None
        rows.append({"N": steps, "s": least_seconds({"solve": job}, 2 if steps < 50_000 else 1)["solve"]})
    x = torch.log(torch.tensor([float(r["N"]) for r in rows]))
    y = torch.log(torch.tensor([r["s"] for r in rows]))
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return {"rows": rows, "log-log slope": slope, "target": 1.15}


MEMORY = """
import sys, torch
sys.path.insert(0, {path!r})
from neuralfde import fdeint
from neuralfde.cli.measuring import resident_mib
from core import MLP
steps, batch = {steps}, 4096
net = MLP(); z0 = torch.randn(batch, 32)

fdeint(net, z0.clone().requires_grad_(), 1.0, 0.5, steps=8, history="full", storage="device").sum().backward()
before = resident_mib()
fdeint(net, z0.clone().requires_grad_(), 1.0, 0.5, steps=steps, history="full", storage="device").sum().backward()
print((resident_mib() - before) * 2**20, steps * z0.numel() * 4)
"""


def memory() -> dict:
    """Growth of the peak resident size over one training step with full + device, in a process of its own."""
    code = MEMORY.format(path=str(Path(__file__).parent), steps=2000)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    extra, rows = round(float(out[0])), int(out[1])
    return {"N·d·itemsize bytes": rows, "extra bytes": extra, "ratio": extra / rows, "target": 1.1}


def imports() -> dict:
    """What importing the package adds to torch."""
    code = (
        "import sys, time, torch; before = set(sys.modules); start = time.perf_counter(); import neuralfde; "
        "took = time.perf_counter() - start; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names); "
        "print(took, sorted(new - {'neuralfde', 'torch'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    seconds, modules = out.strip().split(" ", 1)
    return {"seconds after torch": float(seconds), "further packages": modules}


PARTS = {f.__name__: f for f in (gradient_errors, analytic, speed, growth, memory, imports)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(PARTS), action="append")
    options = parser.parse_args()
    for name in options.only or PARTS:
        print(f"{name} …", flush=True)
        found = PARTS[name]()
        print(json.dumps(found, indent=1, default=str, ensure_ascii=False), flush=True)
        about = here() | {"command": f"python benchmarks/core.py --only {name}"}
        put("core", name, found if isinstance(found, list) else [found], **about)
    print(core())
    print(f"peak memory of this process: {resident_mib():.0f} MiB")


if __name__ == "__main__":
    main()
