"""The call ``fit`` and what it accepts."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..base.checks import function, plain, reals
from ..errors import InputError, InputTypeError, attempts
from .data import Data, Observe, observer, read_data, variable_names
from .diagnostics import FitWarning, IdentifiabilityWarning, StepWarning, diagnose, warn_of
from .intervals import Uncertainty, bootstrap, gauss_newton
from .modules import Named, fill, left_alone
from .optimisers import STOPPED, Optimiser, Path, Progress
from .problem import Problem
from .profile import RESOLUTION, Profile, profile
from .result import Fit
from .search import SMALL, check_optimiser, hold_out, search
from .semilinear import parted
from .setup import check_options, check_search, module_of, of_each, problem_of
from .starts import Starts, all_starts
from .unknowns import INITIAL, ORDER, Bounds


def fit(
    model: nn.Module | Callable[..., Tensor] | None,
    times: Any,
    observations: Any,
    *,
    params: Mapping[str, float | Tensor] | None = None,
    each: Sequence[str] = (),
    order: float = 0.9,
    learn_order: bool = False,
    order_bounds: tuple[float, float] | None = None,
    initial: Any = None,
    learn_initial: bool = False,
    observe: Observe = None,
    noise: Any = None,
    weights: Any = None,
    robust: float | None = None,
    variables: Sequence[str] | None = None,
    bounds: Mapping[str, Bounds] | None = None,
    optimiser: str | Optimiser = "auto",
    starts: Starts = 1,
    stages: Sequence[float] = (1.0,),
    validation: float = 0.0,
    patience: int | None = None,
    intervals: str | None = "auto",
    resamples: int = 100,
    check_order: bool | None = None,
    callback: Callable[[Progress], bool | None] | None = None,
    seed: int = 0,
    resume: dict[str, Any] | None = None,
    **options: Any,
) -> Fit:
    """Estimate the unknowns of ``D^β z = model(t, z)`` from measurements of ``z``.

    Args:
        model: the right-hand side: an ``nn.Module`` called as ``model(t, z)``, whose parameters that require grad are
            the unknowns and receive the estimates; or a function ``model(t, z, **params)``. The last axis of ``z``
            contains the variables and a leading axis the trajectories, so write ``z[..., 0]``.
        times: increasing, equally spaced or not; the first is the initial time. For several trajectories a list, a
            nested tensor, or a tensor (trajectories, times) with NaN at the ends of shorter rows.
        observations: (times,), (times, variables) or (times, trajectories, variables), or a list of such arrays, one
            for each trajectory. A nested list of numbers is one array, unless ``times`` is a list of lists: then it has
            one entry for each trajectory. NaN marks a missing value.
        params: names and initial guesses of the unknowns, if ``model`` is a function.
        each: the names in ``params`` that have a separate value for every trajectory; all others are shared.
            ``Fit.population`` gives their mean and spread.
        order: β; with ``learn_order`` its initial guess, inside ``order_bounds``. These are by default (0.02, 1), or
            (1, 2) for an order above 1, which needs ``velocity=``, the initial ``z'``.
        initial: the initial states; default: the first observations, if ``observe`` shows these states themselves. With
            ``learn_initial`` they are unknowns too.
        observe: what was measured: an index, several, or a function of the state.
        noise: standard deviations of the measurements, if known: a number, one for each variable, or an array in the
            layout of the observations.
        weights: relative weights of the measurements, in place of ``noise``.
        robust: residuals beyond this value (in standard deviations if ``noise`` is given) count linearly instead of
            quadratically, which reduces the effect of outliers.
        variables: names of the measured variables, for the figure.
        bounds: ``{name: (low, high)}``, None for an open side; enforced by a smooth change of variables.
        optimiser: ``'lm'``, ``'lbfgs'``, ``'adam'`` or an object such as ``Adam(lr=0.01, epochs=30)``; ``'auto'``
            takes Levenberg-Marquardt up to 60 unknowns and Adam beyond.
        starts: the number of initial guesses: the first is the one given, the others are random around it, or between
            the bounds of unknowns with two. Or a list of dictionaries such as ``{"rate": 3.0}``. The best fit is
            returned.
        stages: fractions of the time span to fit one after the other, such as ``(0.25, 0.5, 1.0)``. Fitting early data
            first keeps a poor initial guess from diverging, or from ending in a local minimum.
        validation: the fraction of measurements held out to decide when to stop.
        patience: stop after this many iterations without a better (validation) loss.
        intervals: ``'gauss-newton'``, ``'bootstrap'`` (with ``resamples``) or None; ``'auto'`` gives Gauss-Newton
            intervals up to 60 unknowns.
        check_order: profile the loss over the order; default: if the interval of the order is wide.
        callback: called with a ``Progress`` after every iteration; the fit stops if it returns a true value.
        seed: the seed of everything random.
        resume: the ``state`` of a ``Progress``, to continue from there.
        options: as in ``fdeint``: ``step``, ``steps`` or ``grid``, ``method`` (here ``'abm'`` by default), …
            ``linear=`` may be a function whose arguments name unknowns, such as ``linear=lambda k: diffusion(k, dx)``
            with ``params={"k": ...}``; ``model`` then gets only the unknowns that it names, or is None.

    Returns:
        A ``Fit``. With intervals, it issues an ``IdentifiabilityWarning`` if the data do not determine the order or
        another unknown, a ``StepWarning`` if the error of the solver moves an estimate out of its interval, a
        ``BoundWarning`` if an estimate lies at its bound, a ``NoiseWarning`` if residuals are larger than ``noise=`` or
        differ in size between variables, and a ``ResidualWarning`` if neighbouring residuals are correlated, so that
        the intervals are too narrow. All of them are a ``FitWarning``. If the fit raises an error
        or is interrupted, the module is left unchanged.
    """
    began = time.perf_counter()
    check_options(options, fit.__kwdefaults__ or {})
    check_search(intervals, resamples, patience, callback, seed)
    resamples, seed, options = plain(resamples), plain(seed), {name: plain(value) for name, value in options.items()}
    if options.get("linear") is not None:
        model, options["linear"] = parted(model, params, options["linear"])
    data = read_data(times, observations, noise, weights)
    module = module_of(model, of_each(params, each, data.values.shape[1]))
    names = variable_names(variables, data)
    problem, flat = problem_of(
        module, data, order, learn_order, order_bounds, initial, learn_initial, observer(observe), bounds, robust,
        tuple(each), options,
    )  # fmt: skip
    with left_alone(module), attempts():
        guesses = all_starts(problem.unknowns, flat, starts, seed)
        path = search(problem, guesses, optimiser, stages, validation, seed, patience, callback, resume)
        flat = problem.unknowns.to_value(path.free)
        sure = _uncertainty(hold_out(problem, validation, seed)[0], flat, intervals, resamples, seed)
        verdict, curve = _verdict(problem, flat, sure, check_order) if learn_order else (None, None)
        found = replace(_result(problem, flat, path, sure, data), identifiable=verdict, profile=curve, variables=names)
    short = None
    if curve is not None and found.converged and found.loss > curve.threshold:
        short = _not_least(found, curve)
    elif sure is not None and sure.promise > 1 and not validation and path.message != STOPPED:
        short = _no_minimum(sure)
    if short is not None:
        found = replace(found, converged=False, message=short)
        warnings.warn(short, FitWarning, stacklevel=2)
    if sure is not None:
        explained = _warn_of_the_step(found)
        network, known_start = not isinstance(problem.model, Named), INITIAL not in problem.unknowns.shapes
        warn_of(found.diagnostics, curve is not None, explained, network, known_start)
    fill(module, problem.unknowns.split(flat))
    return replace(found, seconds=time.perf_counter() - began)


def _not_least(found: Fit, curve: Profile) -> str:
    """The search stopped where it could not go on, and the profile went past it."""
    loss, order = min(zip(curve.losses, curve.orders, strict=True))
    return (
        f"stopped short: order {found.order:.3g} has a loss of {found.loss:.3g}, order {order:.3g} one of {loss:.3g}. "
        f"Begin there (order={order:.3g}), take optimiser='lm', or more starts="
    )


def _no_minimum(sure: Uncertainty) -> str:
    """The search ended where the loss still falls, by more than the noise explains."""
    return (
        f"stopped short of a minimum: one step more would lower the sum of squares by {sure.promise:.3g} noise "
        "variances, so the intervals mean little. Take optimiser='lm' or more iterations, other first guesses, or more "
        "starts="
    )


def _result(problem: Problem, flat: Tensor, path: Path, sure: Uncertainty | None, data: Data) -> Fit:
    """All that is known once the search is over, but for the verdict on the order."""
    labels = problem.unknowns.labels()
    with torch.no_grad():
        loss = float(problem.loss(flat))
        predicted = problem.predict(flat)
    scaled = torch.where(problem.data.seen, problem.data.scale * (data.values - predicted), torch.nan)
    return Fit(
        estimates=dict(zip(labels, flat.tolist(), strict=True)),
        order=float(problem.unknowns.split(flat).get(ORDER, problem.order)),
        intervals={}
        if sure is None
        else {n: (a, b) for n, (a, b) in zip(labels, sure.intervals.tolist(), strict=True)},
        covariance=None if sure is None else sure.covariance,
        noise=loss**0.5 if sure is None else sure.noise,
        loss=loss,
        history=path.history,
        converged=path.converged,
        message=path.message,
        times=data.times,
        observed=torch.where(data.seen, data.values, torch.nan),
        predicted=predicted,
        step_shift={} if sure is None or sure.shift is None else dict(zip(labels, sure.shift.tolist(), strict=True)),
        model=problem.model,
        diagnostics=diagnose(problem, flat, scaled, sure),
        problem=problem,
        flat=flat,
    )


def profile_order(
    found: Fit,
    orders: Any = None,
    optimiser: Optimiser | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """The smallest loss over all other unknowns as a function of the order, for a fit with ``learn_order=True``."""
    if not isinstance(found, Fit):
        raise InputTypeError(f"found must be what fit() returned, got {type(found).__name__}.")
    if ORDER not in found.problem.unknowns.shapes:
        raise InputError("profile_order needs a fit with learn_order=True; in this one the order was given.")
    if orders is not None:
        orders = reals("orders", orders).reshape(-1).tolist()
        if not all(0 < order <= 2 for order in orders):
            raise InputError(f"orders={orders} must lie inside (0, 2].")
    if optimiser is not None:
        check_optimiser(optimiser)
    if progress is not None:
        function("progress", progress, "progress(done, total)")
    with attempts():
        return profile(found.problem, found.flat, orders, optimiser, progress)


def _uncertainty(problem: Problem, flat: Tensor, how: str | None, resamples: int, seed: int) -> Uncertainty | None:
    if how == "auto":
        how = "gauss-newton" if problem.unknowns.size <= SMALL else None
    if how is None:
        return None
    if how == "gauss-newton":
        return gauss_newton(problem, flat, problem.finer())
    return bootstrap(problem, flat, resamples, seed)


def _warn_of_the_step(found: Fit) -> bool:
    """Intervals know about noise only: say so where the error of the solver moves an estimate further."""
    size = found.observed.nan_to_num().square().mean().sqrt()
    if not found.problem.data.calibrated and found.residuals.nan_to_num().square().mean().sqrt() <= 1e-6 * size:
        return False  # data made on this very grid: their residuals say nothing about how fine it should be
    for name, shift in found.step_shift.items():
        low, high = found.intervals[name]
        if abs(shift) > (high - low) / 2:
            moved = (
                f"{name!r} moves by {shift:.2g}, more than the half-width {(high - low) / 2:.2g} of its interval"
                if math.isfinite(shift)
                else "the solution of the estimates blows up"
            )
            warnings.warn(
                f"the step of the solver is too long for these data: with half of it {moved}. Pass more steps= "
                f"(this fit took {found.steps}), or grading= above 1.",
                StepWarning,
                stacklevel=3,
            )
            return True
    return False


def _verdict(
    problem: Problem, flat: Tensor, sure: Uncertainty | None, check: bool | None
) -> tuple[bool | None, Profile | None]:
    """Whether the data know the order: from its interval where that is narrow, otherwise from the profile."""
    at = problem.unknowns.labels().index(ORDER)
    width = float("inf") if sure is None else float(sure.intervals[at, 1] - sure.intervals[at, 0])
    if check is None:
        check = width > RESOLUTION / 2 and problem.unknowns.size <= SMALL
    if not check:
        return (width <= RESOLUTION if sure is not None else None), None
    curve = profile(problem, flat)
    if not curve.identifiable:
        low, high = curve.interval
        warnings.warn(
            f"the order is not identifiable from these data: every order from {low:.2f} to {high:.2f} fits them within "
            "the noise. Measure longer, earlier or more variables, or fix the order with learn_order=False.",
            IdentifiabilityWarning,
            stacklevel=3,
        )
    return curve.identifiable, curve
