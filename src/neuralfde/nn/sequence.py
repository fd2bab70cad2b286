"""A model for time series: an encoder, a latent state that follows a fractional equation, and a decoder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..base.checks import plain, real, reals, valued, whole
from ..base.policy import SERIES_LENGTH
from ..errors import InputError
from .block import FDEBlock
from .series import Series, read, resampled


class SequenceModel(nn.Module):
    """``D^β z = f(z, u(t))``, ``z(0) = encoder(observations)``, ``x(t) = decoder(z(t))``, each a small network.

    The encoder uses the first value of each variable, and the mean over all observations up to ``window`` of a network
    applied to each of them. With a ``window`` the model is trained to forecast. Time counts from the beginning of each
    series, in tenths of the longest series that the model was created for. ``of`` creates a model for given data; it
    then normalises values and inputs by the mean and spread of these data, which are saved with it.

    Args:
        variables: the number of variables of a series.
        inputs: the number of known inputs ``u(t)``, interpolated linearly between the times of a series.
        latent: the size of the latent state.
        width: the hidden size of each network.
        order: β, or a list with one order for each element of the latent state.
        learn_order: train the order too.
        window: the encoder sees values up to this time of each series; None: all values.
        steps: the number of steps of the solver over the longest series.
        method: the scheme.
    """

    def __init__(
        self,
        variables: int,
        inputs: int = 0,
        latent: int = 8,
        width: int = 32,
        order: float | list[float] = 0.8,
        learn_order: bool = True,
        window: float | None = None,
        steps: int = 64,
        method: str = "predictor",
    ) -> None:
        super().__init__()
        self.config = {k: plain(v) for k, v in locals().items() if k not in ("self", "__class__")}
        for name in ("variables", "latent", "width", "steps"):
            whole(name, self.config[name])
        whole("inputs", inputs, least=0)
        self.window = math.inf if window is None else real("window", window, above=0)
        self.steps = steps
        self.seen = _network(1 + 2 * variables + inputs, width, width)
        self.begin = nn.Linear(width + variables, latent)
        self.decoder = _network(latent, width, variables)
        field = _Field(_network(latent + inputs, width, latent))
        beta = torch.tensor(order, dtype=torch.float64) if isinstance(order, list) else order
        if isinstance(beta, Tensor) and beta.shape not in ((), (1,), (latent,)):
            raise InputError(f"order has shape {tuple(beta.shape)} for latent={latent}: give one number, or {latent}.")
        self.block = FDEBlock(field, beta, learn_order, steps=steps, method=method)
        self.span: Tensor
        self.register_buffer("span", torch.tensor(1.0 / SERIES_LENGTH, dtype=torch.float64))
        for name, count in (("values", variables), ("inputs", inputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(count))
            self.register_buffer(f"{name}_scale", torch.ones(count))

    @classmethod
    def of(cls, series: Any, **options: Any) -> SequenceModel:
        """Create a model for these series, with their numbers of variables and inputs and their normalisation."""
        batch = read(series)
        inputs = 0 if batch.inputs is None else batch.inputs.shape[-1]
        model = cls(batch.values.shape[-1], inputs, **options)
        model.span.fill_((float(batch.elapsed.nan_to_num(0).max()) or 1.0) / SERIES_LENGTH)
        for name, given in (("values", batch.values), ("inputs", batch.inputs)):
            if given is not None:
                flat = given.flatten(0, 1)
                mean = flat.nanmean(0).nan_to_num(0)
                spread = (flat - mean).square().nanmean(0).sqrt().nan_to_num(0)
                _keeps_digits(name, flat, spread)
                getattr(model, f"{name}_mean").copy_(mean)
                getattr(model, f"{name}_scale").copy_(torch.where(spread > 0, spread, 1.0))
        return model

    @property
    def order(self) -> Tensor:
        """The order of the latent equation."""
        found = self.block.order
        assert isinstance(found, Tensor)
        return found

    def forward(self, series: Any) -> Tensor:
        """Predictions (batch, time, variables) at all times of the series, also where no value was observed.

        To forecast, extend the series with NaN values (and known inputs), or call ``forecast``.
        """
        batch = self._read(series)
        valued("this model", self.span)
        values, inputs = self._normal("values", batch.values), self._normal("inputs", batch.inputs)
        times = batch.elapsed / float(self.span)
        z0 = self.begin(self._pooled(batch, times, values, inputs))
        end = float(times.nan_to_num(0).max())
        if not end > 0:
            raise InputError("no series has a time after its first; at least one is needed.")
        steps = max(1, math.ceil(end / SERIES_LENGTH * self.steps - 1e-9))
        # steps of one length, whichever series are together: beyond the longest one to the end of a step
        end = max(end, steps * SERIES_LENGTH / self.steps)
        known: tuple[Any, ...] = ()
        if inputs is not None:
            grid = torch.linspace(0, end, steps + 1, dtype=torch.float64)
            known = (resampled(times, inputs, grid), steps / end)
        last = times.nan_to_num(-math.inf).max(1, keepdim=True).values
        asked = torch.cat([torch.where(times.isnan(), last, times), torch.full_like(last, end)], 1)
        states = self.block(z0, *known, t=asked, steps=steps)[:-1]
        return self.decoder(states).transpose(0, 1) * self.values_scale + self.values_mean

    def loss(self, series: Any) -> Tensor:
        """The mean squared error over all observed values, in units of the variance of each variable."""
        batch = self._read(series)
        if not bool(batch.observed.any()):
            raise InputError("every value of these series is NaN, so that a loss has no terms; leave them out.")
        rest = (self(batch) - batch.values.nan_to_num(0)) / self.values_scale
        return rest.square()[batch.observed].mean()

    @torch.no_grad()
    def forecast(self, series: Any, times: Any) -> Tensor:
        """Predictions (batch, times, variables) at later times, the same for all series; inputs keep their last value.

        The encoder sees all values observed up to ``window``.
        """
        batch = self._read(series)
        later = reals("times", times).double()
        last = batch.times.nan_to_num(-math.inf).max(1).values
        if later.ndim != 1 or not len(later) or not bool((later[0] >= last).all() and (later.diff() >= 0).all()):
            raise InputError(
                "times must be a list of at least one time that does not decrease, from the last one of the series on: "
                f"{float(last.max()):.9g}."
            )
        values = batch.values.new_full((len(later), batch.values.shape[-1]), math.nan)
        longer, ends = [], batch.times.isfinite().sum(1).tolist()
        for k, n in enumerate(ends):  # the new times stand after the last one of each series, before what fills it up
            held = [] if batch.inputs is None else [batch.inputs[k, n - 1 : n].expand(len(later), -1)]
            own = [x[k, :n] for x in batch if x is not None]
            longer.append(tuple(torch.cat(pair) for pair in zip(own, (later, values, *held), strict=True)))
        found = self(longer)
        return torch.stack([found[k, n : n + len(later)] for k, n in enumerate(ends)])

    def save(self, path: str | Path) -> None:
        """Write sizes, weights and normalisation to a file, which contains only tensors and numbers."""
        torch.save({"config": self.config, "state": self.state_dict()}, path)

    @classmethod
    def load(cls, path: str | Path) -> SequenceModel:
        """Load a model that ``save`` wrote, to the CPU, in its dtype, with ``weights_only=True``: no code is run."""
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:
            raise InputError(f"{path} is no file that can be read: {type(error).__name__}. Save it again.") from error
        if not isinstance(kept, dict) or kept.keys() != {"config", "state"}:
            raise InputError(f"{path} holds no SequenceModel; save one with model.save(path).")
        try:
            model = cls(**kept["config"])
            model.load_state_dict(kept["state"], assign=True)
        except (TypeError, RuntimeError) as error:
            raise InputError(
                f"{path} holds another model than SequenceModel of this version makes; save it again: {error}"
            ) from error
        return model

    def _read(self, series: Any) -> Series:
        batch = read(series)
        counts = (batch.values.shape[-1], 0 if batch.inputs is None else batch.inputs.shape[-1])
        if counts != (self.config["variables"], self.config["inputs"]):
            raise InputError(
                f"the series have {counts[0]} variables and {counts[1]} inputs, the model {self.config['variables']} "
                f"and {self.config['inputs']}. Make one for them: SequenceModel.of(series)."
            )
        return batch.to(self.begin.weight)

    def _normal(self, name: str, given: Tensor | None) -> Tensor | None:
        if given is None:
            return None
        return (given - getattr(self, f"{name}_mean")) / getattr(self, f"{name}_scale")

    def _pooled(self, batch: Series, times: Tensor, values: Tensor | None, inputs: Tensor | None) -> Tensor:
        """What a network makes of each observation in the window, its mean, and the first ones: (batch, …)."""
        assert values is not None
        there = batch.observed & (batch.elapsed <= self.window).to(values.device)[..., None]
        parts = [times.to(values)[..., None] / SERIES_LENGTH, torch.where(there, values, 0.0), there.to(values)]
        parts += [] if inputs is None else [inputs]
        each = self.seen(torch.cat(parts, -1).nan_to_num(0))
        counts = there.any(-1, keepdim=True).to(values)
        first = parts[1].take_along_dim(there.int().argmax(1, keepdim=True), 1)[:, 0]
        return torch.cat([(each * counts).sum(1) / counts.sum(1).clamp(min=1), first], -1)


def _keeps_digits(name: str, given: Tensor, spread: Tensor) -> None:
    """Refuse numbers that differ by less than the precision of a model, as metres or pascals with an offset may."""
    dtype = torch.get_default_dtype()
    lost = (given - given.to(dtype)).abs().nan_to_num(0).amax(0)
    share = torch.where(spread > 0, lost / spread, 0.0)
    if bool((share > 0.01).any()):
        k = int(share.argmax())
        raise InputError(
            f"{name}[:, {k}] vary by {float(spread[k]):.3g} around {float(given[:, k].nanmean()):.6g}, and {dtype} "
            f"rounds them by {float(lost[k]):.2g}. Subtract an offset, or call torch.set_default_dtype(torch.float64)."
        )


class _Field(nn.Module):
    """The slope of the latent state; inputs are tabulated on the grid, (points, batch, inputs)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, z: Tensor, table: Tensor | None = None, rate: float = 0.0) -> Tensor:
        """``rate``: points of the grid in a unit of time."""
        if table is None:
            return self.net(z)  # type: ignore[no-any-return]
        at = t * rate
        low = at.floor().long().clamp(0, len(table) - 2)
        u = torch.lerp(table[low], table[low + 1], at - low)
        return self.net(torch.cat([z, u], -1))  # type: ignore[no-any-return]


def _network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))
