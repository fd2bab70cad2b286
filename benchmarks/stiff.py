"""Stiff stages: one-dimensional diffusion, 200 points, 500 steps of ``l1``, compared with a loop in scipy with one LU.

    python benchmarks/stiff.py

Processor seconds of the forward pass, and of forward and backward (gradients of the diffusivity), with the matrix found
from ``func`` and given as ``linear=``, in one run with the loop, which has no gradients. Writes results/stiff.json.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from math import gamma
from typing import Any

import numpy as np
import torch
from report.record import here, put
from report.solver import stiff
from scipy.sparse import diags_array, eye_array
from scipy.sparse.linalg import splu
from torch import Tensor

import neuralfde as nf
from neuralfde.cli.measuring import least_seconds

ORDER, END = 0.7, 1.0


def by_scipy(start: np.ndarray[Any, Any], steps: int) -> np.ndarray[Any, Any]:
    """The L1 scheme as it is written down: one factorisation, and a solve in each step."""
    n, scale = len(start), (END / steps) ** -ORDER / gamma(2 - ORDER)
    b = np.arange(1, steps + 1) ** (1 - ORDER) - np.arange(steps) ** (1 - ORDER)
    matrix = diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(n, n)) * (n + 1.0) ** 2
    lu, falls = splu((scale * eye_array(n) - matrix).tocsc()), -np.diff(b)
    z = np.empty((steps + 1, n))
    z[0] = start
    for k in range(1, steps + 1):
        z[k] = lu.solve(scale * (b[k - 1] * z[0] + falls[: k - 1][::-1] @ z[1:k]))
    return z[-1]


def diffusion(t: Tensor, z: Tensor, k: Tensor) -> Tensor:
    """Second differences, 0 at both ends."""
    p = torch.nn.functional.pad(z, (1, 1))
    return k * (p[..., 2:] - 2 * z + p[..., :-2])


def solved(z0: Tensor, k: Tensor, steps: int) -> Tensor:
    """What a user writes."""
    return nf.fdeint(diffusion, z0, END, ORDER, steps=steps, method="l1", args=(k,))


def known(z0: Tensor, k: Tensor, steps: int) -> Tensor:
    """The same with the matrix given."""
    n = z0.shape[-1]
    part = nf.linear.diffusion((k / (n + 1) ** 2).expand(*z0.shape[:-1], n + 1), 1 / (n + 1))
    return nf.fdeint(None, z0, END, ORDER, steps=steps, method="l1", linear=part)


WAYS = {"`func`": solved, "`linear=`": known}
CASES = [
    (way, samples, dtype)
    for way in WAYS
    for samples, dtype in ((1, torch.float64), (1, torch.float32), (64, torch.float64))
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = np.sin(np.pi * np.linspace(0, 1, given.points + 2)[1:-1])
    exact, rows = by_scipy(start, given.steps), []
    for way, samples, dtype in CASES:
        shape, call = (samples, given.points) if samples > 1 else (given.points,), WAYS[way]
        z0 = torch.tensor(start, dtype=dtype).expand(shape).contiguous()
        k = (torch.ones(*shape[:-1], 1, dtype=dtype) * (given.points + 1) ** 2).requires_grad_()
        times = least_seconds(
            {
                "scipy": lambda: by_scipy(start, given.steps),
                "forward": partial(call, z0, k, given.steps),
                "both": lambda call=call, z0=z0, k=k: torch.autograd.grad(call(z0, k, given.steps).sum(), k),
            },
            given.repeats,
            time.process_time,
        )
        off = float(np.abs(call(z0, k, given.steps).detach().double().numpy() - exact).max())
        row = {"way": way, "samples": samples, "dtype": str(dtype).removeprefix("torch."), "points": given.points}
        rows.append({**row, "steps": given.steps, **times, "difference": off})
    put("stiff", "diffusion", rows, **here(), command="python benchmarks/stiff.py")
    print(stiff())


if __name__ == "__main__":
    main()
