"""Solves that threads and processes can be asked for; each gives a row of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuralfde import fdeint

TIMES = torch.linspace(0, 1, 13, dtype=torch.float64)


class Net(nn.Module):
    """A small field; with noise it is linear in the state."""

    def __init__(self, seed: int, noise: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.w = nn.Parameter(torch.rand(4, 4, dtype=torch.float64, generator=generator) - 0.5)
        self.drop = nn.Dropout(0.3) if noise else None

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """The right-hand side."""
        return torch.tanh(z @ self.w) - 0.3 * z if self.drop is None else self.drop(z @ self.w) - 0.3 * z


def forward(seed: int, noise: bool, method: str, stepper: str) -> tuple[Net, Tensor, Tensor]:
    """The field, the initial state and the loss of a solve."""
    net = Net(seed, noise)
    z0 = torch.full((3, 4), 0.1 * seed + 0.2, dtype=torch.float64, requires_grad=True)
    ys = fdeint(net, z0, TIMES, 0.7, steps=12, method=method, stepper=stepper)
    return net, z0, ys.sum() if noise else ys.square().sum()


def backward(net: Net, z0: Tensor, loss: Tensor) -> Tensor:
    """Loss and gradients in one row.

    With noise, which differs from run to run, the row is one number: a loss that is linear in ``z0`` is its gradient
    times ``z0``, whatever was drawn, as long as the backward pass has met the same noise. It is 1 then.
    """
    grads = torch.autograd.grad(loss, [net.w, z0])
    if net.drop is not None:
        return ((grads[1] * z0).sum() / loss).detach().reshape(1)
    return torch.cat([loss.detach().reshape(1), *[g.reshape(-1) for g in grads]])


def whole(seed: int, noise: bool, method: str, stepper: str) -> Tensor:
    """Both passes."""
    return backward(*forward(seed, noise, method, stepper))


def queued(queue: Any, index: int, *given: Any) -> None:
    """For another process: the row as a list, with its number."""
    torch.set_num_threads(1)
    queue.put((index, whole(index, *given).tolist()))


class Solves(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A data set whose items are solves."""

    def __init__(self, count: int, *given: Any) -> None:
        self.count, self.given = count, given

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return whole(index, *self.given)
