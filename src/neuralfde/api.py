"""The public calls: the only place with names, defaults and validation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import tableaux
from .adjoints import Adjoint, Coefficients, Direct, Exact, Paper, Plan, Solve
from .automatic import Prediction, Size, choose, predict
from .choices import (
    ADJOINTS,
    STORAGES,
    named,
    read_graphs,
    read_history,
    read_scheme,
    refuse_combinations,
    refuse_resume,
)
from .errors import InputError, InputTypeError, UnsupportedError, nearest
from .field import Field
from .grid import Request, request
from .history import History, Window
from .orders import read_order
from .schemes import Scheme, StageSolver
from .storage import Storage
from .streaming import State
from .structure import Structure, replace_tensors, structure_of, tensors_in

_log = logging.getLogger("neuralfde")


@dataclass(frozen=True)
class Stats:
    """What a solve cost and how it was done."""

    steps: int
    step: float
    evaluations: int
    history_bytes: int
    method: Scheme
    adjoint: str
    history: History
    storage: Storage
    graphs: bool = False
    why: str = ""


@dataclass(frozen=True)
class Solution:
    """Times, states in the structure of ``z0`` stacked along the first axis, and the cost.

    ``state``, where ``resume=True`` asked for it, is what a later ``solve(..., resume=state)`` goes on from.
    """

    ts: Tensor
    ys: Any
    stats: Stats
    state: State | None = None


def fdeint(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: float | Tensor,
    *,
    method: str | Scheme = "predictor",
    step: float | None = None,
    steps: int | None = None,
    adjoint: str | Adjoint = "exact",
    history: str | History = "auto",
    storage: str | Storage = "auto",
    params: Iterable[Tensor] | None = None,
    args: tuple[Any, ...] = (),
    solver: str | StageSolver | None = None,
    callback: Callable[[int, int], None] | None = None,
    check_finite: bool = True,
    graphs: bool | str = "auto",
) -> Any:
    """Solve ``D^β z = func(t, z, *args)``, ``z(t_0) = z0`` with Caputo's derivative of order ``0 < β ≤ 1``.

    Args:
        func: the right-hand side ``func(t, z, *args)``; ``t`` is a 0-d tensor, ``z`` has the structure of ``z0``.
        z0: the initial state: a tensor of any shape, or a tuple, dict or nesting of tensors, float32 or float64.
        t: a number T integrates from 0 and returns z(T); a 1-D increasing tensor returns the states at its times,
            stacked first, with ``t[0]`` the initial time. Times between grid points come from the scheme's own
            continuous output.
        order: β, a number or a tensor; a tensor that requires grad gets the exact gradient.
        method: ``'predictor'`` (default), ``'abm'``, ``'trapezoid'``, ``'gl'``, ``'l1'``, ``'predictor-implicit'``,
            ``'gl-explicit'``, ``'l1-explicit'``, or a scheme object such as ``ABM(corrections=3)``.
        step: the step h; it must divide the interval.
        steps: the number of steps, in place of ``step``.
        adjoint: ``'exact'`` (default), ``'direct'`` or ``'paper'``.
        history: ``'auto'`` (default), ``'full'``, ``'fft'``, ``'exponentials'``, or an object such as ``Window(64)``.
        storage: ``'auto'`` (default), ``'device'``, ``'host'``, ``'checkpoint'``, or an object such as
            ``Host(path='/scratch')``.
        params: tensors ``func`` uses that get gradients; default: its parameters that require grad.
        args: passed on to ``func``; tensors among them get gradients.
        solver: how implicit stages are solved: ``'newton'`` (default), ``'fixed-point'`` or an object.
        callback: called as ``callback(step, total)`` in both passes.
        check_finite: raise :class:`NonFiniteError` naming the step where the state stopped being finite.
        graphs: replay steps as CUDA graphs: ``'auto'`` (default: where it is safe), ``True`` (an error where it is
            not) or ``False``. Python code in ``func`` is then run once for all steps, not at every step.

    Returns:
        z(T) in the structure of ``z0``, or the states at the times of ``t`` stacked along a new first axis.
    """
    return _solve(
        func,
        z0,
        t,
        order,
        method,
        step,
        steps,
        adjoint,
        history,
        storage,
        params,
        args,
        solver,
        callback,
        check_finite,
        graphs,
        None,
    )[0]


def solve(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: float | Tensor,
    *,
    resume: bool | State | None = None,
    **options: Any,
) -> Solution:
    """:func:`fdeint` with the same arguments, returning a :class:`Solution` with times, states and statistics.

    For a number T the states have one time along the first axis.

    Args:
        resume: True keeps what a later solve needs to go on (N rows); that solve gets it as ``resume=state`` and gives
            the trajectory of one long solve. Its ``z0`` only says what a state looks like; ``t`` is the new end. The
            past is cut off from gradients, as truncated training wants it.
    """
    chosen = _options("solve", options)
    ys, wanted, stats, structure, state = _solve(func, z0, t, order, **chosen, resume=resume)
    times = [wanted.grid.start + p * wanted.grid.step for p in wanted.positions]
    ts = torch.tensor(times, dtype=structure.dtype, device=structure.device)
    if wanted.terminal:
        ys = structure.unpack(structure.pack(ys)[None])
    return Solution(ts, ys, stats, state)


def plan(func: Callable[..., Any], z0: Any, t: float | Tensor, order: float | Tensor, **options: Any) -> Prediction:
    """What :func:`fdeint` with the same arguments will take: bytes, work, and what ``auto`` chooses; ``func``
    is not run.

    ``print(plan(...))`` reads as a short table.
    """
    chosen = _options("plan", options)
    structure, wanted = structure_of(z0), request(t, chosen["step"], chosen["steps"])
    scheme = read_scheme(chosen["method"], chosen["solver"])
    how = named("adjoint", chosen["adjoint"], ADJOINTS, (Exact, Direct, Paper))
    trained = [*_params(func, chosen["params"]), *tensors_in(z0), *tensors_in(order), *tensors_in(chosen["args"])]
    train = torch.is_grad_enabled() and any(x.requires_grad for x in trained)
    size = _size(structure, wanted, scheme, train)
    past, kept, why = _memory(chosen["history"], chosen["storage"], size, structure, wanted, how)
    stages = getattr(scheme, "corrections", 0) + 1
    return predict(past, kept, size, structure.numel, stages, structure.device, why)


def _options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    known = fdeint.__kwdefaults__ or {}
    for given in options:
        if given not in known:
            raise InputTypeError(f"{name}() has no argument {given!r}. {nearest(given, known)}")
    return {**known, **options}


def _size(structure: Structure, wanted: Request, scheme: Scheme, train: bool) -> Size:
    row_bytes = structure.numel * structure.dtype.itemsize
    return Size(wanted.grid.steps, row_bytes, scheme.sums, train, structure.dtype == torch.float64)


def _memory(
    history: str | History,
    storage: str | Storage,
    size: Size,
    structure: Structure,
    wanted: Request,
    how: Adjoint,
) -> tuple[History, Storage, str]:
    """History and storage as given or as chosen, and why."""
    past, kept = read_history(history), named("storage", storage, STORAGES, Storage)
    if isinstance(how, Direct) and kept is None:
        kept = STORAGES["device"]
    return choose(past, kept, size, structure.device, needs_rows=bool(wanted.off_grid))


@torch.compiler.disable(reason="the solver runs as it is; compile the model around it, or func itself")
def _solve(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: float | Tensor,
    method: str | Scheme,
    step: float | None,
    steps: int | None,
    adjoint: str | Adjoint,
    history: str | History,
    storage: str | Storage,
    params: Iterable[Tensor] | None,
    args: tuple[Any, ...],
    solver: str | StageSolver | None,
    callback: Callable[[int, int], None] | None,
    check_finite: bool,
    graphs: bool | str,
    resume: bool | State | None,
) -> tuple[Any, Request, Stats, Structure, State | None]:
    if not callable(func):
        raise InputTypeError(f"func must be callable as func(t, z, *args), got {type(func).__name__}.")
    _refuse_surroundings(func)
    structure = structure_of(z0)
    scheme = read_scheme(method, solver)
    before = resume if isinstance(resume, State) else None
    wanted = request(t, step, steps) if before is None else before.request(t, step, steps, scheme)
    how = named("adjoint", adjoint, ADJOINTS, (Exact, Direct, Paper))
    past, kept, why = _memory(
        history, storage, _size(structure, wanted, scheme, torch.is_grad_enabled()), structure, wanted, how
    )
    beta = read_order(order, structure)
    refuse_combinations(how, past, kept, beta, wanted, scheme)

    trained = _params(func, params)
    args = _args(args, structure)
    cut = [a.detach().requires_grad_(a.requires_grad) for a in tensors_in(args)]
    row0 = structure.pack(z0) if before is None else before.last
    if not bool(torch.isfinite(row0).all()):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    field = Field(func, structure, wanted.grid.times(row0), replace_tensors(args, cut))
    owned = list(func.parameters()) if isinstance(func, nn.Module) else []  # left out of params= knowingly, if at all
    graphs = read_graphs(graphs, how, structure.device)
    field.first_evaluation(row0, [*trained, *owned, *cut], watch=graphs is not False)

    nodes, first, coefficients = _coefficients(scheme, beta, wanted, past)
    known = None
    if before is not None:
        refuse_resume(how, wanted)
        kernel = scheme.kernel(beta.detach(), before.step, before.steps + wanted.grid.steps)
        known, first = before.known_rows(kernel, past, wanted.grid.steps + 1), 0
        coefficients = coefficients._replace(start=None)
    inputs = (*coefficients, row0, *trained, *tensors_in(args))
    plan = Plan(
        field=field,
        scheme=scheme,
        history=past,
        storage=kept,
        steps=wanted.grid.steps,
        step=wanted.grid.step,
        nodes=nodes,
        first=first,
        train=torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs),
        weigh=torch.is_grad_enabled() and beta.requires_grad,
        callback=callback,
        check_finite=check_finite,
        backward_weights=_paper_weights(how, beta, wanted, past),
        leaves=(*trained, *cut),
        graphs=graphs,
        known=known,
        slopes=None if not resume else [],
    )
    at_nodes, between = Solve.apply(plan, how, *inputs)
    field.refuse_late_noise(plan.train)
    rows = _assemble(wanted, nodes, at_nodes, between)
    ys = structure.unpack(rows[0] if wanted.terminal else rows)
    if wanted.terminal:
        # copies, not views: FSDP2 hangs its hooks on what a module returns, and an in-place layer may follow
        ys = replace_tensors(ys, [y.clone() for y in tensors_in(ys)])
    name = next((k for k, v in ADJOINTS.items() if v == how), type(how).__name__)
    stats = Stats(
        wanted.grid.steps,
        wanted.grid.step,
        field.evaluations,
        plan.tally["history_bytes"],
        scheme,
        name,
        past,
        kept,
        bool(plan.tally.get("replayed")),
        why,
    )
    state = None
    if plan.slopes is not None:
        origin = before or State(
            wanted.grid.start, wanted.grid.step, scheme, row0.detach(), row0.detach(), row0.new_empty(0, *row0.shape)
        )
        state = origin.extended(plan.slopes, at_nodes.detach()[-1].clone(), wanted.grid.end)
    _log.debug("solved: %s", stats)
    return ys, wanted, stats, structure, state


def _refuse_surroundings(func: Callable[..., Any]) -> None:
    """Raise where the solver is run in a way that cannot work, naming the one that does."""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise UnsupportedError(
            "a solver cannot be exported: its loop over time and its adjoint are Python. Export func, or the layers "
            "before and after the solve, and call fdeint where the model is served; torch.compile works around it."
        )
    if getattr(func, "_is_replica", False):
        raise UnsupportedError(
            "nn.DataParallel gives each device a replica whose tensors are no parameters, so that they would get no "
            "gradient. Use torch.nn.parallel.DistributedDataParallel, one process per device."
        )


def _params(func: Callable[..., Any], params: Iterable[Tensor] | None) -> list[Tensor]:
    if params is None:
        params = func.parameters() if isinstance(func, nn.Module) else ()
    elif isinstance(params, Tensor):
        raise InputTypeError("params must be a collection of tensors, got one tensor; write params=[tensor].")
    found: dict[int, Tensor] = {}
    for p in params:
        if not isinstance(p, Tensor):
            raise InputTypeError(
                f"params must contain tensors, got {type(p).__name__}. Pass module.parameters() or a list of tensors."
            )
        if p.requires_grad:
            found[id(p)] = p
    return list(found.values())


def _args(args: Any, structure: Structure) -> tuple[Any, ...]:
    if not isinstance(args, tuple | list):
        raise InputTypeError(f"args must be a tuple passed on to func, got {type(args).__name__}; write args=(value,).")
    for a in tensors_in(args):
        if a.device != structure.device and a.ndim > 0:
            raise InputTypeError(
                f"args contains a tensor on {a.device}, the state is on {structure.device}; move it there first."
            )
    return tuple(args)


def _coefficients(
    scheme: Scheme, beta: Tensor, wanted: Request, past: History
) -> tuple[tuple[int, ...], int, Coefficients]:
    """Output nodes, the first slope that counts, and the numbers of the scheme."""
    grid = wanted.grid
    kernel = scheme.kernel(beta, grid.step, grid.steps)
    for part in (kernel.weights, kernel.local):
        if not bool(torch.isfinite(part).all()):
            bad = int((~torch.isfinite(kernel.weights)).flatten(2).any(-1).any(0).nonzero()[0])
            raise InputError(
                f"the weights are not finite from step {bad} on (order {beta.detach().tolist()}, h={grid.step:g})."
            )
    nodes = {n for n in wanted.nodes if n >= 0}
    dense = None
    if wanted.off_grid and kernel.dense is not None:
        dense = torch.stack([kernel.dense(p) for p in wanted.off_grid])
    elif wanted.off_grid:
        nodes |= {m for p in wanted.off_grid for m in (math.floor(p), math.floor(p) + 1)}
    start = kernel.start
    if start is not None and isinstance(past, Window):
        lag = torch.arange(grid.steps + 1)[:, None]
        start = torch.where(lag <= past.length, start, 0.0)
    return tuple(sorted(nodes)), kernel.first, Coefficients(past.tabulate(kernel.weights), kernel.local, start, dense)


def _paper_weights(how: Adjoint, beta: Tensor, wanted: Request, past: History) -> Tensor | None:
    if not isinstance(how, Paper):
        return None
    return past.tabulate(tableaux.rectangle(beta.detach(), wanted.grid.step, wanted.grid.steps)[None])


def _assemble(wanted: Request, nodes: tuple[int, ...], at_nodes: Tensor, between: Tensor | None) -> Tensor:
    """The states in the order of the requested times; linear between nodes where the scheme's own output is."""
    if wanted.nodes == nodes:
        return at_nodes
    place = {n: k for k, n in enumerate(nodes)}
    rows, seen = [], 0
    for node, p in zip(wanted.nodes, wanted.positions, strict=True):
        if node >= 0:
            rows.append(at_nodes[place[node]])
        elif between is not None:
            rows.append(between[seen])
            seen += 1
        else:
            low = math.floor(p)
            rows.append(torch.lerp(at_nodes[place[low]], at_nodes[place[low + 1]], p - low))
    return torch.stack(rows)
