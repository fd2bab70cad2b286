"""Whole blocks of steps in one kernel: one training step of small networks and systems, on a GPU.

    python benchmarks/kernel.py --out OUT            # a few minutes
    python benchmarks/kernel.py --out OUT --quick    # small sizes; without a GPU in Triton's interpreter

Each case is timed with ``stepper="kernel"`` and with ``"cuda-graph"``, in one process: the first call with tracing
and compiling, the fastest of a few more, peak memory, and the error of the gradient over 100 steps against float64.
Registers, spills and shared memory are those of the compiled kernels. Writes OUT/kernel.json after every row.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import neuralfde as nf
from neuralfde.cli.measuring import clock, least_seconds, machine, peak_mib
from neuralfde.solve.steppers.kernel import prepare

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")

#: What ``auto`` took before there were kernels.
OTHER = "cuda-graph" if DEVICE.type == "cuda" else "single"


class Network(nn.Module):
    """Two layers with tanh between them; time as one more input where it is asked for."""

    def __init__(self, width: int, hidden: int, time: bool = False) -> None:
        super().__init__()
        self.time, self.layers = (
            time,
            nn.Sequential(nn.Linear(width + time, hidden), nn.Tanh(), nn.Linear(hidden, width)),
        )

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.layers(torch.cat([z, t.expand(len(z), 1)], 1) if self.time else z)  # type: ignore[no-any-return]


class LotkaVolterra(nn.Module):
    """Rates of their own for every trajectory."""

    def forward(self, t: Tensor, z: Tensor, rates: Tensor) -> Tensor:
        x, y = z.unbind(-1)
        a, b, c, d = rates.unbind(-1)
        return torch.stack([x * (a - b * y), y * (c * x - d)], dim=-1)


@dataclass(frozen=True)
class Case:
    """One row: a function, its batch and steps; ``tf32`` allows products in lower precision."""

    name: str
    func: Callable[[], nn.Module]
    batch: int
    width: int
    steps: int
    tf32: bool = False
    storage: str = "device"
    own: bool = False
    history: str = "exponentials"

    def inputs(self, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor, tuple[Tensor, ...]]:
        """The function, states, orders and arguments, the same whatever the precision."""
        torch.manual_seed(0)
        func = self.func().to(DEVICE, dtype)
        z0, order, args = 0.5 + torch.rand(self.batch, self.width), torch.tensor(0.6), torch.rand(self.batch, 4)
        order = 0.5 + 0.3 * torch.rand(self.batch, 1) if self.own else order
        z0, args = (x.to(DEVICE, dtype).requires_grad_() for x in (z0, args))
        return func, z0, order.double().requires_grad_(), (args,) if self.own else ()

    def solve(self, stepper: str, inputs: tuple[Any, ...], steps: int) -> nf.Solution:
        """The forward pass of a training step."""
        func, z0, order, args = inputs
        options = {"history": self.history, "storage": self.storage, "stepper": stepper, "method": "predictor"}
        return nf.solve(func, z0, 0.01 * steps, order, steps=steps, args=args, **options)

    def train(self, stepper: str, inputs: tuple[Any, ...], steps: int) -> list[Tensor]:
        """One training step; returns the gradients."""
        func, z0, order, args = inputs
        states = self.solve(stepper, inputs, steps).ys
        return list(torch.autograd.grad(states.square().mean(), [z0, order, *args, *func.parameters()]))


def cases(quick: bool) -> list[Case]:
    """In the order of their importance."""
    n, many, million = (40, 300, 100) if quick else (2000, 100_000, 1_000_000)
    small = partial(Network, 32, 64)
    return [
        Case("32-64-32", small, 64, 32, n),
        Case("32-64-32", small, 64, 32, n, tf32=True),
        Case("32-64-32", small, 64 if quick else 4096, 32, n),
        Case("32-64-32", small, 64 if quick else 4096, 32, n, tf32=True),
        Case("4-64-4", partial(Network, 4, 64), 256, 4, n),
        Case("4-64-4 with time", partial(Network, 4, 64, True), 256, 4, n),
        Case("Lotka–Volterra, own rates and orders", LotkaVolterra, many, 2, n // 2, own=True),
        Case("32-64-32, T = 1", small, 64, 32, 10),
        Case("32-64-32, full history", small, 64, 32, n, history="full"),
        Case("8-64-8", partial(Network, 8, 64), 64, 8, million, storage="host"),
        Case("256-256-256", partial(Network, 256, 256), 64, 256, n),
    ]


class Seen:
    """A kernel that remembers what it was compiled to."""

    found: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            made = self.function[grid](*args, **options)
            if hasattr(made, "n_regs"):  # not in the interpreter
                Seen.found[self.name] = {
                    "registers": made.n_regs,
                    "spills": made.n_spills,
                    "shared": made.metadata.shared,
                }

        return launch

    def warmup(self, *args: Any, **options: Any) -> Any:
        """Compile it."""
        return self.function.warmup(*args, **options)


def watch() -> None:
    """Look at every kernel that is compiled from here on."""
    compiled = prepare._compiled

    def watched(source: str) -> dict[str, Any]:
        found = compiled(source)
        kernels = found.keys() & {"forward", "replay", "backward"}
        return {**found, **{name: Seen(name, found[name]) for name in kernels}}

    prepare._compiled = watched


def error(case: Case, stepper: str) -> float:
    """The largest relative difference of a gradient from that of single steps in float64."""
    steps = min(case.steps, 100)
    exact = case.train("single", case.inputs(torch.float64), steps)
    found = case.train(stepper, case.inputs(torch.float32), steps)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))


def measured(case: Case, stepper: str, repeats: int) -> dict[str, Any]:
    """One row."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if case.tf32 else "ieee"
    Seen.found.clear()
    inputs = case.inputs(torch.float32)
    work = partial(case.train, stepper, inputs, case.steps)
    start = clock(DEVICE)
    work()
    first = clock(DEVICE) - start
    ran = None if case.steps > 100_000 else case.solve("auto", inputs, case.steps).stats.stepper
    least = least_seconds({"s": work}, repeats, partial(clock, DEVICE))
    about = {"case": case.name, "batch": case.batch, "steps": case.steps, "tf32": case.tf32, "stepper": stepper}
    found = {"first_s": round(first, 3), **least, "peak_mib": peak_mib(work, DEVICE)}
    return {**about, "auto": ran, **found, "kernels": dict(Seen.found), "gradient_error": error(case, stepper)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the name of a case")
    given = parser.parse_args()
    watch()
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for case in cases(given.quick):
        long = case.steps > 100_000  # minutes by CUDA graphs
        for stepper in (("kernel",) if long else ("kernel", OTHER)) if given.only in case.name else ():
            rows.append(measured(case, stepper, 1 if long else given.repeats))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
            about = {"part": "training step", **machine(DEVICE)}
            (given.out / "kernel.json").write_text(json.dumps({**about, "rows": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
