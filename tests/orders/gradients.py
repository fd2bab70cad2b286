"""One contract for everything that can be learned in an operator: exact = direct = central differences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neuralfde import fdeint

T64 = torch.float64


@dataclass(frozen=True)
class Case:
    """An equation as a function of the tensors it depends on."""

    name: str
    values: dict[str, list]
    operator: Callable[[dict[str, Tensor]], Any]
    method: str = "predictor"
    options: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()  # values passed on as options of fdeint: velocity, horizon
    state: tuple[int, ...] = (2, 3)
    t: Any = (0.0, 0.35, 1.0)

    def __str__(self) -> str:
        return f"{self.name}-{self.method}"


def right_hand_side(t: Tensor, z: Tensor, a: Tensor) -> Tensor:
    return torch.sin(a * z) - 0.4 * z * z + torch.cos(2 * t) * a


def tensors_of(case: Case) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    found = {k: torch.tensor(v, dtype=T64, requires_grad=True) for k, v in case.values.items()}
    found["z0"] = torch.rand(case.state, dtype=T64, generator=g).requires_grad_()
    found["a"] = torch.tensor(0.8, dtype=T64, requires_grad=True)
    return found


def loss_of(case: Case, x: dict[str, Tensor], adjoint: str) -> Tensor:
    options = {"steps": 24, **case.options, **{k: x[k] for k in case.given}}
    t = torch.tensor(case.t, dtype=T64) if isinstance(case.t, tuple) else case.t
    ys = fdeint(
        right_hand_side, x["z0"], t, case.operator(x), method=case.method, adjoint=adjoint, args=(x["a"],), **options
    )
    weights = torch.linspace(0.5, 1.5, ys.numel(), dtype=T64).reshape(ys.shape)
    return (weights * ys).sum()


def gradients(case: Case, adjoint: str) -> dict[str, Tensor]:
    x = tensors_of(case)
    found = torch.autograd.grad(loss_of(case, x, adjoint), list(x.values()))
    return dict(zip(x, found, strict=True))


def differences(case: Case) -> dict[str, Tensor]:
    """Central differences of fourth order."""
    x = {k: v.detach() for k, v in tensors_of(case).items()}
    result = {}
    for name, value in x.items():
        grad = torch.zeros_like(value)
        for k in range(value.numel()):

            def shifted(d: float) -> float:
                moved = value.clone()
                moved.view(-1)[k] += d
                with torch.no_grad():
                    return float(loss_of(case, {**x, name: moved}, "exact"))

            h = 2e-3
            grad.view(-1)[k] = (8 * (shifted(h) - shifted(-h)) - (shifted(2 * h) - shifted(-2 * h))) / (12 * h)
            fine = (8 * (shifted(h / 2) - shifted(-h / 2)) - (shifted(h) - shifted(-h))) / (6 * h)
            grad.view(-1)[k] = (16 * fine - grad.view(-1)[k]) / 15
        result[name] = grad
    return result


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the size of each gradient, or to 1 where it is smaller."""
    return {k: float((a[k] - b[k]).abs().max() / b[k].abs().max().clamp(min=1)) for k in a}
