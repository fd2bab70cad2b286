"""Implicit steps and vmap on a GPU: a perceptron, the paper's image block, and 64 solves with their own parameters.

    python benchmarks/stiff_gpu.py --out OUT            # some 40 s
    python benchmarks/stiff_gpu.py --out OUT --device cpu --quick

One training step each, the least of a few, in float32. Perceptron 32-64-32, batch 64, β = 0.6, h = 0.01, by
``trapezoid``; the image block, batch 128, β = 0.5, h = 0.1, by ``trapezoid`` and by ``predictor``. Writes
OUT/stiff-gpu.json after every row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from composing import MLP, ensemble
from workloads import image_model, image_problem

import neuralfde as nf
from neuralfde.cli.measuring import clock, least_seconds, machine

Row = dict[str, Any]


def trained(solve: Callable[[], nf.Solution], wanted: list[torch.Tensor], last: list[nf.Solution]) -> object:
    """One training step; the solution is kept for what it says."""
    last[:] = [solve()]
    return torch.autograd.grad(last[0].ys.square().mean(), wanted)


def training(name: str, device: torch.device, func: torch.nn.Module, z0: torch.Tensor, **given: Any) -> Row:
    """Seconds of a training step by each method, and what stepper took it."""
    row, wanted = {"what": name, "steps": given["steps"]}, list(func.parameters())
    for method in ("predictor", "trapezoid"):
        last: list[nf.Solution] = []
        step = partial(trained, lambda method=method: nf.solve(func, z0, method=method, **given), wanted, last)
        row |= least_seconds({method: step}, 3, partial(clock, device))
        row |= {f"{method} by": last[0].stats.stepper, f"{method}, evaluations": last[0].stats.evaluations}
        print(last[0].stats.why, flush=True)
    return row | {"ratio": row["trapezoid"] / row["predictor"]}


def rows(device: torch.device, quick: bool) -> Iterator[Row]:
    """All of them."""
    torch.manual_seed(0)
    steps = 50 if quick else 2000
    mlp = MLP(32, 64).to(device)
    yield training(
        "perceptron", device, mlp, torch.randn(64, 32, device=device), t=0.01 * steps, order=0.6, steps=steps
    )
    ensemble(1, steps=20, members=2, device=device)  # what is loaded at the first call
    yield from ensemble(1, steps=20 if quick else 50, members=4 if quick else 64, device=device)
    model, steps = image_model().to(device), 20 if quick else 500
    images, _ = image_problem(device, 4 if quick else 128)
    with torch.no_grad():
        z0 = model.stem(images)
    yield training("image block", device, model.fde.func, z0, t=0.1 * steps, order=0.5, steps=steps)


def told(row: Row) -> str:
    """A row in short."""
    if "figure" in row:
        return f"{row['what']}: {row['figure']:.1f}, wanted {row['target']}"
    times = [f"{k} {row[k]:.3f} s by {row[f'{k} by']}" for k in ("predictor", "trapezoid")]
    return f"{row['what']}, N={row['steps']}: {times[0]}, {times[1]}, ratio {row['ratio']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found: list[Row] = []
    for row in rows(given.device, given.quick):
        found.append(row)
        print(json.dumps(row), flush=True)
        about = {"machine": machine(given.device), "command": "python benchmarks/stiff_gpu.py --out OUT"}
        (given.out / "stiff-gpu.json").write_text(json.dumps(about | {"rows": found}, indent=1))
    print(*map(told, found), sep="\n")


if __name__ == "__main__":
    main()
