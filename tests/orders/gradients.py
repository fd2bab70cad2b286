"""One contract for everything that can be learned in an operator: exact = direct = central differences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from neuralfde import FixedPoint, fdeint
from neuralfde.door.names import METHODS

T64 = torch.float64
STEPS = 10


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
    options = {"steps": STEPS, **case.options, **{k: x[k] for k in case.given}}
    if METHODS[case.method].implicit and not torch.is_grad_enabled():
        options["solver"] = FixedPoint(tol=2e-15)
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
    """Central differences, extrapolated to fourth order; of the initial values along one direction only."""
    x = {k: v.detach() for k, v in tensors_of(case).items()}
    result = {}
    for name, value in x.items():
        directions = torch.eye(value.numel(), dtype=T64) if name not in ALONG else direction(value)[None]

        def slope(d: Tensor, h: float) -> float:
            with torch.no_grad():
                ends = [float(loss_of(case, {**x, name: value + s * h * d.view_as(value)}, "exact")) for s in (1, -1)]
            return (ends[0] - ends[1]) / (2 * h)

        result[name] = torch.tensor([(4 * slope(d, 5e-4) - slope(d, 1e-3)) / 3 for d in directions], dtype=T64)
    return result


ALONG = ("z0", "velocity", "w")


def direction(value: Tensor) -> Tensor:
    """A fixed direction, so that one difference checks every entry."""
    return torch.cos(torch.arange(value.numel(), dtype=T64))


def projected(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients in the form of :func:`differences`."""
    return {k: (g.flatten() @ direction(g))[None] if k in ALONG else g.flatten() for k, g in found.items()}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the size of each gradient, or to 1 where it is smaller."""
    return {k: float((a[k] - b[k]).abs().max() / b[k].abs().max().clamp(min=1)) for k in a}
