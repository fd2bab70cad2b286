"""Small right-hand sides and helpers that many tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralfde import operators

F64 = torch.float64
OPERATORS = [
    operators.caputo_derivative,
    operators.fractional_integral,
    operators.grunwald_letnikov_derivative,
    operators.riemann_liouville_derivative,
]


class Net(nn.Module):
    """A small non-linear field that depends on time, on its parameters and on an argument."""

    def __init__(self, width: int = 3, dtype: torch.dtype = F64) -> None:
        super().__init__()
        self.a = nn.Linear(width, 5, dtype=dtype)
        self.b = nn.Linear(5, width, dtype=dtype)

    def forward(self, t: Tensor, z: Tensor, u: Tensor | None = None) -> Tensor:
        out = self.b(torch.tanh(self.a(z))) * torch.cos(t)
        return out if u is None else out + u


class Autonomous(nn.Module):
    """A network of the state as a field that does not depend on time."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.net(z)


def robertson(t: Tensor, z: Tensor) -> Tensor:
    """Robertson's reaction, of rates from 0.04 to 3e7."""
    a, b, c = z.unbind(-1)
    slow, back, fast = 0.04 * a, 1e4 * b * c, 3e7 * b * b
    return torch.stack([back - slow, slow - back - fast, fast], -1)


class TreeNet(nn.Module):
    """The same for a nested state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, t: Tensor, z: dict, u: Tensor | None = None) -> dict:
        x, (y,) = z["x"], z["rest"]
        v = self.net(t, x, u)
        return {"x": v - 0.1 * y.sum(), "rest": (torch.sin(y) * v.mean(),)}


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach(), b.detach()
    return float((a - b).norm() / b.norm().clamp(min=1e-300))


def flat(tensors) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
