"""One training step on one GPU, compared with torchfde and torchdiffeq, and where our time goes.

    git clone https://github.com/kangqiyu/torchfde CLONE && pip install torchdiffeq
    python benchmarks/peers_gpu.py --torchfde CLONE --out OUT            # under two minutes on an H200
    python benchmarks/peers_gpu.py --torchfde CLONE --out OUT --quick    # small sizes; also without a GPU

The paper's image block (batch 128, order 0.5, h = 0.1) and two perceptrons with tanh (32-64-32 on a batch of 64, 4-64-4
on a batch of 256, order 0.6, h = 0.01), explicit steps in float32. torchfde solves the same equation, torchdiffeq's
Euler method the one of order 1, without memory. Each computes gradients by autograd through every step and by its
adjoint.

Seconds are the least of a few runs with torch's default settings; peak memory is all that tensors occupied. The error
of a gradient, of parameters and initial state together, is relative to autograd through every step of the same equation
in float64; for it, convolutions have full precision. torchfde's history is a Python loop over all pairs of steps: it
runs once, in full precision, with few steps, and not longer than --limit seconds. Writes OUT/peers-gpu.json after every
row.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchdiffeq
from kernel import Network
from time_spent import spent
from torch import Tensor, nn
from workloads import Work, image_model, image_problem

import neuralfde as nf
from neuralfde.cli.measuring import clock, machine, peak_mib

Row = dict[str, Any]
Solve = Callable[[Work, int], Tensor]


def works(device: torch.device, quick: bool) -> list[Work]:
    """The equations, the smallest network first."""
    torch.manual_seed(0)
    found = [
        Work(f"MLP {d}-64-{d}, batch {b}", Network(d, 64).to(device), torch.rand(b, d, device=device), 0.6, 0.01)
        for d, b in ((4, 256), (32, 64))
    ]
    batch = 4 if quick else 128
    model = image_model().to(device)
    with torch.no_grad():
        z0 = model.stem(image_problem(device, batch)[0])
    return [*found, Work(f"image block, batch {batch}", model.fde.func, z0, 0.5, 0.1)]


@dataclass(frozen=True)
class Way:
    """How a package solves: an equation with ``memory`` or of order 1, only ``once`` or several times."""

    package: str
    gradient: str
    solve: Solve
    memory: bool = True
    once: bool = False


def ours(history: str, storage: str = "device", **options: Any) -> Solve:
    def solve(work: Work, n: int) -> Tensor:
        given = {"method": "predictor", "history": history, "storage": storage, **options}
        return nf.fdeint(work.func, work.z0, work.step * n, work.order, steps=n, **given)

    return solve


def of_torchdiffeq(call: Callable[..., Tensor]) -> Solve:
    def solve(work: Work, n: int) -> Tensor:
        ends = torch.tensor([0.0, work.step * n], dtype=work.z0.dtype, device=work.z0.device)
        return call(work.func, work.z0, ends, method="euler", options={"step_size": work.step})[-1]

    return solve


class TimeMoved(nn.Module):
    """A function whose time comes from the CPU, as torchfde has it."""

    def __init__(self, func: nn.Module) -> None:
        super().__init__()
        self.func = func

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope."""
        return self.func(t.to(z), z)  # type: ignore[no-any-return]


def of_torchfde(call: Callable[..., Tensor], method: str) -> Solve:
    def solve(work: Work, n: int) -> Tensor:
        order, end = torch.tensor(work.order), work.step * n
        # it takes the whole number below end / step_size
        return call(TimeMoved(work.func), work.z0, order, t=end, step_size=end / (n + 0.01), method=method)

    return solve


def ways(images: bool, cuda: bool) -> list[Way]:
    """Every package, ours first; rows that are kept for long horizons go to the host where they are large."""
    import torchfde

    storage = "host" if images else "device"
    split = ours("exponentials", storage, stepper=nf.CudaGraph(split=True))
    return [
        Way("neuralfde", "exact, defaults", ours("auto")),
        Way("neuralfde", f"exact, exponentials + {storage}", ours("exponentials", storage)),
        *([Way("neuralfde", "exact, exponentials, split backward", split)] if images and cuda else []),
        Way("torchdiffeq", "autograd", of_torchdiffeq(torchdiffeq.odeint), memory=False),
        Way("torchdiffeq", "its adjoint", of_torchdiffeq(torchdiffeq.odeint_adjoint), memory=False),
        Way("torchfde", "its adjoint", of_torchfde(torchfde.fdeint_adjoint, "predictor-f"), once=True),
        Way("torchfde", "autograd", of_torchfde(torchfde.fdeint, "predictor"), once=True),
    ]


class Late(Exception):
    """A measurement took longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``Late`` where Python code runs longer than this."""

    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def full_precision(wanted: bool = True) -> Iterator[None]:
    """Convolutions without TF32; matrix products have none unless a caller asks for it."""
    settings: Any = torch.backends.cudnn.conv
    before = settings.fp32_precision
    settings.fp32_precision = "ieee" if wanted else before
    try:
        yield
    finally:
        settings.fp32_precision = before


def measured(work: Work, way: Way, steps: int, truth: list[Tensor] | None, limit: float, repeats: int) -> Row:
    """Time, memory and the error of the gradient of one way."""
    row = {"work": work.name, "steps": steps, "package": way.package, "gradient": way.gradient, "memory": way.memory}
    own, device, runs = work.anew(), work.z0.device, list[float]()
    found: list[Tensor] = []

    def run() -> None:
        start = clock(device)
        found[:] = own.gradient(way.solve, steps)
        runs.append(clock(device) - start)

    try:
        with limited(limit), full_precision(way.once):
            own.gradient(way.solve, steps if way.package == "neuralfde" else 3)  # captures and compiles
            mib = min(peak_mib(run, device) for _ in range(1 if way.once else repeats))
        seconds = min(runs)
        if truth is not None and not way.once and any(isinstance(m, nn.Conv2d) for m in own.func.modules()):
            with full_precision():
                run()
    except Late:
        return {**row, "seconds": None, "limit": limit}
    except Exception as error:  # of a package that cannot be run here: a finding, not a crash
        traceback.print_exc()
        return {**row, "seconds": None, "failed": type(error).__name__}
    return {**row, "seconds": seconds, "mib": mib, "error": None if truth is None else difference(found, truth)}


def difference(found: list[Tensor], truth: list[Tensor]) -> float:
    """Of all gradients together, relative to the true ones."""
    apart = sum(float((a.double() - b).square().sum()) for a, b in zip(found, truth, strict=True))
    return math.sqrt(apart / sum(float(b.square().sum()) for b in truth))


class Comparison:
    """All packages on one equation over so many steps; ``truth`` says whether gradients are compared with float64."""

    def __init__(self, work: Work, steps: int, given: argparse.Namespace, truth: bool = True, repeats: int = 2) -> None:
        self.work, self.steps, self.limit, self.repeats = work, steps, given.limit, repeats
        exact = {True: ours("full", adjoint="direct"), False: of_torchdiffeq(torchdiffeq.odeint)} if truth else {}
        self.truths = {memory: work.anew(torch.float64).gradient(solve, steps) for memory, solve in exact.items()}

    def rows(self, once: bool) -> Iterator[tuple[str, Row]]:
        """Of the packages that are run several times, or of those that are run once."""
        for way in ways(self.work.name.startswith("image"), self.work.z0.is_cuda):
            if way.once == once:
                truth = self.truths.get(way.memory)
                yield "training step", measured(self.work, way, self.steps, truth, self.limit, self.repeats)
            gc.collect()
            if self.work.z0.is_cuda:
                torch.cuda.empty_cache()


def parts(device: torch.device, given: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """All rows; what takes longest comes last, and is left out where there is no time."""
    few, many = (12, 24) if given.quick else (400, 2000)
    small, perceptron, images = works(device, given.quick)
    short = [Comparison(work, few, given) for work in (perceptron, images, small)]
    for once in (False, True):
        for each in short:
            yield from each.rows(once)
    for work in (perceptron, small):
        yield from Comparison(work, many, given).rows(once=False)
    for work, steps in ((perceptron, many), (images, few)):
        yield from (("where the time goes", row) for row in spent(work.anew(), steps))
    yield from Comparison(images, many, given, truth=False, repeats=1).rows(once=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchfde", type=Path, required=True, help="folder of a clone of torchfde")
    parser.add_argument("--revision", default="main", help="which revision of torchfde that is")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that one measurement may take")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds after which no other row is begun")
    given = parser.parse_args()
    sys.path.insert(0, str(given.torchfde))
    given.out.mkdir(parents=True, exist_ok=True)
    start, device = time.perf_counter(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    about = {**machine(device), "torchfde": given.revision, "torchdiffeq": torchdiffeq.__version__}
    found: dict[str, list[Row]] = {}
    for part, row in parts(device, given):
        found.setdefault(part, []).append(row)
        took = time.perf_counter() - start
        print(f"{took:.1f} s", part, json.dumps(row, ensure_ascii=False), flush=True)
        (given.out / "peers-gpu.json").write_text(json.dumps({**about, "parts": found}, indent=1, ensure_ascii=False))
        if took > given.budget:
            print("the rest is left out: over the time budget", flush=True)
            break


if __name__ == "__main__":
    main()
