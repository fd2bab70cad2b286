"""The call ``fit`` and what it accepts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..api import fdeint
from ..errors import InputError, InputTypeError, nearest
from .data import Data, Observe, observer, read_data
from .intervals import Uncertainty, bootstrap, gauss_newton
from .optimisers import OPTIMISERS, Optimiser, Path, Progress
from .problem import Named, Problem, default_steps
from .profile import RESOLUTION, Profile, profile
from .result import Fit, IdentifiabilityWarning
from .unknowns import INITIAL, ORDER, Bounds, unknowns_from

#: Up to this many unknowns the exact Jacobian is cheap: Levenberg-Marquardt is the default and intervals are given.
SMALL = 60


def fit(
    model: nn.Module | Callable[..., Tensor],
    times: Any,
    observations: Any,
    *,
    params: Mapping[str, float | Tensor] | None = None,
    order: float = 0.9,
    learn_order: bool = False,
    order_bounds: tuple[float, float] = (0.02, 1.0),
    initial: Any = None,
    learn_initial: bool = False,
    observe: Observe = None,
    noise: Any = None,
    weights: Any = None,
    bounds: Mapping[str, Bounds] | None = None,
    optimiser: str | Optimiser = "auto",
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
    """Find the unknowns of ``D^β z = model(t, z)`` from measurements of ``z``.

    Args:
        model: the right-hand side: an ``nn.Module`` called as ``model(t, z)``, whose parameters that require grad are
            the unknowns and receive the estimates; or a function ``model(t, z, **params)``. The last axis of ``z``
            holds the variables; a leading axis holds the trajectories, so write ``z[..., 0]``.
        times: increasing, equally spaced or not; the first is the initial time. A list for several trajectories.
        observations: (times,), (times, variables) or (times, trajectories, variables), or a list of such, one for
            each trajectory. NaN marks a missing value.
        params: names and starting values, where ``model`` is a function.
        order: β; with ``learn_order`` where the search starts, inside ``order_bounds``.
        initial: the initial states; default: the first observations. With ``learn_initial`` they are unknowns too.
        observe: what was measured: an index, several, or a function of the state.
        noise: standard deviations of the measurements, if known: a number or anything that fits the observations.
        weights: relative importance of the measurements, in place of ``noise``.
        bounds: ``{name: (low, high)}``, None for an open side; kept by a smooth change of variables.
        optimiser: ``'lm'``, ``'lbfgs'``, ``'adam'`` or an object such as ``Adam(lr=0.01, epochs=30)``; ``'auto'``
            takes Levenberg-Marquardt up to 60 unknowns and Adam beyond.
        stages: fractions of the time span to fit one after the other, such as ``(0.25, 0.5, 1.0)``: early data first
            keeps a poor first guess from running away, or into a local minimum.
        validation: the fraction of measurements held back to decide when to stop.
        patience: stop after this many iterations without a better (validation) loss.
        intervals: ``'gauss-newton'``, ``'bootstrap'`` (with ``resamples``) or None; ``'auto'`` gives Gauss-Newton
            intervals up to 60 unknowns.
        check_order: profile the loss over the order; default: where the interval of the order is wide.
        callback: called with a :class:`Progress` after every iteration; a true answer stops the fit.
        seed: of everything random.
        resume: the ``state`` of a :class:`Progress`, to go on from there.
        options: as in :func:`fdeint`: ``step`` or ``steps``, ``method`` (here ``'abm'`` by default), ``adjoint``, …

    Returns:
        A :class:`Fit`. An :class:`IdentifiabilityWarning` is issued where the data do not determine the order.
    """
    began = time.perf_counter()
    module = _module(model, params)
    data = read_data(times, observations, noise, weights)
    problem, flat = _problem(
        module, data, order, learn_order, order_bounds, initial, learn_initial, observer(observe), bounds, options
    )
    chosen = _optimiser(optimiser, problem.unknowns.size)
    trained, held = _hold_out(problem, validation, seed)
    for early in _early(trained, stages) if resume is None else []:
        flat = problem.unknowns.to_value(_minimise(early, None, chosen, flat, patience, callback, None).free)
    path = _minimise(trained, held, chosen, flat, patience, callback, resume)
    flat = problem.unknowns.to_value(path.free)
    with torch.no_grad():
        loss = float(problem.loss(flat))
        predicted = problem.predict(flat)
    sure = _uncertainty(problem, flat, intervals, resamples, seed)
    verdict, curve = _verdict(problem, flat, sure, check_order) if learn_order else (None, None)
    _write_back(module, problem.unknowns.split(flat))
    labels = problem.unknowns.labels()
    observed = torch.where(data.seen, data.values, torch.nan)
    return Fit(
        estimates=dict(zip(labels, flat.tolist(), strict=True)),
        order=float(problem.unknowns.split(flat).get(ORDER, torch.tensor(problem.order, dtype=torch.float64))),
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
        observed=observed,
        predicted=predicted,
        identifiable=verdict,
        profile=curve,
        model=module,
        seconds=time.perf_counter() - began,
        problem=problem,
        flat=flat,
    )


def profile_order(
    found: Fit,
    orders: Any = None,
    optimiser: Optimiser | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """The least loss over all other unknowns as a function of the order, around a fit with ``learn_order=True``."""
    if ORDER not in found.problem.unknowns.shapes:
        raise InputError("profile_order needs a fit with learn_order=True; in this one the order was given.")
    return profile(found.problem, found.flat, orders, optimiser, progress)


def _module(model: Any, params: Mapping[str, float | Tensor] | None) -> nn.Module:
    if isinstance(model, nn.Module):
        if params is not None:
            raise InputError("params= is for a plain function; the unknowns of an nn.Module are its parameters.")
        return model
    if not callable(model):
        raise InputTypeError(f"model must be an nn.Module or a function (t, z, **params), got {type(model).__name__}.")
    taken = set(dir(nn.Module())) & set(params or ())
    if taken:
        raise InputError(f"params uses the reserved names {sorted(taken)}; rename them.")
    return Named(model, params or {})


def _problem(
    module: nn.Module, data: Data, order: float, learn_order: bool, order_bounds: tuple[float, float], initial: Any,
    learn_initial: bool, observe: Callable[[Tensor], Tensor], bounds: Mapping[str, Bounds] | None,
    options: dict[str, Any],
) -> tuple[Problem, Tensor]:  # fmt: skip
    known = set(fdeint.__kwdefaults__ or ()) - {"args", "params", "callback"}
    for name in options:
        if name not in known:
            arguments = known | set(fit.__kwdefaults__ or ())
            raise InputTypeError(f"fit() has no argument {name!r}. {nearest(name, arguments)}")
    if options.get("step") is None and options.get("steps") is None:
        options = {**options, "steps": default_steps(data.times)}
    if not 0 < order_bounds[0] < order_bounds[1] <= 1:
        raise InputError(f"order_bounds={order_bounds} must lie inside (0, 1].")
    z0 = _initial(initial, data, learn_initial)
    values = {n: p.detach().double() for n, p in module.named_parameters() if p.requires_grad}
    limits = dict(bounds or {})
    for name in (INITIAL, ORDER):
        if name in values:
            raise InputError(f"the model has a parameter named {name!r}, a name used by the fit itself; rename it.")
    if learn_initial:
        values[INITIAL] = z0
    if learn_order:
        values[ORDER] = torch.tensor(float(order), dtype=torch.float64)
        limits.setdefault(ORDER, order_bounds)
    if not values:
        raise InputError("there is nothing to fit: no parameter requires grad. Pass params=, or learn_order=True.")
    if not learn_initial:  # the initial values are taken as known, so they say nothing about the unknowns
        data = replace(data, scale=torch.cat([torch.zeros_like(data.scale[:1]), data.scale[1:]]))
    kept = {n: b.double() for n, b in module.named_buffers() if b.is_floating_point()}
    kept |= {n: p.detach().double() for n, p in module.named_parameters() if not p.requires_grad}
    unknowns = unknowns_from(values, limits)
    problem = Problem(module, data, unknowns, z0, float(order), observe, {"method": "abm", **options}, kept)
    return problem, unknowns.pack(values)


def _initial(initial: Any, data: Data, learn: bool) -> Tensor:
    if initial is not None:
        z0 = torch.as_tensor(initial, dtype=torch.float64)
        z0 = z0.reshape(1, 1) if z0.ndim == 0 else z0[None] if z0.ndim == 1 else z0
        if z0.ndim != 2 or z0.shape[0] not in (1, data.values.shape[1]):
            raise InputError(
                f"initial has shape {tuple(z0.shape)}, expected (variables,) or ({data.values.shape[1]}, variables)."
            )
        return z0.expand(data.values.shape[1], -1).clone()
    if not bool(data.seen[0].all()):
        raise InputError(
            "the initial state was not measured in full. Pass initial=, with learn_initial=True if it is a guess."
        )
    return data.values[0].clone()


def _optimiser(given: str | Optimiser, size: int) -> Optimiser:
    if given == "auto":
        return OPTIMISERS["lm" if size <= SMALL else "adam"]
    if isinstance(given, str):
        if given not in OPTIMISERS:
            raise InputError(f"unknown optimiser {given!r}. {nearest(given, [*OPTIMISERS, 'auto'])}")
        return OPTIMISERS[given]
    if not hasattr(given, "minimise"):
        raise InputTypeError(f"optimiser must be a name or an object, got {type(given).__name__}.")
    return given


def _hold_out(problem: Problem, fraction: float, seed: int) -> tuple[Problem, Problem | None]:
    if not 0 <= fraction < 1:
        raise InputError(f"validation={fraction:g} must be a fraction in [0, 1).")
    if fraction == 0:
        return problem, None
    generator = torch.Generator().manual_seed(seed)
    back = torch.rand(problem.data.scale.shape, generator=generator, dtype=torch.float64) < fraction
    kept = replace(problem.data, scale=torch.where(back, 0.0, problem.data.scale))
    held = replace(problem.data, scale=torch.where(back, problem.data.scale, 0.0))
    if not kept.count or not held.count:
        raise InputError(f"validation={fraction:g} leaves nothing to train on or nothing to validate with.")
    return replace(problem, data=kept), replace(problem, data=held)


def _early(problem: Problem, stages: Sequence[float]) -> list[Problem]:
    """The problem cut off after each fraction of the time span but the whole."""
    if not stages or list(stages) != sorted(stages) or not stages[0] > 0 or stages[-1] != 1:
        raise InputError(f"stages={tuple(stages)} must be increasing fractions that end with 1.")
    data, found = problem.data, []
    start, span = float(data.times[0]), float(data.times[-1] - data.times[0])
    h = problem.options["step"] if problem.options.get("step") is not None else span / problem.options["steps"]
    for fraction in stages[:-1]:
        count = int((data.times <= start + fraction * span * (1 + 1e-9)).sum())
        if count < 2:
            continue
        cut = Data(data.times[:count], data.values[:count], data.scale[:count], data.calibrated)
        steps = max(1, round(float(cut.times[-1] - start) / h))
        if cut.count:
            found.append(replace(problem, data=cut, options={**problem.options, "step": None, "steps": steps}))
    return found


def _minimise(
    problem: Problem, held: Problem | None, optimiser: Optimiser, flat: Tensor, patience: int | None,
    callback: Callable[[Progress], bool | None] | None, resume: dict[str, Any] | None,
) -> Path:  # fmt: skip
    best = (float("inf"), flat, 0)

    def watch(k: int, total: int, free: Tensor, loss: float, state: dict[str, Any]) -> bool:
        nonlocal best
        held_loss = None
        values = problem.unknowns.to_value(free)
        if held is not None:
            with torch.no_grad():
                held_loss = float(held.loss(values))
        judged = loss if held_loss is None else held_loss
        if judged < best[0] * (1 - 1e-6):
            best = (judged, free.clone(), k)
        stop = patience is not None and k - best[2] >= patience
        if callback is not None:
            stop = bool(callback(Progress(k, total, loss, held_loss, values, state))) or stop
        return stop

    path = optimiser.minimise(problem, problem.unknowns.to_free(flat), watch, resume)
    if held is not None and best[0] < float("inf"):
        path.free = best[1]
    return path


def _uncertainty(problem: Problem, flat: Tensor, how: str | None, resamples: int, seed: int) -> Uncertainty | None:
    if how == "auto":
        how = "gauss-newton" if problem.unknowns.size <= SMALL else None
    if how is None:
        return None
    if how == "gauss-newton":
        return gauss_newton(problem, flat)
    if how == "bootstrap":
        return bootstrap(problem, flat, resamples, seed)
    raise InputError(f"unknown intervals {how!r}. {nearest(how, ['gauss-newton', 'bootstrap', 'auto'])}")


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


def _write_back(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in values:
                parameter.copy_(values[name])
