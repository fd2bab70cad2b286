"""Fit a fractional model to a table of measurements: parameters and order with 95 % intervals, a figure, a page.

FILE is a table with a column of times and columns of measurements; tabs, semicolons, commas or blanks separate them,
decimals may have commas, names and units may stand above. Models: relaxation, zener, maxwell (closed forms), logistic,
lotka-volterra, sir (one column: I; three: S, I, R), or a function of yours, FILE.py:function, written as
``def function(t, z, rate=1.0)`` with first guesses as defaults. --since and --until leave out early and late rows,
--gaps cells without a number. With --out DIR a figure and report.html are kept.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, NonFiniteError
from ..fitting import FitWarning, fit, fit_curve
from .fit_data import Measured, measured
from .fit_models import MODELS, Curve, Equation, model_of, try_out
from .fit_page import Found, draw, write_page
from .options import METHODS, Options, flag, option, pairs
from .report import Report, Row

SUMMARY = "fit a model and its order to a table of yours"
EXAMPLES = (
    "neuralfde fit data.csv --model relaxation --log --out out",
    "neuralfde fit first.csv second.csv --model zener --bootstrap 200",
    "neuralfde fit pelts.csv --model lotka-volterra --values hare,lynx",
    "neuralfde fit data.csv --model model.py:decay --order 1 --no-learn-order",
)
COLUMNS = ("parameter", "estimate", "low", "high")


@dataclass(frozen=True)
class Config(Options):
    """What is fitted to which columns."""

    file: str = option("", "table of measurements; several repeat the experiment", positional="several")
    model: str = option("relaxation", f"{', '.join(MODELS)} or FILE.py:function", reads=model_of)
    skip: int = option(0, "lines above the table that are no part of it")
    time: str = option("1", "column of times, by name or by number from 1 on")
    values: str = option("", "columns of measurements, names or numbers joined by commas; empty: all others")
    since: float | None = option(None, "leave out rows before this time; times stay as they are", least=-math.inf)
    until: float | None = option(None, "leave out rows after this time", least=-math.inf)
    gaps: bool = option(False, "leave out cells that are empty, NaN, NA or null; they are refused otherwise")
    order: float = option(
        0.8,
        "order of the derivative, or where its search starts; that of a closed form also starts at 0.5 and 0.2",
        least=0.02,
        most=1,
    )
    learn_order: bool = option(True, "find the order too")
    log: bool = option(False, "compare logarithms, so that every decade counts alike")
    start: str = option("", "first guesses in place of the model's: name=value,name=value", reads=pairs)
    bootstrap: int = option(
        0, "intervals from so many fits to residuals dealt out anew; 0: from the Jacobian", least=2, most=10_000
    )
    steps: int = option(0, "grid steps of the solver; 0: by the number of times", least=2, most=100_000)
    method: str = option("abm", "scheme of the solver", choices=METHODS)


def run(config: Config, report: Report | None = None) -> list[Row]:
    """One row for each parameter, and one on the fit as a whole."""
    report = Report() if report is None else report
    model = model_of(config.model)
    data = _read(config, model, report)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solve = _curve if isinstance(model, Curve) else _equation
        found = solve(config, model, data, report)  # type: ignore[arg-type]
    for name, value in found.estimates.items():
        low, high = found.intervals.get(name, (None, None))
        row = {"parameter": name, "estimate": value, "low": low, "high": high}
        report.case(name, lambda row=row: row)  # type: ignore[misc]
    told = [_as_options(str(w.message)) for w in caught if issubclass(w.category, UserWarning)]
    whole = {"model": config.model, "formula": model.formula, "points": len(data.times), "r_squared": found.r_squared}
    whole |= {"converged": found.converged, "warnings": told}
    report.case("fit", lambda: whole)
    report.message(f"{model.formula}; R² {found.r_squared:.5f}")
    for text in told:
        report.message(f"note: {text}")
    if not found.converged:
        report.verdict("the search converged", False, "give other first guesses with --start")
    if report.folder is not None:
        figure = draw(found, config.log)
        report.figure("fit", figure)
        write_page(report.folder, config.file, found, whole, config.log)
    return report.rows


def _as_options(text: str) -> str:
    """Advice on arguments of ``fit`` as advice on options, where the command has them."""
    names = {field.name: flag(field) for field in fields(Config)}
    return re.sub(r"\b([a-z_]+)=(?=[\s,.;)])", lambda found: names.get(found[1], found[0]), text)


def _read(config: Config, model: Curve | Equation, report: Report) -> Measured:
    """The measurements, as many variables as the model has."""
    counts = [1] if isinstance(model, Curve) else sorted(model.measured)
    found = measured(
        config.file, config.skip, config.time, config.values, counts, report, config.gaps, config.since, config.until
    )
    others = (found.values <= 0).any(1)
    if config.log and bool(others.any()):
        first, last = found.times[others][[0, -1]].tolist()
        where = f"at time {first:g}" if first == last else f"from time {first:g} to {last:g}"
        raise InputError(
            f"--log needs positive measurements; {int(others.sum())} rows have others, {where}. Leave out --log, or "
            "early and late rows with --since and --until."
        )
    return found


def _start(config: Config, guess: dict[str, float]) -> dict[str, float]:
    given = pairs(config.start) if config.start else {}
    unknown = sorted(set(given) - set(guess))
    if unknown:
        raise InputError(f"--start names {', '.join(unknown)}; the parameters are {', '.join(guess)}.")
    return guess | given


def _best_start(
    curve: Any, times: Tensor, y: Tensor, start: dict[str, float], bounds: dict[str, Any], orders: tuple[float, ...]
) -> dict[str, float]:
    """The start, with the order from which the search ends at the least loss: some have minima that are no fit."""
    losses = {}
    for order in orders:
        with warnings.catch_warnings(), contextlib.suppress(NonFiniteError):
            warnings.simplefilter("ignore", FitWarning)
            losses[order] = fit_curve(curve, times, y, {**start, "order": order}, bounds).loss
    return {**start, "order": min(losses, key=lambda order: losses[order], default=orders[0])}


def _curve(config: Config, model: Curve, data: Measured, report: Report) -> Found:
    """A closed form, by its logarithmic parameters, since all are positive; repeated times are points like others."""
    times, values = data.times, data.values
    if not bool((times >= 0).all()) or (config.model == "maxwell" and not bool((times > 0).all())):
        rule = "must be positive" if config.model == "maxwell" else "must not be negative"
        raise InputError(
            f"{config.model} counts time from the moment of the step: times {rule}. --since leaves out earlier rows."
        )
    guess = _start(config, model.guess(times, values[:, 0]))
    free = {n: v for n, v in guess.items() if n not in model.bounds}
    if min(guess.values()) <= 0:
        raise InputError(f"the parameters of {config.model} are positive; give other first guesses: --start.")

    def curve(t: Tensor, **unknown: Tensor) -> Tensor:
        order = unknown.pop("order", torch.tensor(config.order, dtype=torch.float64))
        out = model.curve(t, order, **{n: v.exp() if n in free else v for n, v in unknown.items()})
        return out.log() if config.log else out

    start = {n: float(torch.tensor(v).log()) if n in free else v for n, v in guess.items()}
    bounds = dict(model.bounds)
    y = values[:, 0].log() if config.log else values[:, 0]
    if config.learn_order:
        bounds = {**bounds, "order": (0.0, 1.0)}
        start = _best_start(curve, times, y, start, bounds, (min(config.order, 0.99), 0.5, 0.2))
    found = fit_curve(curve, times, y, start, bounds, resamples=config.bootstrap)
    natural = lambda n, v: float(torch.tensor(v, dtype=torch.float64).exp()) if n in free else v  # noqa: E731
    first, last = float(times[times > 0][0]), float(times[-1])
    share = torch.linspace(0, 1, 300, dtype=torch.float64)
    fine = first * (last / first) ** share if last > 100 * first else first + (last - first) * share
    fine = torch.cat([times[:1], fine]) if times[0] < first else fine
    with torch.no_grad():
        drawn = curve(fine, **{n: torch.tensor(v, dtype=torch.float64) for n, v in found.estimates.items()})
    unlog = (lambda x: x.exp()) if config.log else (lambda x: x)
    band = tuple(unlog(side)[:, None] for side in found.band(fine))
    return Found(
        {n: natural(n, v) for n, v in found.estimates.items()},
        {n: (natural(n, a), natural(n, b)) for n, (a, b) in found.intervals.items()},
        data, unlog(found.predicted)[:, None], (fine, unlog(drawn)[:, None]), band, found.r_squared, found.converged,
    )  # fmt: skip


def _equation(config: Config, model: Equation, data: Measured, report: Report) -> Found:
    """An equation, solved; rows with the same time are further columns, which the same variables are compared with."""
    times, values = data.times, data.values
    once, which, counts = times.unique(return_inverse=True, return_counts=True)
    if len(once) < len(times):
        report.message(f"note: of {len(times)} rows some share a time; there are {len(once)} times")
    y = values.log() if config.log else values
    mean = _means(once, y, which)
    side_by_side = _side_by_side(config.file, y, which, counts)
    repeats, width = side_by_side.shape[1], y.shape[1]
    seen = model.measured.get(y.shape[1])
    guess = _start(config, model.guess(once, mean.exp() if config.log else mean))
    begin = mean[0].exp() if config.log else mean[0]
    begin = begin if model.initial is None else model.initial(mean.exp() if config.log else mean)
    try_out(config.model, model, once[0], begin[None], guess)

    def observe(z: Tensor) -> Tensor:
        out = z if seen is None else z[..., seen]
        return (out.log() if config.log else out).repeat(*[1] * (z.ndim - 1), repeats)

    options: dict[str, Any] = {"steps": config.steps} if config.steps else {}
    found = fit(
        model.func, once, side_by_side.flatten(1),
        params=guess,
        initial=begin, learn_initial=True,
        order=min(config.order, 0.99) if config.learn_order else config.order, learn_order=config.learn_order,
        observe=observe,
        bounds=dict.fromkeys(guess, (0.0, None)) if model.positive else None,
        stages=(0.3, 0.6, 1.0),
        intervals="bootstrap" if config.bootstrap else "gauss-newton",
        resamples=config.bootstrap or 100,
        method=config.method,
        callback=lambda p: report.progress("fit", p.iteration, p.total, p.loss),
        **options,
    )  # fmt: skip
    fine = found.grid()
    known = found.covariance is not None and bool(found.covariance.isfinite().all())
    unlog = (lambda x: x.exp()) if config.log else (lambda x: x)
    names = {f"initial[0,{k}]": f"{v.split(' (')[0]}(0)" for k, v in enumerate(model.variables or data.labels)}
    curve = found.predicted[which, 0, :width]
    rest = (y - curve).square().nansum()
    spread = (y - y.nanmean(0)).square().nansum()
    return Found(
        {names.get(n, n): v for n, v in found.estimates.items()},
        {names.get(n, n): v for n, v in found.intervals.items()},
        data, unlog(curve), (fine, unlog(found.predict(fine)[:, 0, :width])),
        tuple(unlog(side[:, 0, :width]) for side in found.band(fine)) if known else None,
        1 - float(rest / spread), found.converged,
    )  # fmt: skip


def _means(times: Tensor, y: Tensor, which: Tensor) -> Tensor:
    """The mean of each column at each time; between its neighbours where nothing was measured."""
    there = ~y.isnan()
    sums, counts = (
        torch.zeros(len(times), y.shape[1], dtype=y.dtype).index_add_(0, which, x.to(y))
        for x in (y.nan_to_num(), there)
    )
    found = sums / counts
    for k in range(y.shape[1]):
        known = counts[:, k] > 0
        if not bool(known.any()):
            raise InputError(f"nothing is measured in column {k + 1} of the measurements. Leave it out with --values.")
        if bool(known.all()):
            continue
        at, values = times[known], found[known, k]
        right = torch.searchsorted(at, times).clamp(0, len(at) - 1)
        left = (right - 1).clamp(min=0)
        share = ((times - at[left]) / (at[right] - at[left]).clamp(min=1e-300)).clamp(0, 1)
        found[:, k] = torch.where(known, found[:, k], values[left] + share * (values[right] - values[left]))
    return found


def _side_by_side(file: str, y: Tensor, which: Tensor, counts: Tensor) -> Tensor:
    """Rows (rows, variables), those of each time beside each other: (times, repeats, variables), NaN for no more."""
    shape = (len(counts), int(counts.max()), y.shape[1])
    if shape[0] * shape[1] > max(4 * len(y), 1_000_000):
        raise InputError(
            f"{file} has {shape[1]} rows with one time, and {shape[0]} times. Take means of rows with the same time."
        )
    place = torch.arange(len(y)) - (counts.cumsum(0) - counts)[which]  # rows are in the order of time
    found = torch.full(shape, torch.nan, dtype=y.dtype)
    found[which, place] = y
    return found
