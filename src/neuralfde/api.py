"""The public calls: the only place with names, defaults and validation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils import _pytree as pytree

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
from .embedded import step_errors
from .errors import InputError, InputTypeError, UnsupportedError, nearest
from .field import Field
from .grid import Request, request
from .history import Full, History, Window
from .orders import Caputo, CustomKernel, Mesh, Operator, read_order
from .schemes import Scheme, StageSolver
from .storage import Storage
from .streaming import State
from .structure import Structure, grouped, replace_tensors, structure_of, tensors_in
from .transfer import capturing, to_device

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

    ``error`` is the estimated error of every number of ``ys``, where ``estimate_error=`` asked for it.
    ``state``, where ``resume=True`` asked for it, is what a later ``solve(..., resume=state)`` goes on from.
    """

    ts: Tensor
    ys: Any
    stats: Stats
    error: Any = None
    state: State | None = None


def fdeint(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: float | Tensor | Operator | Any,
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
    velocity: Any = None,
    horizon: float | Tensor | Any = None,
    grading: float = 1.0,
    graphs: bool | str = "auto",
) -> Any:
    """Solve ``D z = func(t, z, *args)``, ``z(t_0) = z0``; ``D`` is Caputo's derivative of order β or a relative of it.

    Args:
        func: the right-hand side ``func(t, z, *args)``; ``t`` is a 0-d tensor, ``z`` has the structure of ``z0``.
        z0: the initial state: a tensor of any shape, or a tuple, dict or nesting of tensors, float32 or float64.
        t: a number T integrates from 0 and returns z(T); a 1-D increasing tensor returns the states at its times,
            stacked first, with ``t[0]`` the initial time. Times between grid points come from the scheme's own
            continuous output.
        order: β in (0, 2], a number, a tensor that broadcasts to the state (one order per channel, or per sample as
            ``(batch, 1)``), a structure of them like that of ``z0``, or an operator: ``MultiTerm``,
            ``DistributedOrder``, ``Tempered``, ``VariableOrder``, ``CustomKernel``. Every tensor in it that requires
            grad gets the exact gradient.
        method: ``'predictor'`` (default), ``'abm'``, ``'trapezoid'``, ``'gl'``, ``'l1'``, ``'predictor-implicit'``,
            ``'gl-explicit'``, ``'l1-explicit'``, ``'bdf2'``, ``'flmm-trapezoid'``, or a scheme
            object such as ``ABM(corrections=3)``.
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
        velocity: ``z'(t_0)`` in the structure of ``z0``, for orders above 1; gets a gradient.
        horizon: a factor of time, a positive number or tensor that broadcasts to the state: each element runs in its
            own time ``horizon · t``, so that ``t=1.0`` with ``horizon`` of shape (batch, 1) ends every sample at its
            own T. ``func`` gets ``horizon · t`` in the shape of ``horizon``. As ``D^β_t = T^{-β} D^β_s``, it scales
            the weights; it gets the exact gradient.
        grading: r in ``t_k = T (k/N)^r``: points gather at the start, where solutions behave like ``t^β``. Takes
            ``steps=`` and ``history='full'``.
        graphs: replay steps as CUDA graphs: ``'auto'`` (default: where it is safe), ``True`` (an error where it is
            not) or ``False``. Python code in ``func`` is then run once for all steps, not at every step.

    Returns:
        z(T) in the structure of ``z0``, or the states at the times of ``t`` stacked along a new first axis.
    """
    return _solve(
        func, z0, t, order, method, step, steps, adjoint, history, storage, params, args, solver, callback,
        check_finite, velocity, horizon, grading, graphs, None,
    )[0]  # fmt: skip


def solve(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: Any,
    *,
    estimate_error: bool | str = False,
    resume: bool | State | None = None,
    **options: Any,
) -> Solution:
    """:func:`fdeint` with the same arguments, returning a :class:`Solution` with times, states and statistics.

    For a number T the states have one time along the first axis.

    Args:
        estimate_error: True solves again with steps of twice the length; ``|z_h - z_2h| / (2^p - 1)`` estimates the
            error of each number, p being the order of the method for a solution that is not smooth. It takes half as
            much work again. ``'embedded'`` compares the sum of each step with that of every other slope: no further
            evaluation but one, N rows more memory, O(N log N). It sees what each step adds, and not how errors grow
            from there on. Both take an even number of steps.
        resume: True keeps what a later solve needs to go on (N rows); that solve gets it as ``resume=state`` and gives
            the trajectory of one long solve. Its ``z0`` only says what a state looks like; ``t`` is the new end. The
            past is cut off from gradients, as truncated training wants it.
    """
    chosen = _options("solve", options)
    pair = named("estimate_error", estimate_error, {"embedded": "embedded"}, bool)
    errors: list[Any] | None = [] if pair == "embedded" else None
    ys, wanted, stats, structure, state = _solve(func, z0, t, order, **chosen, resume=resume, errors=errors)
    times = [wanted.grid.at(p) for p in wanted.positions]
    ts = torch.tensor(times, dtype=structure.dtype, device=structure.device)
    if wanted.terminal:
        ys = structure.unpack(structure.pack(ys)[None])
    error = errors[0] if errors else None
    if pair is True:
        count = wanted.grid.steps
        _refuse_estimate(count, resume)
        with torch.no_grad():
            half = _solve(func, z0, t, order, **{**chosen, "step": None, "steps": count // 2}, resume=None)[0]
        half = structure.unpack(structure.pack(half)[None]) if wanted.terminal else half
        error = difference(ys, half, gain(stats.method, order))
    return Solution(ts, ys, stats, error, state)


def _refuse_estimate(count: int, resume: bool | State | None) -> None:
    if count % 2:
        raise InputError(f"estimate_error= compares with steps of twice the length, but there are {count}.")
    if isinstance(resume, State):
        raise InputError("estimate_error= needs the whole solve; leave resume= out.")


def gain(scheme: Scheme, order: Any) -> float:
    """``2^p - 1``, p the order for a solution that is not smooth: how much more (h, 2h) differ than h is off."""
    operator = read_order(order)
    if not isinstance(operator, Caputo):
        return 1.0
    values = [float(torch.as_tensor(x).detach().min()) for x in pytree.tree_leaves(operator.order)]
    return max(1.0, 2.0 ** scheme.expected_order(min(values), smooth=False) - 1)


def difference(fine: Any, coarse: Any, by: float) -> Any:
    """``|fine - coarse| / by`` in the structure of the states, without gradients."""
    return pytree.tree_map(lambda a, b: (a - b).detach().abs() / by, fine, coarse)


def plan(func: Callable[..., Any], z0: Any, t: float | Tensor, order: Any, **options: Any) -> Prediction:
    """What :func:`fdeint` with the same arguments will take: bytes, work, and what ``auto`` chooses; ``func``
    is not run.

    ``print(plan(...))`` reads as a short table.
    """
    chosen = _options("plan", options)
    structure, wanted = structure_of(z0), request(t, chosen["step"], chosen["steps"], chosen["grading"])
    scheme = read_scheme(chosen["method"], chosen["solver"])
    how = named("adjoint", chosen["adjoint"], ADJOINTS, (Exact, Direct, Paper))
    trained = [*_params(func, chosen["params"]), *tensors_in(z0), *tensors_in(order), *tensors_in(chosen["args"])]
    train = torch.is_grad_enabled() and any(x.requires_grad for x in trained)
    size = _size(structure, wanted, scheme, train)
    past, kept, why = _memory(
        chosen["history"], chosen["storage"], size, structure, wanted, how, _is_toeplitz(read_order(order), wanted)
    )
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
    toeplitz: bool,
) -> tuple[History, Storage, str]:
    """History and storage as given or as chosen, and why; without Toeplitz weights every row and weight is needed."""
    past, kept = read_history(history), named("storage", storage, STORAGES, Storage)
    if isinstance(how, Direct) and kept is None:
        kept = STORAGES["device"]
    if not toeplitz and past is None:
        past = Full()
    return choose(past, kept, size, structure.device, needs_rows=bool(wanted.off_grid))


def _solve(*given: Any, **options: Any) -> tuple[Any, Request, Stats, Structure, State | None]:
    """Solve outside of any graph that torch.compile is building: the solver runs as it is."""
    return (_uncompiled if torch.compiler.is_compiling() else _solve_eagerly)(*given, **options)


def _solve_eagerly(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: Any,
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
    velocity: Any,
    horizon: Any,
    grading: float,
    graphs: bool | str,
    resume: bool | State | None,
    errors: list[Any] | None = None,
) -> tuple[Any, Request, Stats, Structure, State | None]:
    if not callable(func):
        raise InputTypeError(f"func must be callable as func(t, z, *args), got {type(func).__name__}.")
    _refuse_surroundings(func)
    structure = structure_of(z0)
    scheme = read_scheme(method, solver)
    before = resume if isinstance(resume, State) else None
    wanted = request(t, step, steps, grading) if before is None else before.request(t, step, steps, scheme)
    how = named("adjoint", adjoint, ADJOINTS, (Exact, Direct, Paper))
    operator = read_order(order)
    size = _size(structure, wanted, scheme, torch.is_grad_enabled())
    past, kept, why = _memory(history, storage, size, structure, wanted, how, _is_toeplitz(operator, wanted))
    _refuse_history(past, operator, wanted)
    numbers = {**operator.numbers(), **({} if horizon is None else {"horizon": horizon})}
    structure = grouped(structure, numbers)
    known = {name: structure.spread(name, x) for name, x in numbers.items()}
    beta = torch.cat([*known.values(), torch.zeros(0, dtype=torch.float64)])
    refuse_combinations(how, past, kept, beta, wanted, scheme)
    _refuse_paper(how, operator, velocity, horizon, wanted)

    trained = _params(func, params)
    args = _args(args, structure)
    if horizon is not None:
        func, args = _in_own_time(func, horizon, structure, args)
    cut = [a.detach().requires_grad_(a.requires_grad) for a in tensors_in(args)]
    row0 = structure.pack(z0) if before is None else before.last
    inside = capturing()  # then the host may not look at any value
    if not inside and not bool(torch.isfinite(row0).all()):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    field = Field(func, structure, wanted.grid.times(row0), replace_tensors(args, cut))
    owned = list(func.parameters()) if isinstance(func, nn.Module) else []  # left out of params= knowingly, if at all
    # a horizon makes a new function at every call, which no cache would know again
    graphs = read_graphs(graphs, how, structure.device) if horizon is None else False
    graphs = False if inside and graphs == "auto" else graphs  # the caller's graph holds the steps
    field.first_evaluation(row0, [*trained, *owned, *cut], watch=graphs is not False)

    mesh = _mesh(wanted, known, structure, velocity is not None)
    nodes, first, coefficients = _coefficients(operator.kernel(known, scheme, mesh), wanted, past, scheme)
    past_rows = None
    if errors is not None:
        _refuse_estimate(wanted.grid.steps, resume)
        nodes = tuple(range(wanted.grid.steps + 1))
    if resume:
        refuse_resume(how, wanted, coefficients.base is None and horizon is None and wanted.grid.grading == 1)
    if before is not None:
        whole = Request(replace(wanted.grid, steps=before.steps + wanted.grid.steps), wanted.positions, True)
        kernel = operator.kernel(known, scheme, _mesh(whole, known, structure, False))
        past_rows, first = before.known_rows(kernel, past, wanted.grid.steps + 1), 0
        local = kernel.local if kernel.local.ndim == 1 else kernel.local[before.steps :]
        coefficients = coefficients._replace(start=None, local=local)
    if coefficients.base is not None:
        row0 = torch.stack([row0] + ([] if velocity is None else [_velocity(velocity, structure)]))
    fixed = {k: c for k, c in coefficients._asdict().items() if c is not None and not c.requires_grad}
    coefficients = coefficients._replace(**{k: to_device(c, row0) for k, c in fixed.items()})
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
        weigh=torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in coefficients),
        callback=callback,
        check_finite=check_finite and not inside,
        backward_weights=_paper_weights(how, known, wanted, past, row0),
        leaves=(*trained, *cut),
        graphs=graphs,
        known=past_rows,
        slopes=[] if resume or errors is not None else None,
    )
    at_nodes, between = Solve.apply(plan, how, *inputs)
    field.refuse_late_noise(plan.train)
    rows = _assemble(wanted, nodes, at_nodes, between, scheme.dense_meets_nodes)
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
    if errors is not None:
        initial = row0 if coefficients.base is not None else row0[None]
        found = _step_errors(plan, at_nodes.detach(), initial.detach(), operator, known, mesh, gain(scheme, order))
        errors.append(structure.unpack(_assemble(wanted, nodes, found, None)))
    state = None
    if resume and plan.slopes is not None:
        origin = before or State(
            wanted.grid.start, wanted.grid.step, scheme, row0.detach(), row0.detach(), row0.new_empty(0, *row0.shape)
        )
        state = origin.extended(plan.slopes, at_nodes.detach()[-1].clone(), wanted.grid.end)
    _log.debug("solved: %s", stats)
    return ys, wanted, stats, structure, state


# torch.compiler.disable would import the compiler with the package; this one waits until the compiler is at work
_uncompiled = _disable_dynamo(_solve_eagerly)


def _step_errors(
    plan: Plan, rows: Tensor, initial: Tensor, operator: Operator, known: dict[str, Tensor], mesh: Mesh, by: float
) -> Tensor:
    if isinstance(operator, CustomKernel):
        raise InputError("estimate_error='embedded' needs the weights of a longer step, which CustomKernel has not.")

    def kernel(stride: int) -> tableaux.Kernel:
        part = replace(mesh, steps=mesh.steps // stride, elapsed=mesh.elapsed[::stride])
        return operator.kernel(known, plan.scheme, part)

    assert plan.slopes is not None
    with torch.no_grad():
        slopes = torch.stack([*plan.slopes, plan.field(plan.steps, rows[-1])])
        return step_errors(kernel, rows, slopes, initial, by)


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
    if any(kind.__name__ == "FSDPModule" for kind in type(func).__mro__):
        raise UnsupportedError(
            "fully_shard was applied to func itself, which would gather its parameters anew at every evaluation. "
            "Apply it to the FDEBlock, or to the module that calls fdeint: they are then gathered once a pass."
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


def _is_toeplitz(operator: Operator, wanted: Request) -> bool:
    """Whether weights depend on the lag alone."""
    return operator.toeplitz and wanted.grid.grading == 1


def _refuse_history(past: History, operator: Operator, wanted: Request) -> None:
    """A matrix that is not Toeplitz needs a history that keeps all rows and all weights."""
    if not _is_toeplitz(operator, wanted) and not isinstance(past, Full):
        cause = f"grading={wanted.grid.grading:g}" if operator.toeplitz else f"order={type(operator).__name__}"
        raise InputError(
            f"history={type(past).__name__} needs weights that depend on the lag alone, which {cause} has not. "
            "Use history='full'."
        )


def _mesh(wanted: Request, known: dict[str, Tensor], structure: Structure, velocity: bool) -> Mesh:
    grid = wanted.grid
    horizon = known.get("horizon", torch.ones(structure.groups, dtype=torch.float64))
    if not bool((torch.isfinite(horizon) & (horizon > 0)).all()):
        raise InputError(f"horizon={float(horizon.detach().min()):g} must be positive and finite.")
    return Mesh(grid.steps, grid.elapsed, grid.start, grid.grading == 1, horizon, velocity)


def _velocity(velocity: Any, structure: Structure) -> Tensor:
    given = structure_of(velocity)
    if replace(given, spans=structure.spans) != structure:
        raise InputTypeError(
            "velocity must have the structure, shapes, dtype and device of z0: it is z'(0), one number for each of z0."
        )
    return structure.pack(velocity)


def _in_own_time(
    func: Callable[..., Any], horizon: Any, structure: Structure, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` of the grid's time; the factors travel among the arguments, where tensors get gradients."""
    scales = pytree.tree_map(lambda x: torch.as_tensor(x).to(device=structure.device, dtype=structure.dtype), horizon)

    def scaled(s: Tensor, z: Any, factors: Any, *rest: Any) -> Any:
        return func(pytree.tree_map(lambda x: x * s, factors), z, *rest)

    return scaled, (scales, *args)


def _refuse_paper(how: Adjoint, operator: Operator, velocity: Any, horizon: Any, wanted: Request) -> None:
    if isinstance(how, Paper) and (
        not isinstance(operator, Caputo) or velocity is not None or horizon is not None or wanted.grid.grading != 1
    ):
        raise InputError(
            "adjoint='paper' is defined for a Caputo derivative of order up to 1 on a uniform grid, without horizon= "
            "and velocity=. Use adjoint='exact'."
        )


def _coefficients(
    kernel: tableaux.Kernel, wanted: Request, past: History, scheme: Scheme
) -> tuple[tuple[int, ...], int, Coefficients]:
    """Output nodes, the first slope that counts, and the numbers of the scheme."""
    grid = wanted.grid
    for part in (kernel.weights, kernel.local):
        if not bool(torch.isfinite(part).all()):
            bad = int((~torch.isfinite(kernel.weights)).flatten(2).any(-1).any(0).nonzero()[0])
            raise InputError(f"the weights are not finite from step {bad} on (h={grid.step:g}); check the order.")
    nodes = {n for n in wanted.nodes if n >= 0}
    dense, positions = None, _positions(wanted, scheme)
    if positions and kernel.dense is not None:
        dense = torch.stack([kernel.dense(p) for p in positions])
    if wanted.off_grid and not (kernel.dense is not None and scheme.dense_meets_nodes):
        nodes |= {m for p in wanted.off_grid for m in (math.floor(p), math.floor(p) + 1)}
    start = kernel.start
    if start is not None and isinstance(past, Window):
        lag = torch.arange(grid.steps + 1) - torch.arange(start.shape[0])[:, None]
        start = torch.where((lag <= past.length)[..., None], start, 0.0)
    weights = past.tabulate(kernel.weights)
    base = kernel.base
    if base is not None and dense is not None:
        assert kernel.dense_base is not None
        base = torch.cat([base, torch.stack([kernel.dense_base(p) for p in positions], dim=1)], dim=1)
    return tuple(sorted(nodes)), kernel.first, Coefficients(weights, kernel.local, start, dense, base)


def _positions(wanted: Request, scheme: Scheme) -> tuple[float, ...]:
    """Where the scheme's continuous output is evaluated: also at the nodes around, where it does not meet them."""
    if scheme.dense_meets_nodes:
        return wanted.off_grid
    return tuple(x for p in wanted.off_grid for x in (p, float(math.floor(p)), math.floor(p) + 1.0))


def _paper_weights(
    how: Adjoint, known: dict[str, Tensor], wanted: Request, past: History, like: Tensor
) -> Tensor | None:
    if not isinstance(how, Paper):
        return None
    weights = tableaux.rectangle(known["order"].detach(), wanted.grid.step, wanted.grid.steps)
    return to_device(past.tabulate(weights[None]), like)


def _assemble(
    wanted: Request, nodes: tuple[int, ...], at_nodes: Tensor, between: Tensor | None, meets_nodes: bool = True
) -> Tensor:
    """The states in the order of the requested times; linear between nodes where the scheme's own output is.

    Continuous output that does not meet the nodes is moved by its distance from them, linearly between the two.
    """
    if wanted.nodes == nodes:
        return at_nodes
    place = {n: k for k, n in enumerate(nodes)}
    rows, seen = [], 0
    for node, p in zip(wanted.nodes, wanted.positions, strict=True):
        if node >= 0:
            rows.append(at_nodes[place[node]])
            continue
        low = math.floor(p)
        if between is not None and meets_nodes:
            rows.append(between[seen])
            seen += 1
        elif between is not None:
            here, left, right = between[seen : seen + 3]
            gap = torch.lerp(at_nodes[place[low]] - left, at_nodes[place[low + 1]] - right, p - low)
            rows.append(here + gap)
            seen += 3
        else:
            rows.append(torch.lerp(at_nodes[place[low]], at_nodes[place[low + 1]], p - low))
    return torch.stack(rows)
