"""The public calls: the only place with names, defaults and validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from . import tableaux
from .adjoints import Adjoint, Coefficients, Direct, Exact, Paper, Plan, Solve
from .errors import InputError, InputTypeError, nearest
from .field import Field
from .grid import Request, request
from .history import FFT, Full, History, Window
from .schemes import ABM, L1, SOLVERS, GrunwaldLetnikov, Predictor, Scheme, StageSolver, Trapezoid
from .storage import Device, Storage
from .structure import Structure, replace_tensors, structure_of, tensors_in

METHODS: dict[str, Scheme] = {
    "predictor": Predictor(),
    "predictor-implicit": Predictor(implicit=True),
    "abm": ABM(),
    "trapezoid": Trapezoid(),
    "gl": GrunwaldLetnikov(),
    "gl-explicit": GrunwaldLetnikov(implicit=False),
    "l1": L1(),
    "l1-explicit": L1(implicit=False),
}
ADJOINTS: dict[str, Adjoint] = {"exact": Exact(), "direct": Direct(), "paper": Paper()}
HISTORIES: dict[str, History | None] = {"auto": None, "full": Full(), "fft": FFT(), "window": None}
STORAGES: dict[str, Storage] = {"device": Device()}

#: From this many steps on, ``auto`` sums distant blocks by FFT.
FFT_FROM = 8192

_T = TypeVar("_T")


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


@dataclass(frozen=True)
class Solution:
    """Times, states in the structure of ``z0`` stacked along the first axis, and the cost."""

    ts: Tensor
    ys: Any
    stats: Stats


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
    storage: str | Storage = "device",
    params: Iterable[Tensor] | None = None,
    args: tuple[Any, ...] = (),
    solver: str | StageSolver | None = None,
    callback: Callable[[int, int], None] | None = None,
    check_finite: bool = True,
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
        history: ``'auto'`` (default), ``'full'``, ``'fft'``, or an object such as ``Window(64)``.
        storage: ``'device'``.
        params: tensors ``func`` uses that get gradients; default: its parameters that require grad.
        args: passed on to ``func``; tensors among them get gradients.
        solver: how implicit stages are solved: ``'newton'`` (default), ``'fixed-point'`` or an object.
        callback: called as ``callback(step, total)`` in both passes.
        check_finite: raise :class:`NonFiniteError` naming the step where the state stopped being finite.

    Returns:
        z(T) in the structure of ``z0``, or the states at the times of ``t`` stacked along a new first axis.
    """
    return _solve(
        func, z0, t, order, method, step, steps, adjoint, history, storage, params, args, solver, callback, check_finite
    )[0]


def solve(func: Callable[..., Any], z0: Any, t: float | Tensor, order: float | Tensor, **options: Any) -> Solution:
    """:func:`fdeint` with the same arguments, returning a :class:`Solution` with times, states and statistics.

    For a number T the states have one time along the first axis.
    """
    known = set(fdeint.__kwdefaults__ or ())
    for name in options:
        if name not in known:
            raise InputTypeError(f"solve() has no argument {name!r}. {nearest(name, known)}")
    chosen = {**(fdeint.__kwdefaults__ or {}), **options}
    ys, wanted, stats, structure = _solve(func, z0, t, order, **chosen)
    times = [wanted.grid.start + p * wanted.grid.step for p in wanted.positions]
    ts = torch.tensor(times, dtype=structure.dtype, device=structure.device)
    if wanted.terminal:
        ys = structure.unpack(structure.pack(ys)[None])
    return Solution(ts, ys, stats)


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
) -> tuple[Any, Request, Stats, Structure]:
    if not callable(func):
        raise InputTypeError(f"func must be callable as func(t, z, *args), got {type(func).__name__}.")
    structure = structure_of(z0)
    wanted = request(t, step, steps)
    scheme = _scheme(method, solver)
    how = named("adjoint", adjoint, ADJOINTS, (Exact, Direct, Paper))
    past = _history(history, wanted.grid.steps)
    kept = named("storage", storage, STORAGES, Storage)
    beta = _order(order, structure)
    _refuse_combinations(how, past, kept, beta, wanted, scheme)

    trained = _params(func, params)
    args = _args(args, structure)
    cut = [a.detach().requires_grad_(a.requires_grad) for a in tensors_in(args)]
    row0 = structure.pack(z0)
    if not bool(torch.isfinite(row0).all()):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    field = Field(func, structure, wanted.grid.times(row0), replace_tensors(args, cut))
    field.first_evaluation(row0, [*trained, *cut])

    nodes, first, coefficients = _coefficients(scheme, beta, wanted, past)
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
        backward_weights=_paper_weights(how, beta, wanted),
        leaves=(*trained, *cut),
    )
    at_nodes, between = Solve.apply(plan, how, *inputs)
    field.refuse_late_noise(plan.train)
    rows = _assemble(wanted, nodes, at_nodes, between)
    ys = structure.unpack(rows[0] if wanted.terminal else rows)
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
    )
    return ys, wanted, stats, structure


def named(kind: str, given: Any, table: Mapping[str, _T], kinds: Any) -> _T:
    """An object from its name; an object of the right kind is passed through."""
    if isinstance(given, kinds):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        if given in table:
            return table[given]
        raise InputError(f"unknown {kind} {given!r}. {nearest(given, table)}")
    raise InputTypeError(f"{kind} must be a name or an object, got {type(given).__name__}. {nearest('', table)}")


def _scheme(method: str | Scheme, solver: str | StageSolver | None) -> Scheme:
    scheme = named("method", method, METHODS, Scheme)
    if solver is None:
        return scheme
    if not scheme.implicit:
        raise InputError(
            f"solver={solver!r} is for implicit methods, but {type(scheme).__name__} is explicit and solves no equation. "
            "Drop solver=, or use an implicit method ('trapezoid', 'gl', 'l1', 'predictor-implicit')."
        )
    return replace(scheme, solver=named("solver", solver, SOLVERS, StageSolver))  # type: ignore[type-var, call-arg]


def _history(history: str | History, steps: int) -> History:
    if history == "window":
        raise InputError("history='window' needs a length: pass history=Window(64) for the last 64 steps.")
    chosen = named("history", history, HISTORIES, History)
    if chosen is None:
        return FFT() if steps >= FFT_FROM else Full()
    return chosen


def _order(order: float | Tensor, structure: Structure) -> Tensor:
    """The order as a float64 tensor of shape (groups,), on the CPU where weights are computed."""
    if isinstance(order, Tensor):
        if not order.is_floating_point():
            raise InputTypeError(f"order must be a real number, got a tensor of dtype {order.dtype}.")
        if order.numel() != 1:
            raise InputError(
                f"order has shape {tuple(order.shape)}; one order for the whole state is a number or a tensor of one "
                f"element. The state has {structure.numel} numbers."
            )
        beta = order.reshape(1).to(device="cpu", dtype=torch.float64)
    elif isinstance(order, int | float) and not isinstance(order, bool):
        beta = torch.tensor([float(order)], dtype=torch.float64)
    else:
        raise InputTypeError(f"order must be a number or a tensor, got {type(order).__name__}.")
    value = float(beta.detach())
    if not (math.isfinite(value) and 0 < value <= 1):
        raise InputError(
            f"order={value:g} is outside (0, 1]: a Caputo equation with one initial value has an order in that range. "
            "For a higher order write the equation as a system of orders up to 1."
        )
    return beta


def _refuse_combinations(
    how: Adjoint, past: History, kept: Storage, beta: Tensor, wanted: Request, scheme: Scheme
) -> None:
    if isinstance(how, Paper):
        if beta.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "adjoint='paper' has no gradient for the order. Use adjoint='exact' to learn it, "
                "or pass order.detach()."
            )
        if wanted.off_grid:
            raise InputError(
                "adjoint='paper' is defined on the grid only, but t has times between grid points "
                f"(step {wanted.grid.step:g}). Use adjoint='exact', or a step that meets every time."
            )
    if wanted.off_grid and not past.keeps_rows:
        raise InputError(
            f"history={type(past).__name__} forgets the rows that states between grid points are computed from "
            f"(step {wanted.grid.step:g}). Use history='full' or 'fft', or a step that meets every time."
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
    return tuple(sorted(nodes)), kernel.first, Coefficients(kernel.weights, kernel.local, start, dense)


def _paper_weights(how: Adjoint, beta: Tensor, wanted: Request) -> Tensor | None:
    if not isinstance(how, Paper):
        return None
    return tableaux.rectangle(beta.detach(), wanted.grid.step, wanted.grid.steps)[None]


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
