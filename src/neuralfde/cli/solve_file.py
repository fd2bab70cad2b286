"""Solve a fractional equation for a quick look: a table, a curve in the terminal, and with --out a figure.

MODEL is a function of yours, FILE.py:function, written as ``def function(t, z, rate=1.0)``; the last axis of z holds
the variables. Or an equation by name: logistic, lotka-volterra, sir.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..api import fdeint
from ..errors import ConvergenceError, InputError, NonFiniteError
from ..fitting.plotting import COLOURS
from .fit_models import Equation, model_of, try_out
from .options import METHODS, Options, numbers, option, pairs
from .report import Report, Row

SUMMARY = "solve an equation of yours for a quick look"
EXAMPLES = (
    "neuralfde solve model.py:decay --initial 1 --end 10 --order 0.7",
    "neuralfde solve model.py:decay --set rate=2 --out out",
    "neuralfde solve lotka-volterra --initial 2,1 --set a=1,b=1,c=1,d=1",
)
#: Heights of a curve in the terminal, and how many columns it takes.
_BARS, _WIDTH = "▁▂▃▄▅▆▇█", 48


@dataclass(frozen=True)
class Config(Options):
    """What is solved, from where and how far."""

    model: str = option("", "FILE.py:function, or a name", positional=True, reads=partial(model_of, fitted=False))
    initial: str = option("1", "initial values joined by commas", reads=numbers())
    end: float = option(10.0, "the time of the end", above=0)
    order: float = option(0.8, "order of the derivative; above 1 with --velocity", above=0, most=2)
    velocity: str = option("", "initial slopes, for an order above 1", reads=numbers())
    set: str = option("", "parameters in place of the defaults: name=value,name=value", reads=pairs)
    steps: int = option(1000, "steps of the solver", least=2, most=1_000_000)
    method: str = option("abm", "scheme of the solver", choices=METHODS)
    rows: int = option(11, "times in the table", least=2, most=10_000)


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each time of the table."""
    report = Report() if report is None else report
    if not config.model:
        raise InputError("this command needs a model: neuralfde solve FILE.py:function.")
    model = model_of(config.model, fitted=False)
    if not isinstance(model, Equation):
        raise InputError(f"{config.model} is a closed form; solve takes an equation, such as FILE.py:function.")
    times, states = _solved(config, model, config.steps)
    names = model.variables or tuple(f"z{k + 1}" for k in range(states.shape[1]))
    chosen = torch.linspace(0, len(times) - 1, min(config.rows, len(times))).round().long().tolist()
    for k in chosen:
        row = {"time": float(times[k]), **dict(zip(names, states[k].tolist(), strict=False))}
        report.case(f"{float(times[k]):g}", lambda row=row: row)  # type: ignore[misc]
    report.message(f"{model.formula}, β = {config.order:g}")
    report.message(_compared(config, model, times[chosen], states[chosen]))
    for name, curve in zip(names, states.T, strict=False):
        report.message(f"{name:>4} {_line(curve)} {float(curve.min()):.4g} to {float(curve.max()):.4g}")
    if report.wants_figures:
        report.figure("solution", _figure(times, states, names))
    return report.rows


def _compared(config: Config, model: Equation, times: Tensor, states: Tensor) -> str:
    """How much the table depends on the number of steps, as far as half of them can tell."""
    fewer = max(1, config.steps // 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the difference tells
            coarse = _solved(config, model, fewer, times)[1]
    except (ConvergenceError, NonFiniteError):
        return f"with {fewer} steps the solution does not reach the end: take more --steps to be sure"
    size, change = float(states.abs().max()), float((coarse - states).abs().max())
    advice = "" if change <= 0.01 * size else ": take more --steps"
    return f"with {fewer} steps values differ by up to {change:.2g}, of up to {size:.3g}{advice}"


def _solved(config: Config, model: Equation, steps: int, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Times, of all steps unless some are given, and the states there (times, variables)."""
    z0 = torch.tensor(numbers()(config.initial), dtype=torch.float64)
    given = pairs(config.set) if config.set else {}
    names = [*inspect.signature(model.func).parameters][2:]
    defaults = {} if model.variables else model.guess(z0, z0)
    unknown, missing = sorted({*given} - {*names}), [n for n in names if n not in defaults | given]
    if unknown:
        raise InputError(f"--set names {', '.join(unknown)}; the parameters are {', '.join(names) or 'none'}.")
    if missing:
        example = ",".join(f"{n}=1" for n in missing)
        raise InputError(f"{config.model} has no default for {', '.join(missing)}. Give numbers: --set {example}.")
    if model.variables and len(z0) > len(model.variables):
        raise InputError(f"--initial has {len(z0)} values for the variables {', '.join(model.variables)}. Give fewer.")
    velocity = None
    if config.velocity:
        velocity = torch.tensor(numbers()(config.velocity), dtype=torch.float64)
    times = torch.linspace(0, config.end, steps + 1, dtype=torch.float64) if times is None else times
    try_out(config.model, model, times[0], z0, defaults | given)
    func = lambda t, z: model.func(t, z, **defaults | given)  # noqa: E731
    found: Tensor = fdeint(func, z0, times, config.order, steps=steps, method=config.method, velocity=velocity)
    return times, found


def _line(curve: Tensor) -> str:
    """A curve as one line of text."""
    at = torch.linspace(0, len(curve) - 1, _WIDTH).round().long()
    low, high = float(curve.min()), float(curve.max())
    heights = (curve[at] - low) / (high - low or 1.0) * (len(_BARS) - 1)
    return "".join(_BARS[round(h)] for h in heights.tolist())


def _figure(times: Tensor, states: Tensor, names: tuple[str, ...]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4), layout="constrained")
    axis = figure.subplots()
    for k, (name, curve) in enumerate(zip(names, states.T, strict=False)):
        axis.plot(times, curve, color=COLOURS[k % len(COLOURS)], label=name)
    axis.set(xlabel="time")
    axis.legend(frameon=False)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
