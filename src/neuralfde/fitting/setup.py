"""From the arguments of a fit to a problem: model, initial states, unknowns, grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..api import fdeint
from ..base.checks import function, misfit, real, whole
from ..base.grid import request
from ..door.migration import refuse
from ..errors import InputError, InputTypeError, nearest
from .data import Data, doubles
from .modules import Named, double
from .problem import Problem, default_steps
from .unknowns import INITIAL, ORDER, Bounds, bound_of, unknowns_from


def module_of(model: Any, params: Mapping[str, float | Tensor] | None) -> nn.Module:
    """The model as a module whose parameters are the unknowns."""
    if isinstance(model, nn.Module):
        if params is not None:
            raise InputError("params= is for a plain function; the unknowns of an nn.Module are its parameters.")
        return model
    function("model", model, "model(t, z, **params)")
    if not isinstance(params, Mapping | None):
        raise InputTypeError(f"params={params!r:.60} must be a dictionary of first guesses such as {{'rate': 1.0}}.")
    taken = set(dir(nn.Module())) & set(params or ())
    if taken:
        raise InputError(f"params uses the reserved names {sorted(taken)}; rename them.")
    if params and not {INITIAL, ORDER} & params.keys():
        _check_names(model, params)
    return Named(model, params or {})


def of_each(
    params: Mapping[str, float | Tensor] | None, each: Sequence[str], count: int
) -> Mapping[str, float | Tensor] | None:
    """First guesses, with one for each of so many trajectories where each has its own."""
    if isinstance(each, str) or not isinstance(each, list | tuple):
        raise InputTypeError(f"each={each!r:.60} must be a list of names in params=, such as ['rate'].")
    if not each:
        return params
    if not isinstance(params, Mapping):
        raise InputError("each= names parameters of a function: give it with params=, not a module.")
    for name in each:
        if name not in params:
            raise InputError(f"each= names {name!r}, which is not in params=. {nearest(name, params)}")
    return {n: _for_each(n, v, count) if n in each else v for n, v in params.items()}


def _for_each(name: str, given: float | Tensor, count: int) -> Tensor:
    value = doubles(f"params[{name!r}]", given)
    if value.shape not in ((), (count,)):
        raise InputError(f"params[{name!r}] must be a number or one for each of {count} trajectories: each= names it.")
    return value.expand(count).clone()


def _check_names(model: Callable[..., Tensor], params: Mapping[str, Any]) -> None:
    why = misfit(model, None, None, **params)
    if why is not None:
        raise InputError(
            f"model cannot be called as model(t, z, {', '.join(params)}): {why}. Give in params= the names that follow "
            "t and z there."
        )


def problem_of(
    module: nn.Module, data: Data, order: float, learn_order: bool, order_bounds: tuple[float, float] | None,
    initial: Any, learn_initial: bool, observe: Callable[[Tensor], Tensor], bounds: Mapping[str, Bounds] | None,
    robust: float | None, each: tuple[str, ...], options: dict[str, Any],
) -> tuple[Problem, Tensor]:  # fmt: skip
    """What is fitted to what, and where the unknowns start."""
    order = real("order", order.item() if getattr(order, "ndim", 1) == 0 else order)  # type: ignore[attr-defined]
    if order_bounds is None:
        order_bounds = (0.02, 1.0) if order <= 1 else (1.0, 2.0)
    ends = bound_of("order_bounds", order_bounds)
    if not (0 < ends.low < ends.high <= 1 or 1 <= ends.low < ends.high <= 2):
        raise InputError(f"order_bounds={order_bounds} must lie inside (0, 1], or inside [1, 2] with velocity=.")
    if robust is not None:
        real("robust", robust, above=0, hint="It is the residual from which on errors count linearly.")
    z0 = _initial(initial, data, observe)
    extra = {INITIAL: z0} if learn_initial else {}
    if learn_order:
        extra[ORDER] = torch.tensor(order, dtype=torch.float64)
        bounds = {ORDER: order_bounds, **(bounds or {})}
    values = _starting_values(module, extra)
    unknowns = unknowns_from(values, bounds or {})
    if not learn_initial:  # the initial values are taken as known, so they say nothing about the unknowns
        data = replace(data, scale=torch.cat([torch.zeros_like(data.scale[:1]), data.scale[1:]]))
    kept = {n: double(n, b) for n, b in module.named_buffers()}
    kept |= {n: double(n, p) for n, p in module.named_parameters() if not p.requires_grad}
    velocity = options.pop("velocity", None)
    velocity = None if velocity is None else _states("velocity", velocity, data)
    options = _solver_options(options, data)
    problem = Problem(module, data, unknowns, z0, order, observe, options, kept, velocity, robust, each)
    return problem, unknowns.pack(values)


def _starting_values(module: nn.Module, extra: Mapping[str, Tensor]) -> dict[str, Tensor]:
    values = {n: double(n, p) for n, p in module.named_parameters() if p.requires_grad}
    for name in (INITIAL, ORDER):
        if name in values:
            raise InputError(f"the model has a parameter named {name!r}, a name used by the fit itself; rename it.")
    if not values and not extra:
        raise InputError("there is nothing to fit: no parameter requires grad. Pass params=, or learn_order=True.")
    return {**values, **extra}


def check_search(intervals: Any, resamples: Any, patience: Any, callback: Any, seed: Any) -> None:
    """Refuse what would stop the search on its way, or after it."""
    known = ("auto", "gauss-newton", "bootstrap")
    if intervals is not None and intervals not in known:
        raise InputError(f"unknown intervals {intervals!r}. {nearest(str(intervals), known)}")
    whole("resamples", resamples, least=2, hint="Intervals are taken from so many fits.")
    if patience is not None:
        whole("patience", patience, hint="It is a number of iterations; leave it out to go on to the end.")
    if callback is not None:
        function("callback", callback, "callback(progress)")
    whole("seed", seed, least=0)


_FIXED = (
    "A fit takes the same steps for all values of the unknowns: pass steps= or grid=, such as the mesh of one solve to "
    "a tolerance, grid=solve(model, z0, times, order, rtol=1e-5).grid."
)
_OWN = "A fit cannot have it: minimise a loss of fdeint(...) with an optimiser of PyTorch."
_WITHOUT = {
    **dict.fromkeys(("rtol", "atol", "max_steps"), _FIXED),
    **dict.fromkeys(("jumps", "lags", "past", "event"), _OWN),
    "args": "What the model needs besides t, z and its unknowns it takes from a closure: lambda t, z, rate: ….",
}


def check_options(options: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse what neither the solver nor the fit (whose own arguments are ``own``) knows."""
    for name in options:
        if name in _WITHOUT:
            raise InputTypeError(f"fit() has no argument {name}=. {_WITHOUT[name]}")
    refuse("fit()", options, set(fdeint.__kwdefaults__ or ()) | set(own))


def _solver_options(options: dict[str, Any], data: Data) -> dict[str, Any]:
    if options.get("grid") is not None:
        given = [options.get(name) for name in ("step", "steps", "grading", "grid")]
        mesh = request(data.times, given[0], given[1], given[2] or 1.0, given[3]).grid
        points = {"steps": mesh.steps, "grid": None} if mesh.uniform else {"grid": mesh.start + mesh.elapsed}
        options = {**options, **points}
    elif options.get("step") is None and options.get("steps") is None:
        options = {**options, "steps": default_steps(data.times)}
    return {"method": "abm" if options.get("linear") is None else "imex", **options}


def _initial(initial: Any, data: Data, observe: Callable[[Tensor], Tensor]) -> Tensor:
    if initial is not None:
        return _states("initial", initial, data)
    if not bool(data.seen[0].all()):
        raise InputError(
            "the initial state was not measured in full. Pass initial=, with learn_initial=True if it is a guess."
        )
    z0 = data.values[0].clone()
    seen = observe(z0[None])
    if seen.shape == (1, *z0.shape) and not torch.allclose(seen[0], z0, rtol=1e-6, atol=0):
        raise InputError(
            "the first observations are not the initial state, since observe= makes something else of that. Pass the "
            "state itself as initial=, with learn_initial=True if it is a guess."
        )
    return z0


def _states(name: str, given: Any, data: Data) -> Tensor:
    """One state for each trajectory, (trajectories, variables), from a number, a row or a table."""
    states = doubles(name, given)
    states = states.reshape(1, 1) if states.ndim == 0 else states[None] if states.ndim == 1 else states
    count = data.values.shape[1]
    if states.ndim != 2 or states.shape[0] not in (1, count):
        raise InputError(f"{name} has shape {tuple(states.shape)}, expected (variables,) or ({count}, variables).")
    return states.expand(count, -1).clone()
