"""Two versions of the library in one run: the same solves with each, in turn, and the ratios of their times.

    git worktree add /tmp/before REVISION
    python benchmarks/compare.py --before /tmp/before/src --out OUT

Each version runs in its own processes, several rounds in turn; the least time of each solve counts. Solves are written
as a user would write them, without options that only one version has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Solve = Callable[[], object]


class Perceptron(nn.Module):
    """A network with one hidden layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(z)))


class ImageField(nn.Module):
    """The right-hand side of the paper's image model: norm, relu, convolution, twice, and a norm; time is a channel."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width + 1, width, 3, padding=1) for _ in range(2))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        time_channel = torch.ones_like(z[:, :1]) * t
        for norm, conv in zip(self.norms, self.convs, strict=False):
            z = conv(torch.cat([time_channel, torch.relu(norm(z))], 1))
        return self.norms[2](z)


def oscillator(t: Tensor, z: Tensor) -> Tensor:
    x, y = z.unbind(-1)
    return torch.stack([1 - 4 * x + x * x * y, 3 * x - x * x * y], -1)


def training(func: nn.Module, shape: tuple[int, ...], steps: int, step: float, device: str, **options: Any) -> Solve:
    """A training step."""
    from neuralfde import fdeint

    torch.manual_seed(0)
    func, z0 = func.to(device), torch.randn(shape, device=device, requires_grad=True)

    def run() -> None:
        func.zero_grad()
        fdeint(func, z0, steps * step, 0.6, steps=steps, **options).square().mean().backward()

    return run


def small(method: str, steps: int) -> Solve:
    """A solve of two numbers, without gradients."""
    from neuralfde import fdeint

    z0 = torch.tensor([1.2, 2.8], dtype=torch.float64)

    def run() -> None:
        with torch.inference_mode():
            fdeint(oscillator, z0, 1.0, 0.8, steps=steps, method=method)

    return run


def on_cpu() -> dict[str, Solve]:
    torch.manual_seed(0)  # other weights take other numbers of iterations
    few = {f"2 numbers, {m}, N={n}": small(m, n) for m in ("predictor", "abm", "bdf2") for n in (20, 100, 400)}
    far = {"history": "exponentials"}
    return few | {
        "MLP 8-32-8, batch 4, N=20": training(Perceptron(8, 32), (4, 8), 20, 0.05, "cpu"),
        "MLP 8-32-8, batch 4, trapezoid, N=20": training(
            Perceptron(8, 32), (4, 8), 20, 0.05, "cpu", method="trapezoid"
        ),
        "MLP 8-32-8, batch 4, N=200": training(Perceptron(8, 32), (4, 8), 200, 0.01, "cpu"),
        "MLP 8-32-8, batch 4, abm, N=200": training(Perceptron(8, 32), (4, 8), 200, 0.01, "cpu", method="abm"),
        "MLP 32-64-32, batch 64, N=500": training(Perceptron(32, 64), (64, 32), 500, 0.01, "cpu"),
        "MLP 32-64-32, batch 64, abm, N=500": training(Perceptron(32, 64), (64, 32), 500, 0.01, "cpu", method="abm"),
        "MLP 32-64-32, batch 64, exponentials, N=500": training(Perceptron(32, 64), (64, 32), 500, 0.01, "cpu", **far),
        "MLP 32-64-32, batch 64, exponentials + checkpoint, N=500": training(
            Perceptron(32, 64), (64, 32), 500, 0.01, "cpu", storage="checkpoint", **far
        ),
        "MLP 512-64-512, batch 256, N=64": training(Perceptron(512, 64), (256, 512), 64, 0.01, "cpu"),
    }


def on_gpu() -> dict[str, Solve]:
    torch.manual_seed(0)
    images, far = (128, 64, 6, 6), {"history": "exponentials", "storage": "host"}
    return {
        "MLP 32-64-32, batch 64, N=2000": training(Perceptron(32, 64), (64, 32), 2000, 0.01, "cuda"),
        "MLP 32-64-32, batch 64, abm, N=2000": training(Perceptron(32, 64), (64, 32), 2000, 0.01, "cuda", method="abm"),
        "MLP 32-64-32, batch 4096, N=2000": training(Perceptron(32, 64), (4096, 32), 2000, 0.01, "cuda"),
        "MLP 4-64-4, batch 256, N=2000": training(Perceptron(4, 64), (256, 4), 2000, 0.01, "cuda"),
        "MLP 8-32-8, batch 4, N=2000": training(Perceptron(8, 32), (4, 8), 2000, 0.01, "cuda"),
        "MLP 32-64-32, batch 64, N=10": training(Perceptron(32, 64), (64, 32), 10, 0.1, "cuda"),
        "image block, N=10": training(ImageField(), images, 10, 0.1, "cuda"),
        "image block, full, N=200": training(ImageField(), images, 200, 0.1, "cuda"),
        "image block, exponentials + host, N=500": training(ImageField(), images, 500, 0.1, "cuda", **far),
        "image block, exponentials + host, abm, N=500": training(
            ImageField(), images, 500, 0.1, "cuda", method="abm", **far
        ),
    }


def least(run: Solve, cuda: bool) -> tuple[float, float]:
    """The least seconds of a few runs, and the peak of memory on a GPU in MiB.

    On a CPU, seconds of the processor: one thread works, and other work on the machine does not count.
    """
    clock = time.perf_counter if cuda else time.process_time
    for _ in range(4):  # a short solve is captured when it comes for the third time
        run()
    begin, best = time.perf_counter(), float("inf")
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    while time.perf_counter() - begin < 1.0:
        start = clock()
        run()
        if cuda:
            torch.cuda.synchronize()
        best = min(best, clock() - start)
    return best, torch.cuda.max_memory_allocated() / 2**20 if cuda else 0.0


def measure(cuda: bool) -> dict[str, tuple[float, float]]:
    """All solves with the version that is imported."""
    torch.set_num_threads(1)
    found = {}
    for name in on_gpu() if cuda else on_cpu():
        found[name] = least((on_gpu() if cuda else on_cpu())[name], cuda)
        if cuda:
            torch.cuda.empty_cache()
    return found


def asked(tree: Path, place: str) -> dict[str, list[float]]:
    """The same in a process that imports this version."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", place]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compared(before: Path, now: Path, place: str, rounds: int) -> list[dict[str, Any]]:
    """One row for each solve: seconds with both versions, and their ratio."""
    sides: dict[str, dict[str, list[float]]] = {"before": {}, "now": {}}
    for _ in range(rounds):
        for side, tree in (("before", before), ("now", now)):
            for name, (seconds, mib) in asked(tree, place).items():
                best = min(seconds, sides[side].get(name, [seconds])[0])
                sides[side][name] = [best, mib]
    rows = []
    for name, (seconds, mib) in sides["now"].items():
        old, held = sides["before"][name]
        row = {"solve": name, "before": old, "now": seconds, "ratio": seconds / old}
        rows.append(row | ({"MiB before": held, "MiB": mib} if mib else {}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the folder src of the version to compare with")
    parser.add_argument("--now", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--worker", choices=("cpu", "cuda"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.worker == "cuda")))
        return
    from neuralfde.cli.measuring import machine

    places = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    found = {place: compared(args.before, args.now, place, args.rounds) for place in places}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "compare.json").write_text(json.dumps({**machine(), "parts": found}, indent=1))
    for place, rows in found.items():
        for r in rows:
            print(f"{place:5} {r['solve']:58} {1e3 * r['before']:9.3f} {1e3 * r['now']:9.3f} ms  {r['ratio']:.3f}")


if __name__ == "__main__":
    main()
