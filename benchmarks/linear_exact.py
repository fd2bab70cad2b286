"""A sparse linear equation without steps, compared with steps of the same accuracy.

Diffusion on a plane, 10,000 unknowns with a conductivity for each edge, T=100: values, and gradients of all edges, the
source, the initial state and the order. And the same with a wind along all edges, which makes the matrix unsymmetric.

    python benchmarks/linear_exact.py [linear] [transport]

One process on one thread, processor seconds. Errors of the steps are distances from the solution without steps. The
last row takes minutes. Writes results/pde.json.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from report.record import asked, here, put

import neuralfde as nf
from neuralfde import linear

SIDE, END, ORDER = 100, 100.0, 0.8
STEPS = (100, 5000)
WIND = {"linear": 0.0, "transport": 0.3}


def edges(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two ends of every edge of a square grid."""
    at = torch.arange(side * side).view(side, side)
    return torch.cat([at[:, :-1].flatten(), at[:-1].flatten()]), torch.cat([at[:, 1:].flatten(), at[1:].flatten()])


def flows(k: torch.Tensor, side: int, wind: float) -> linear.Sparse:
    """Diffusion along edges of conductivity ``k`` and transport from their first ends, with some loss everywhere."""
    a, b = edges(side)
    n, flow = side * side, torch.cat([k + wind, k])  # from a to b, and back
    start, end = torch.cat([a, b]), torch.cat([b, a])
    own = torch.zeros(n, dtype=k.dtype).index_add(0, start, flow) + 0.01
    every = torch.arange(n)
    return linear.Sparse(torch.cat([end, every]), torch.cat([start, every]), torch.cat([flow, -own]), n)


def measure(part: str) -> None:
    """Write one part."""
    torch.manual_seed(0)
    k = (0.5 + torch.rand(len(edges(SIDE)[0]), dtype=torch.float64)).requires_grad_()
    z0 = torch.rand(SIDE * SIDE, dtype=torch.float64).requires_grad_()
    b = torch.rand(SIDE * SIDE, dtype=torch.float64).requires_grad_()
    order = torch.tensor(ORDER, dtype=torch.float64, requires_grad=True)
    inputs = (k, z0, b, order)

    def timed(**options: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], float]:
        start = time.process_time()
        y = nf.fdeint(b, z0, END, order, linear=flows(k, SIDE, WIND[part]), **options)
        grads = torch.autograd.grad(y.square().sum(), inputs)
        return y.detach(), grads, time.process_time() - start

    found = nf.solve(b, z0, END, order, linear=flows(k, SIDE, WIND[part]), estimate_error=True)
    exact, grads, seconds = timed()
    told = float(found.error.max() / exact.abs().max())
    rows = [{"how": "no steps", "steps": 0, "seconds": seconds, "told": told}]
    for steps in STEPS:
        y, by, took = timed(steps=steps)
        off = float((y - exact).abs().max() / exact.abs().max())
        worst = max(float((p - q).abs().max() / q.abs().max()) for p, q in zip(by, grads, strict=True))
        rows.append({"how": "imex", "steps": steps, "seconds": took, "off": off, "gradients off": worst})
        print(rows[-1], flush=True)
    put("pde", part, rows, **here(), command="python benchmarks/linear_exact.py")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in asked(__doc__, WIND):
        measure(name)
