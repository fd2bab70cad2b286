"""What derivatives and transforms cost beside a plain solve, in one run on one thread of the CPU.

    python benchmarks/composing.py

Processor seconds, the least of a few repeats; writes results/composing.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import torch
from report.record import here, put
from report.solver import composing
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap

from neuralfde import fdeint
from neuralfde.cli.measuring import clock, least_seconds

F64, CPU = torch.float64, torch.device("cpu")
Row = dict[str, Any]


class MLP(nn.Module):
    """Two layers with a tanh between them."""

    def __init__(self, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, width))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The slope."""
        return self.net(z)


class Block(nn.Module):
    """A solve as a layer."""

    def __init__(self, func: nn.Module, steps: int) -> None:
        super().__init__()
        self.func, self.steps = func, steps

    def forward(self, z0: Tensor) -> Tensor:
        """The state at the end."""
        return fdeint(self.func, z0, 5.0, 0.6, steps=self.steps)


def row(what: str, figure: float, target: str, **times: float) -> Row:
    """One line of the table; times in milliseconds."""
    return {"what": what, "figure": figure, "target": target, **{k: 1000 * t for k, t in times.items()}}


def timed(
    calls: dict[str, Callable[[], object]], repeats: int, now: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Processor seconds of each call."""
    return least_seconds(calls, repeats, now)


def rectangles(rate: Any, order: Any, steps: int = 12) -> Any:
    """The predictor's own result for D^β z = λ z, in mpmath's numbers."""
    slopes, weight = [rate], mpmath.mpf(steps) ** -order / mpmath.gamma(order + 1)
    for n in range(1, steps + 1):
        sums = sum(((n - j) ** order - mpmath.mpf(n - 1 - j) ** order) * v for j, v in enumerate(slopes))
        slopes.append(rate * (1 + weight * sums))
    return slopes[-1] / rate


def exactness() -> Row:
    """The Hessian of the discrete solution in rate and order, against that of mpmath."""

    def end(x: Tensor) -> Tensor:
        rate, order = x.unbind()
        return fdeint(lambda t, z, rate: rate * z, torch.ones((), dtype=F64), 1.0, order, steps=12, args=(rate,))

    with mpmath.workdps(40):
        point = (mpmath.mpf(-1), mpmath.mpf("0.7"))
        a, b, c = (float(mpmath.diff(rectangles, point, n)) for n in ((2, 0), (1, 1), (0, 2)))
    found = hessian(end)(torch.tensor([-1.0, 0.7], dtype=F64))
    error = float((found - torch.tensor([[a, b], [b, c]], dtype=F64)).abs().max())
    return row("error of the Hessian in rate and order, float64", error, "≤ 1e-9")


def derivatives(repeats: int, steps: int = 500) -> list[Row]:
    """MLP 32-64-32, batch 64: forward mode beside the forward pass, Hessian-vector products beside the gradient."""
    block, z0 = Block(MLP(), steps), torch.randn(64, 32)
    params = {k: p.detach() for k, p in block.named_parameters()}
    along = {k: torch.randn_like(p) for k, p in params.items()}
    weights = list(block.parameters())

    def loss(p: dict[str, Tensor]) -> Tensor:
        return (functional_call(block, p, (z0,)) ** 2).sum()

    def twice() -> object:
        first = torch.autograd.grad((block(z0) ** 2).sum(), weights, create_graph=True)
        return torch.autograd.grad(first, weights, list(along.values()))

    s = timed(
        {
            "forward": torch.no_grad()(lambda: block(z0)),
            "jvp": lambda: jvp(loss, (params,), (along,)),
            "gradient": lambda: torch.autograd.grad((block(z0) ** 2).sum(), weights),
            "hvp": lambda: jvp(grad(loss), (params,), (along,)),
            "twice": twice,
        },
        repeats,
    )
    return [
        row("Hessian-vector product / gradient", s["hvp"] / s["gradient"], "≤ 4", own=s["hvp"], beside=s["gradient"]),
        row("the same by backward twice", s["twice"] / s["gradient"], "", own=s["twice"], beside=s["gradient"]),
        row("jvp / forward pass", s["jvp"] / s["forward"], "≤ 2.5", own=s["jvp"], beside=s["forward"]),
    ]


def ensemble(repeats: int, steps: int = 200, members: int = 64, device: torch.device = CPU) -> list[Row]:
    """Networks 8-32-8 with one trajectory each, all at once and one after the other."""
    blocks = [Block(MLP(8, 32), steps).to(device) for _ in range(members)]
    z0, now = torch.randn(8, device=device), time.process_time if device.type == "cpu" else partial(clock, device)
    stacked = {k: p.detach() for k, p in stack_module_state(blocks)[0].items()}
    one = partial(functional_call, blocks[0])
    s = timed(
        {
            "vmap": torch.no_grad()(lambda: vmap(lambda p: one(p, (z0,)))(stacked)),
            "loop": torch.no_grad()(lambda: [block(z0) for block in blocks]),
            "vmap(grad)": lambda: vmap(grad(lambda p: one(p, (z0,)).sum()))(stacked),
            "loop of gradients": lambda: [torch.autograd.grad(b(z0).sum(), list(b.parameters())) for b in blocks],
        },
        repeats,
        now,
    )
    given = f"{members} solves in a loop / by vmap"
    return [
        row(given, s["loop"] / s["vmap"], "≥ 20", own=s["vmap"], beside=s["loop"]),
        row(
            f"{given}, with gradients",
            s["loop of gradients"] / s["vmap(grad)"],
            "≥ 20",
            own=s["vmap(grad)"],
            beside=s["loop of gradients"],
        ),
    ]


def riccati(repeats: int, steps: int = 200) -> list[Row]:
    """The complex Riccati equation of rough Heston, 256 frequencies, with gradients of all parameters and the order."""
    a, grid = torch.linspace(0.5, 20, 256, dtype=F64), torch.linspace(0, 1, steps + 1, dtype=F64)
    given = [torch.tensor(x, dtype=F64, requires_grad=True) for x in (0.3, -0.7, 0.3, 0.62)]

    def field(t: Any, h: Tensor, lam: Tensor, rho: Tensor, nu: Tensor) -> Tensor:
        return 0.5 * (-(a**2) - 1j * a) + lam * (1j * a * rho * nu - 1) * h + 0.5 * (lam * nu) ** 2 * h**2

    def price(stepper: str) -> tuple[Tensor, ...]:
        *rates, order = given
        h = fdeint(field, torch.zeros(256, dtype=torch.complex128), grid, order, steps=steps, method="abm",
                   args=tuple(rates), stepper=stepper)  # fmt: skip
        exponent = 0.012 * torch.trapezoid(h, grid, dim=0) + 0.04 * torch.trapezoid(field(None, h, *rates), grid, dim=0)
        return torch.autograd.grad(exponent.exp().abs().sum(), given)

    s = timed({k: partial(price, k) for k in ("auto", "picard")}, repeats)
    names = {
        "auto": "complex Riccati equation, value and gradients, ms",
        "picard": "the same with stepper='picard', ms",
    }
    return [row(names[k], 1000 * t, "≤ 50", own=t) for k, t in s.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [exactness(), *derivatives(repeats), *ensemble(repeats), *riccati(repeats)]
    put("composing", "cost", rows, **here(), command="python benchmarks/composing.py")
    print(composing())


if __name__ == "__main__":
    main()
