"""What a fit returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .data import Data, doubles
from .diagnostics import Diagnostics
from .intervals import wide
from .population import Population, population
from .problem import Problem
from .profile import Profile
from .steps import mean_step, points, until
from .unknowns import ORDER


@dataclass(frozen=True)
class Fit:
    """Estimates, their uncertainty, and how the fit went; shapes are T times, B trajectories, m observed variables.

    Attributes:
        estimates: every unknown by name, with an index if it is not a scalar.
        order: the order, fitted or given.
        intervals: 95 % intervals by name; empty if none were computed.
        covariance: the covariance of the unknowns, in the order of ``estimates``; None if none was computed.
        noise: the standard deviation of the residuals, in units of ``noise=`` if that was given.
        loss: the mean squared scaled residual.
        history: the loss after every iteration.
        converged: whether the optimiser met its tolerance.
        message: why it stopped.
        times, observed, predicted: (T,), (T, B, m), (T, B, m); NaN where nothing was measured.
        step_shift: by how much each estimate would move with half the solver's step, to first order; empty without
            Gauss-Newton intervals.
        model: the model with the estimates.
        identifiable: whether the data determine the order; None if it was given.
        profile: the profile of the loss over the order, if one was computed.
        diagnostics: correlated residuals, estimates at a bound, unknowns that the data do not determine.
        variables: the names of the measured variables.
        seconds: wall time.
    """

    estimates: dict[str, float]
    order: float
    intervals: dict[str, tuple[float, float]]
    covariance: Tensor | None
    noise: float
    loss: float
    history: list[float]
    converged: bool
    message: str
    times: Tensor
    observed: Tensor
    predicted: Tensor
    step_shift: dict[str, float]
    model: nn.Module
    diagnostics: Diagnostics
    identifiable: bool | None = None
    profile: Profile | None = None
    variables: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: Problem = field(repr=False, kw_only=True)
    flat: Tensor = field(repr=False, kw_only=True)

    @property
    def residuals(self) -> Tensor:
        """Observed minus predicted, (T, B, m); NaN where nothing was measured."""
        return self.observed - self.predicted

    def predict(self, times: Tensor, initial: Tensor | None = None, states: bool = False) -> Tensor:
        """Predicted observations (or whole states) at other times, (T, B, m), from the fitted or given initial states.

        The first of ``times`` may be later than the initial time of the data; the step is at most that of the fit.
        """
        times = doubles("times", times)
        start = float(self.times[0])
        if times.ndim != 1 or not len(times) or not bool((times.isfinite() & (times >= start)).all()):
            raise InputError(f"times must be a row of at least one number, none before the initial time {start:g}.")
        late = float(times[0]) > start
        asked = torch.cat([self.times[:1], times]) if late else times
        named = self.problem.unknowns.split(self.flat)
        if initial is not None:
            given, width = doubles("initial", initial), self.problem.initial.shape[-1]
            if given.ndim not in (1, 2) or given.shape[-1] != width:
                raise InputError(
                    f"initial has shape {tuple(given.shape)}; a state of this fit has {width} variables: "
                    f"({width},) or (trajectories, {width})."
                )
            named = {**named, "initial": given[None] if given.ndim == 1 else given}
        with torch.no_grad():
            found = self.problem.solve(named, asked, **until(self.problem.options, self.times, float(asked[-1])))
            found = found if states else self.problem.observe(found)
        return found[1:] if late else found

    def band(self, times: Tensor, noise: bool = True) -> tuple[Tensor, Tensor]:
        """Lower and upper limits of the 95 % band around the predictions, each (T, B, m), by the delta method.

        With ``noise`` it is the band of a new measurement, otherwise that of the curve itself. Estimates that the data
        do not determine are treated as known.
        """
        if self.covariance is None:
            raise InputError("a band needs the covariance of the estimates: fit with intervals='gauss-newton'.")
        times = doubles("times", times)
        middle = self.predict(times)
        late = float(times[0]) > float(self.times[0])
        asked = torch.cat([self.times[:1], times]) if late else times
        ones = torch.ones(len(asked), *middle.shape[1:], dtype=torch.float64)
        options = until(self.problem.options, self.times, float(asked[-1]))
        there = replace(self.problem, data=Data(asked, 0 * ones, ones, True), options=options, robust=None)
        matrix = there.jacobian(self.flat)[1]
        variance = ((matrix @ self.covariance) * matrix).sum(-1).clamp(min=0).reshape(ones.shape)[int(late) :]
        if noise:
            data = self.problem.data
            typical = (
                torch.where(data.seen, 1 / data.scale.clamp(min=1e-300), torch.nan).flatten(0, 1).nanmedian(0).values
            )
            variance = variance + (self.noise * typical).square()
        half = wide(self.problem, self.problem.data.count - len(self.flat)) * variance.sqrt()
        return middle - half, middle + half

    def population(self, name: str) -> Population:
        """Mean and spread over the trajectories of a parameter in ``each=``, and the estimates shrunk towards the mean.

        The estimates of single trajectories are assumed to be independent; those that the data do not determine are
        left out. Needs the covariance that Gauss-Newton intervals provide.
        """
        if name not in self.problem.each:
            raise InputError(f"{name!r} was not fitted separately for each trajectory: fit with each=[{name!r}].")
        if self.covariance is None:
            raise InputError("a population needs the covariance of the estimates: fit with intervals='gauss-newton'.")
        labels = list(self.estimates)
        mine = [k for k, label in enumerate(labels) if label.startswith(f"{name}[")]
        known = torch.tensor([labels[k] not in self.diagnostics.undetermined for k in mine])
        return population(self.flat[mine], self.covariance.diagonal()[mine].where(known, torch.inf))

    def grid(self, end: float | None = None) -> Tensor:
        """The grid points of the solver, up to ``end`` (default: the last time of the data)."""
        return points(self.problem.options, self.times, float(self.times[-1] if end is None else end))

    @property
    def steps(self) -> int:
        """The number of steps of the solver over the times of the data."""
        return round(float(self.times[-1] - self.times[0]) / mean_step(self.problem.options, self.times))

    def summary(self) -> str:
        """A text with a table of the estimates and a few lines on how the fit went."""
        width = max([len(n) for n in self.estimates] + [9])
        lines = [f"{'unknown':<{width}}  {'estimate':>12}  {'95 % interval':>28}"]
        for name, value in self.estimates.items():
            low, high = self.intervals.get(name, (math.nan, math.nan))
            shown = "" if math.isnan(low) else f"[{low:.6g}, {high:.6g}]"
            lines.append(f"{name:<{width}}  {value:>12.6g}  {shown:>28}")
        if ORDER not in self.estimates:
            lines.append(f"{'order':<{width}}  {self.order:>12.6g}  {'(given)':>28}")
        lines.append(f"loss {self.loss:.4g} over {self.problem.data.count} values, residual deviation {self.noise:.4g}")
        lines.append(f"{self.message} after {len(self.history)} iterations, {self.seconds:.1f} s")
        if self.identifiable is False:
            lines.append("the order is NOT identifiable from these data" + self._range())
        elif self.identifiable:
            lines.append("the order is identifiable from these data" + self._range())
        lines += self.diagnostics.lines()
        return "\n".join(lines)

    def __str__(self) -> str:
        """What ``print`` shows."""
        return self.summary()

    def _range(self) -> str:
        if self.profile is None:
            return ""
        low, high = self.profile.interval
        return f": orders from {low:.3f} to {high:.3f} are compatible with them"

    def plot(self, path: str | Path | None = None, labels: list[str] | None = None) -> Any:
        """A matplotlib figure of data and fitted curves with their 95 % band, the loss, and the profile over the order.

        With ``path`` the figure is saved there and closed. ``labels`` are names for the variables.
        """
        from .plotting import draw

        return draw(self, path, labels)
