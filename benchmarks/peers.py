"""One training step, compared with torchfde (of the paper) and torchdiffeq (at order 1, without memory), in one run.

    pip install torchdiffeq git+https://github.com/kangqiyu/torchfde
    python benchmarks/peers.py

A perceptron 32-64-32 with tanh on a batch of 64, float32, order 0.6, explicit steps, one thread. Processor seconds, the
least of several turns; memory is the peak of what was allocated. The error of a gradient is relative to autograd
through every step of the same package. Writes results/peers.json.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import torch
import torchdiffeq
import torchfde
from core import MLP
from report.peers import peers
from report.record import here, put
from torch import Tensor, nn

from neuralfde import fdeint
from neuralfde.cli.measuring import least_seconds, peak_mib

STEPS, T, ORDER = 400, 4.0, 0.6
Solve = Callable[[nn.Module, Tensor, int], Tensor]


def ours(adjoint: str) -> Solve:
    return lambda f, z0, n: fdeint(f, z0, T, ORDER, steps=n, adjoint=adjoint)


def of_torchfde(call: Callable[..., Tensor], method: str) -> Solve:
    return lambda f, z0, n: call(f, z0, torch.tensor(ORDER), t=T, step_size=T / n, method=method)


def of_torchdiffeq(call: Callable[..., Tensor]) -> Solve:
    ends = torch.tensor([0.0, T])
    return lambda f, z0, n: call(f, z0, ends, method="euler", options={"step_size": T / n})[-1]


#: package, equation, gradient: the solve
SOLVES: dict[tuple[str, str, str], Solve] = {
    ("neuralfde", "order 0.6", "exact adjoint"): ours("exact"),
    ("neuralfde", "order 0.6", "autograd"): ours("direct"),
    ("torchfde", "order 0.6", "its adjoint"): of_torchfde(torchfde.fdeint_adjoint, "predictor-f"),
    ("torchfde", "order 0.6", "autograd"): of_torchfde(torchfde.fdeint, "predictor"),
    ("torchdiffeq", "order 1, no memory", "its adjoint"): of_torchdiffeq(torchdiffeq.odeint_adjoint),
    ("torchdiffeq", "order 1, no memory", "autograd"): of_torchdiffeq(torchdiffeq.odeint),
}


def measure() -> list[dict]:
    torch.manual_seed(0)
    net, z0 = MLP(), torch.randn(64, 32)

    def gradient(solve: Solve) -> Tensor:
        net.zero_grad()
        solve(net, z0, STEPS).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    found = {name: gradient(solve) for name, solve in SOLVES.items()}
    jobs = {name: (lambda s=solve: gradient(s)) for name, solve in SOLVES.items()}
    seconds = least_seconds(jobs, repeats=3, now=time.process_time)
    rows = []
    for (package, equation, way), job in jobs.items():
        truth = found[package, equation, "autograd"]
        error = float((found[package, equation, way] - truth).norm() / truth.norm())
        row = {"package": package, "equation": equation, "gradient": way, "steps": STEPS, "error": error}
        took = {"seconds": seconds[package, equation, way], "mib": peak_mib(job, torch.device("cpu"))}
        rows.append({**row, **took})
        print(rows[-1], flush=True)
    return rows


def revision(package: ModuleType) -> str:
    """The commit that a package was installed from, or of the clone that holds it."""
    with contextlib.suppress(PackageNotFoundError):
        told = json.loads(distribution(package.__name__).read_text("direct_url.json") or "{}")
        if "vcs_info" in told:
            return str(told["vcs_info"]["commit_id"][:7])
    path = Path(str(package.__file__)).resolve()
    ask = functools.partial(subprocess.run, check=True, capture_output=True, text=True, cwd=path.parent)
    ask(["git", "ls-files", "--error-unmatch", path.name])
    return str(ask(["git", "rev-parse", "--short=7", "HEAD"]).stdout.strip())


def main() -> None:
    torch.set_num_threads(1)
    about = {"torchdiffeq": torchdiffeq.__version__, "torchfde": revision(torchfde)}
    put("peers", "perceptron, CPU", measure(), **here(), **about, command="python benchmarks/peers.py")
    print(peers())


if __name__ == "__main__":
    main()
