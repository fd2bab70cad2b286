"""Recurrent forecasters that differ only in their state: a fractional equation of learned or first order, an LSTM.

A series is read and forecast in patches. The state gets one patch after the other: values and known inputs up to now,
then only known inputs; each patch of the forecast is read from the state after its inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralfde.nn import FDEBlock

#: The number of values in a patch, of inputs and of forecasts.
PATCH = 24
#: The step size of the solver in the time of the latent state, one patch. With 1 the weight of a step,
#: h^β / Γ(β + 1), is between 1 and 1.13 for all orders.
STEP = 1.0
MODELS = ("learned order", "order 1", "LSTM")


class Slope(nn.Module):
    """``f(z, u) - k z`` with learned rates k in (0, 1); inputs u (patches, batch, inputs) are constant in each step."""

    def __init__(self, inputs: int, latent: int, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(latent + inputs, width), nn.Tanh(), nn.Linear(width, latent))
        self.raw_rate = nn.Parameter(torch.linspace(-3, 1, latent))

    def forward(self, t: Tensor, z: Tensor, inputs: Tensor) -> Tensor:
        """The slope at the beginning of a step."""
        now = inputs[(t / STEP).round().long()]
        return self.net(torch.cat([z, now], -1)) - torch.sigmoid(self.raw_rate) * z  # type: ignore[no-any-return]


class FractionalState(nn.Module):
    """``D^β z = f(z, u(t)) - k z`` from z = 0; if orders are learned, one for each element of the state."""

    def __init__(self, inputs: int, latent: int, width: int, order: float, learn_order: bool) -> None:
        super().__init__()
        orders = torch.full((latent,), order, dtype=torch.float64) if learn_order else order
        self.block = FDEBlock(Slope(inputs, latent, width), orders, learn_order, step=STEP, method="predictor")
        self.latent = latent

    def forward(self, inputs: Tensor) -> Tensor:
        """The states after each patch, (patches, batch, latent)."""
        times = STEP * torch.arange(len(inputs) + 1, dtype=torch.float64)
        return self.block(inputs.new_zeros(inputs.shape[1], self.latent), inputs, t=times)[1:]  # type: ignore[no-any-return]


class LSTMState(nn.LSTM):
    """The state of an LSTM."""

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        """The states after each patch, (patches, batch, latent)."""
        return super().forward(inputs)[0]  # type: ignore[no-any-return]


class Forecaster(nn.Module):
    """A state that gets patches, and a network that reads patches from it; before training it forecasts the level."""

    def __init__(self, state: nn.Module, latent: int, width: int) -> None:
        super().__init__()
        self.state = state
        self.head = nn.Sequential(nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, PATCH))
        last = self.head[2]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, inputs: Tensor, horizon: int) -> Tensor:
        """Deviations from the level over the horizon, (batch, horizon)."""
        ahead = self.state(inputs)[-(horizon // PATCH) :]
        return self.head(ahead).transpose(0, 1).flatten(1)  # type: ignore[no-any-return]

    @property
    def orders(self) -> list[float]:
        """The orders of a fractional state."""
        block = getattr(self.state, "block", None)
        return [] if block is None else block.order.detach().reshape(-1).tolist()  # type: ignore[no-any-return]


def build(model: str, inputs: int, latent: int, width: int) -> Forecaster:
    """One of ``MODELS``; the LSTM is the largest with no more parameters than the fractional model."""
    if model == "LSTM":
        most = size(build("order 1", inputs, latent, width))
        with torch.device("meta"):  # counted, not filled
            fitting = [n for n in range(1, 4 * latent) if size(_lstm(inputs, n, width)) <= most]
        return _lstm(inputs, max(fitting, default=1), width)
    learned = model == "learned order"
    state = FractionalState(inputs, latent, width, 0.8 if learned else 1.0, learned)
    return Forecaster(state, latent, width)


def _lstm(inputs: int, latent: int, width: int) -> Forecaster:
    return Forecaster(LSTMState(inputs, latent), latent, width)


def size(model: nn.Module) -> int:
    """The number of trained parameters."""
    return sum(p.numel() for p in model.parameters())
