"""The kinds of order: the tensors each depends on, how a user writes it, and its weights in the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralfde import CustomKernel, DistributedOrder, MultiTerm, Tempered, VariableOrder
from tests import reference
from tests.reference import Weights

F64 = torch.float64
Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class Grid:
    """The points ``start + T (n/N)^r`` for a state with this many axes."""

    start: float
    step: float
    steps: int
    grading: float
    axes: int

    @property
    def elapsed(self) -> Tensor:
        n = torch.arange(self.steps + 1, dtype=F64)
        return self.steps * self.step * (n / self.steps) ** self.grading

    def wide(self, x: Any) -> Tensor:
        """A number or a tensor that broadcasts to the state, with all its axes."""
        x = torch.as_tensor(x, dtype=F64)
        return x.reshape([1] * (self.axes - x.ndim) + list(x.shape))

    def times(self, factor: Any = 1.0) -> Tensor:
        return self.elapsed.reshape(-1, *[1] * self.axes) * self.wide(factor)


@dataclass(frozen=True)
class Kind:
    """One kind of order.

    Attributes:
        values: from the shape of the state to the numbers it depends on, by name.
        order: what is passed as ``order=``.
        weights: the reference's.
        given: which of the values are options of ``fdeint`` instead: velocity, horizon.
        needs: what a scheme must have for it: "two" (orders above 1), "series", "graded", "single" (one history sum).
        toeplitz: its weights depend on the lag alone.
    """

    name: str
    values: Callable[[tuple[int, ...]], dict[str, Any]]
    order: Callable[[Leaves, bool], Any]
    weights: Callable[[str, Leaves, Grid], Weights]
    given: tuple[str, ...] = ()
    needs: frozenset[str] = field(default_factory=frozenset)
    grading: float = 1.0
    toeplitz: bool = True

    def leaves(self, shape: tuple[int, ...]) -> Leaves:
        return {k: torch.as_tensor(v, dtype=F64).clone().requires_grad_() for k, v in self.values(shape).items()}


def spread(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
    return torch.linspace(low, high, int(np.prod(shape)), dtype=F64).reshape(shape)


def per_channel(shape: tuple[int, ...]) -> dict[str, Any]:
    # from below 1/2 to above 0.95, so that starting weights of all three sizes are met
    return {"b": spread(0.45, 0.97, shape[-1:])}


def per_sample(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
    return spread(low, high, (shape[0], *[1] * (len(shape) - 1)))


def velocity(shape: tuple[int, ...]) -> Tensor:
    return torch.cos(torch.arange(int(np.prod(shape)), dtype=F64)).reshape(shape)


def caputo(method: str, x: Leaves, g: Grid) -> Weights:
    horizon = x.get("horizon", torch.ones((), dtype=F64))
    b = g.wide(x["b"])[None]
    if g.grading != 1:
        return reference.graded(method, b, g.times(horizon))
    found = reference.uniform(method, b, g.step * g.wide(horizon), g.steps)
    return reference.with_velocity(found, g.times()) if "velocity" in x else found


def tempered(method: str, x: Leaves, g: Grid) -> Weights:
    plain = caputo(method, {k: v for k, v in x.items() if k != "velocity"}, g)
    return reference.tempered(plain, g.wide(x["r"]), g.times(), "velocity" in x)


def varying(x: Leaves) -> Callable[[Tensor], Tensor]:
    return lambda t: x["b"][0] + x["b"][1] * torch.sin(t)


def variable(method: str, x: Leaves, g: Grid) -> Weights:
    b = varying(x)(g.start + g.elapsed).reshape(-1, *[1] * g.axes)
    if g.grading != 1:
        return reference.graded(method, b, g.times())
    return reference.uniform(method, b, g.wide(g.step), g.steps)


def multi_term(method: str, x: Leaves, g: Grid) -> Weights:
    orders = [g.wide(b) for b in (*x["b"], *[torch.zeros((), dtype=F64)] * (len(x["c"]) - len(x["b"])))]
    return reference.several(method, orders, [g.wide(c) for c in x["c"]], g.wide(g.step), g.steps, "velocity" in x)


def distributed(method: str, x: Leaves, g: Grid) -> Weights:
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(5))
    orders, factors = (nodes + 1) / 2, weights / 2 * (x["c"][0] + x["c"][1] * (nodes + 1) / 2)
    split = [[g.wide(v) for v in values] for values in (orders, factors)]
    return reference.several(method, *split, g.wide(g.step), g.steps, False)


def lag_weights(explicit: bool) -> Callable[[Tensor, Tensor, int], Tensor]:
    """What a user may write: a power law with a start of its own."""

    def weights(order: Tensor, step: Tensor, steps: int) -> Tensor:
        lag = torch.arange(steps + 1, dtype=F64)[:, None]
        w = step**order * 0.7 * (lag + 1.3) ** (order - 1)
        return torch.where(lag == 0, 0.0, w) if explicit else w

    return weights


def custom(method: str, x: Leaves, g: Grid) -> Weights:
    explicit = reference.formula(method).stage != "implicit"
    w = lag_weights(explicit)(x["b"].reshape(1), torch.full((1,), g.step, dtype=F64), g.steps)
    return reference.custom(method, w.reshape(-1, *[1] * g.axes))


ONE = {"b": 0.6}
KINDS = [
    Kind("number", lambda s: ONE, lambda x, e: x["b"], caputo),
    Kind("channels", per_channel, lambda x, e: x["b"], caputo),
    Kind("samples", lambda s: {"b": per_sample(0.5, 0.8, s)}, lambda x, e: x["b"], caputo),
    Kind("tempered", lambda s: {"b": 0.6, "r": 0.3}, lambda x, e: Tempered(x["b"], x["r"]), tempered),
    Kind("variable", lambda s: {"b": [0.7, 0.2]}, lambda x, e: VariableOrder(varying(x)), variable, toeplitz=False),
    Kind(
        "multi-term",
        lambda s: {"b": [0.9, 0.4], "c": [1.0, 0.5]},
        lambda x, e: MultiTerm(x["b"], x["c"]),
        multi_term,
        needs=frozenset({"series"}),
    ),
    Kind(
        "multi-term to 2",
        lambda s: {"b": [1.2, 0.5], "c": [1.0, 1.5, 0.8], "velocity": velocity(s)},
        lambda x, e: MultiTerm([*x["b"], 0.0], x["c"]),
        multi_term,
        given=("velocity",),
        needs=frozenset({"series", "two"}),
    ),
    Kind(
        "distributed",
        lambda s: {"c": [1.0, 0.5]},
        lambda x, e: DistributedOrder(5, density=lambda b: x["c"][0] + x["c"][1] * b),
        distributed,
        needs=frozenset({"series"}),
    ),
    Kind(
        "to 2",
        lambda s: {"b": 1.4, "velocity": velocity(s)},
        lambda x, e: x["b"],
        caputo,
        given=("velocity",),
        needs=frozenset({"two"}),
    ),
    Kind(
        "tempered to 2",
        lambda s: {"b": 1.3, "r": 0.3, "velocity": velocity(s)},
        lambda x, e: Tempered(x["b"], x["r"]),
        tempered,
        given=("velocity",),
        needs=frozenset({"two"}),
    ),
    Kind(
        "custom",
        lambda s: ONE,
        lambda x, e: CustomKernel(lag_weights(e), order=x["b"]),
        custom,
        needs=frozenset({"single"}),
    ),
    Kind(
        "horizon",
        lambda s: {"b": 0.6, "horizon": per_sample(0.7, 1.3, s)},
        lambda x, e: x["b"],
        caputo,
        given=("horizon",),
    ),
    Kind(
        "graded", lambda s: ONE, lambda x, e: x["b"], caputo, needs=frozenset({"graded"}), grading=2.0, toeplitz=False
    ),
    Kind(
        "graded variable",
        lambda s: {"b": [0.7, 0.2]},
        lambda x, e: VariableOrder(varying(x)),
        variable,
        needs=frozenset({"graded"}),
        grading=2.0,
        toeplitz=False,
    ),
]
