"""One solve, from what was asked to its result: read, weigh, solve, assemble."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .adaptive import Adapted, adapted
from .adjoints import Paper
from .base.caches import Cache
from .base.grid import Grid, Request
from .base.policy import READING_NUMBERS
from .base.structure import Structure, all_finite, replace_tensors, structure_of, tensors_in
from .base.torch_private import derivatives_are_watched, is_constant, pytree, value_of, without_compiler
from .base.transfer import capturing, to_device
from .door.cost import less_memory
from .door.names import ADJOINTS
from .door.resume import State, read_state, settings_of, weights_of_past, windowed_start
from .door.validation import (
    Options,
    Problem,
    in_own_time,
    read,
    read_args,
    read_params,
    read_stepper,
    read_velocity,
    refuse_resume,
    refuse_surroundings,
)
from .errors import InputError, UnsupportedError
from .history import Block, History, Window
from .orders import KNOWN, Caputo, CustomKernel, read_order
from .rhs.called import Called
from .rhs.field import Field
from .schemes import SOLVERS, Scheme
from .solve.function import solved
from .solve.plan import Coefficients, Plan, Run
from .storage import Storage
from .weights import uniform
from .weights.embedded import step_errors
from .weights.kernel import Kernel

_log = logging.getLogger("neuralfde")

# Stage solvers that are known by their numbers alone.
_SOLVERS = (type(None), str, *map(type, SOLVERS.values()))
_READ: Cache[tuple[Problem, _Weights]] = Cache("small solves as they were read", 32)


@dataclass(frozen=True)
class Stats:
    """What a solve cost and how it was done; ``why`` says what was left to ``auto`` and how that was decided.

    ``factorisations`` and ``linear_solves`` are those of implicit stages that were solved one by one.
    """

    steps: int
    step: float
    evaluations: int
    history_bytes: int
    method: Scheme
    adjoint: str
    history: History
    storage: Storage
    stepper: str = "single"
    why: str = ""
    factorisations: int = 0
    linear_solves: int = 0
    rejected: int = 0
    smallest_step: float = 0.0
    largest_step: float = 0.0

    @property
    def accepted(self) -> int:
        """Steps that were accepted: all that the solve consists of."""
        return self.steps


class Solved(NamedTuple):
    """States in the structure of ``z0``, and what else a caller may ask for."""

    ys: Any
    problem: Problem
    plan: Plan
    run: Run
    state: State | None
    error: Any
    march: Adapted | None = None

    @property
    def stats(self) -> Stats:
        """What the solve cost and how it was done."""
        return _stats(self.plan, self.run, self.problem, self.march)


def run(*given: Any, **more: Any) -> Solved:
    """:func:`_solve` outside of any graph that torch.compile is building: the solver runs as it is."""
    return (_uncompiled if torch.compiler.is_compiling() else _solve)(*given, **more)


def _solve(
    func: Callable[..., Any],
    z0: Any,
    t: float | Tensor,
    order: Any,
    given: Options,
    resume: bool | State | None = None,
    embedded: bool = False,
) -> Solved:
    """Solve; keep what a later solve goes on from (``resume``) or the error of each step (``embedded``) where asked."""
    before = read_state(resume)
    refuse_surroundings(func)
    if (resume or embedded) and derivatives_are_watched():
        raise UnsupportedError(
            "resume= and estimate_error='embedded' keep rows of a solve, which transforms and forward mode would take "
            "with them. Leave them out there."
        )
    march = None
    if given.adaptive and before is None:
        given, march = adapted(func, z0, t, order, given, bool(resume) or embedded)
    asked = (structure_of(z0), t, order, given, (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    if resume or embedded or not _is_found_again(*asked[:4]):
        problem, weights = _prepared(*asked, before, resume, embedded)
    else:
        problem, weights = _READ.get(_typed(asked), lambda: _with_tables(*_prepared(*asked)))
    structure, wanted = problem.structure, problem.request
    if embedded:
        refuse_estimate(wanted.grid.steps, resume)
    row0 = structure.pack(z0) if before is None else before.last
    if not capturing() and not all_finite(row0):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    trained, args = read_params(func, given.params), read_args(given.args, structure)
    if given.horizon is not None:
        func, args = in_own_time(func, given.horizon, structure, args)
    stepper = read_stepper(given.stepper, problem.adjoint)
    field, cut = _field(func, problem, given, weights.times, row0, trained, args)
    if weights.coefficients.base is not None:
        row0 = torch.stack([row0, *([] if given.velocity is None else [read_velocity(given.velocity, structure)])])
        row0 = row0 if problem.jumps is None else torch.cat([row0, problem.jumps.values])
    inputs = (*weights.coefficients, row0, *trained, *tensors_in(args))
    train = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    train = train and not derivatives_are_watched()
    leaves = (*trained, *cut)
    plan = Plan(
        field=field,
        scheme=problem.scheme,
        history=problem.history,
        storage=problem.storage,
        steps=wanted.grid.steps,
        step=wanted.grid.step,
        nodes=weights.nodes,
        first=weights.first,
        train=train,
        weigh=train and any(x is not None and x.requires_grad for x in weights.coefficients),
        callback=given.callback,
        check_finite=given.check_finite and not capturing(),
        backward_weights=_paper_weights(problem, row0),
        leaves=leaves,
        called=Called(func, leaves) if train else None,
        stepper=stepper,
        known=weights.past_rows,
        advice=lambda: less_memory(
            problem.history, problem.storage, problem.size, structure.device, problem.adjoint.stores_graph
        ),
        keep_slopes=bool(resume or embedded),
        tables=weights.tables,
        order=float(value_of(known).min()) if (known := problem.known.get("order")) is not None else 0.0,
    )
    went = Run()
    at_nodes, between = solved(plan, went, problem.adjoint, inputs)
    field.refuse_late_noise(plan.train)
    if march is not None:
        march.check(at_nodes[-1])
    rows = _assemble(wanted, weights.nodes, at_nodes, between, problem.scheme.dense_meets_nodes)
    ys = structure.unpack(rows[0] if wanted.terminal else rows)
    if wanted.terminal:
        # copies, not views: FSDP2 hangs its hooks on what a module returns, and an in-place layer may follow
        ys = replace_tensors(ys, [y.clone() for y in tensors_in(ys)])
    error = None
    if embedded:
        by = gain(problem.scheme, order)
        errors = _step_errors(plan, went, problem, at_nodes.detach(), row0.detach(), given, by)
        error = structure.unpack(_assemble(wanted, weights.nodes, errors, None))
    state = None
    if weights.kernel is not None:
        state = _state(plan, went, problem, before, row0, at_nodes, weights.kernel)
    found = Solved(ys, problem, plan, went, state, error, march)
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("solved: %s", found.stats)
    return found


_uncompiled = without_compiler(_solve)


def _field(
    func: Callable[..., Any],
    problem: Problem,
    given: Options,
    times: Tensor,
    row0: Tensor,
    trained: list[Tensor],
    args: Any,
) -> tuple[Field, list[Tensor]]:
    """The right-hand side with arguments cut off from their past, and those arguments; ``func`` is evaluated once."""
    if derivatives_are_watched():  # every operation is followed, and nothing may be cut
        field = Field(func, problem.structure, times, args)
        field.first_evaluation(row0, None)
        return field, []
    cut = [a.detach().requires_grad_(a.requires_grad) for a in tensors_in(args)]
    field = Field(func, problem.structure, times, replace_tensors(args, cut))
    owned = list(func.parameters()) if isinstance(func, nn.Module) else []  # left out of params= knowingly, if at all
    # what func does is written down where its steps may be captured: not for a function that is new at every call,
    # which no cache would know again, nor inside a graph of the caller's
    watch = problem.structure.device.type == "cuda" and given.horizon is None and not capturing()
    keeps = problem.adjoint.stores_graph
    field.first_evaluation(row0, [*trained, *owned, *cut], watch and not keeps, keeps)
    if problem.scheme.implicit and field.impure is not None:
        field.refuse_state(row0)
    return field, cut


class _Weights(NamedTuple):
    """The numbers of the scheme, where states are given out, the first slope that counts, and what came before."""

    coefficients: Coefficients
    times: Tensor
    nodes: tuple[int, ...]
    first: int
    past_rows: Any
    kernel: Kernel | None
    tables: dict[Block, Tensor] | None = None


def _prepared(
    structure: Structure,
    t: Any,
    order: Any,
    given: Options,
    modes: tuple[bool, bool],
    before: State | None = None,
    resume: Any = None,
    every: bool = False,
) -> tuple[Problem, _Weights]:
    """What was asked for; ``modes``: with gradients, in inference mode, where tensors are of no use to training."""
    problem = read(structure, t, order, given, modes[0], before)
    return problem, _weights(problem, given, before, resume, every)


def _with_tables(problem: Problem, weights: _Weights) -> tuple[Problem, _Weights]:
    return problem, weights._replace(tables={})


def _typed(asked: tuple[Any, ...]) -> Hashable:
    """What was asked for as a key: 1 and 1.0 are equal, but not the same."""
    return (asked, type(asked[1]), type(asked[2]), tuple(map(type, asked[3])))


def _is_found_again(structure: Structure, t: Any, order: Any, given: Options) -> bool:
    """Whether a small solve on the CPU is asked for in numbers and names alone."""
    if given.args != () or not (
        given.params is given.callback is given.velocity is given.horizon is given.grid is given.jumps is None
    ):
        return False
    numbers = type(t) is type(order) is float
    known = given.method is None or isinstance(given.method, str) or type(given.method) in KNOWN
    names = type(given.adjoint) is type(given.history) is type(given.storage) is type(given.stepper) is str
    names = names and type(given.solver) in _SOLVERS
    small = type(given.steps) is int and given.steps * max(16, structure.numel) <= READING_NUMBERS
    return numbers and small and known and names and structure.device.type == "cpu"


def _weights(problem: Problem, given: Options, before: State | None, resume: Any, every: bool) -> _Weights:
    like = torch.empty(0, dtype=problem.structure.dtype, device=problem.structure.device)
    wanted, past = problem.request, problem.history
    grid, past_rows, velocity = wanted.grid, None, given.velocity is not None
    if resume:
        refuse_resume(problem.adjoint, wanted)
        settings = settings_of(problem.scheme, problem.operator, problem.known, past)
    if before is not None:
        second = read_velocity(given.velocity, problem.structure) if velocity else None
        before.check(problem.structure, settings, second)
        grid, velocity = before.whole(grid.steps), before.initial.shape[0] > 1
    whole = kernel = problem.operator.kernel(problem.known, problem.scheme, problem.mesh(velocity, grid))
    if before is not None:
        kernel, past_rows = before.continued(whole, past)
    nodes, coefficients = _coefficients(kernel, problem)
    if every:
        nodes = tuple(range(wanted.grid.steps + 1))
    fixed = {k: c for k, c in coefficients._asdict().items() if c is not None and is_constant(c)}
    coefficients = coefficients._replace(**{k: to_device(c, like) for k, c in fixed.items()})
    times = grid.times(like)[grid.steps - wanted.grid.steps :]
    return _Weights(coefficients, times, nodes, kernel.first, past_rows, whole if resume else None)


def _stats(plan: Plan, went: Run, problem: Problem, march: Adapted | None) -> Stats:
    grid, adjoint, stages = problem.request.grid, problem.adjoint, went.stages
    solver = f"; solver: {stages.why}" if stages is not None and stages.why else ""
    lengths = grid.elapsed[1:] - grid.elapsed[:-1]
    return Stats(
        steps=grid.steps,
        step=grid.step,
        evaluations=plan.field.evaluations + (0 if march is None else march.evaluations),
        history_bytes=went.history_bytes,
        method=problem.scheme,
        adjoint=next((k for k, v in ADJOINTS.items() if v == adjoint), type(adjoint).__name__),
        history=problem.history,
        storage=problem.storage,
        stepper=went.stepper,
        why=f"{problem.why}; stepper={went.stepper}: {went.why}{solver}",
        factorisations=0 if stages is None else stages.factorisations,
        linear_solves=0 if stages is None else stages.linear_solves,
        rejected=0 if march is None else march.found.rejected,
        smallest_step=float(lengths.min()),
        largest_step=float(lengths.max()),
    )


def _state(
    plan: Plan, went: Run, problem: Problem, before: State | None, row0: Tensor, at_nodes: Tensor, kernel: Kernel
) -> State:
    """What a later solve goes on from."""
    if before is None:
        grid, initial = problem.request.grid, row0.detach().view(-1, *at_nodes.shape[1:])
        settings = settings_of(plan.scheme, problem.operator, problem.known, problem.history)
        before = State(
            grid.start, grid.step, settings, problem.structure, initial, initial[0], at_nodes.detach()[:0],
            weights_of_past(kernel, 0),
        )  # fmt: skip
    return before.extended(went.slopes, at_nodes.detach()[-1].clone(), kernel)


def _step_errors(
    plan: Plan, went: Run, problem: Problem, rows: Tensor, row0: Tensor, given: Options, by: float
) -> Tensor:
    if isinstance(problem.operator, CustomKernel):
        raise InputError("estimate_error='embedded' needs the weights of a longer step, which CustomKernel has not.")
    mesh = replace(problem.mesh(given.velocity is not None, problem.request.grid), rates=None)

    def kernel(stride: int) -> Kernel:
        part = replace(mesh, steps=mesh.steps // stride, elapsed=mesh.elapsed[::stride])
        return problem.operator.kernel(problem.known, plan.scheme, part)

    initial = row0 if row0.ndim > rows.ndim - 1 else row0[None]
    with torch.no_grad():
        last = plan.field(plan.steps, rows[-1].view(plan.field.shape)).view_as(rows[-1])
        slopes = torch.cat([*went.slopes, last[None]])
        return step_errors(kernel, rows, slopes, initial, by)


def refuse_estimate(count: int, resume: bool | State | None) -> None:
    """Raise where no solve with steps of twice the length exists."""
    if count % 2:
        raise InputError(
            f"estimate_error= compares with steps of twice the length, but there are {count}. Use an even number of "
            f"them, such as steps={count + 1}."
        )
    if isinstance(resume, State):
        raise InputError("estimate_error= needs the whole solve; leave resume= out.")


def gain(scheme: Scheme, order: Any) -> float:
    """``2^p - 1``, p the order for a solution that is not smooth: how much more (h, 2h) differ than h is off."""
    operator = read_order(order)
    if not isinstance(operator, Caputo):
        return 1.0
    values = [float(torch.as_tensor(x).detach().min()) for x in pytree.tree_leaves(operator.order)]
    return max(1.0, 2.0 ** scheme.expected_order(min(values), smooth=False) - 1)


def _coefficients(kernel: Kernel, problem: Problem) -> tuple[tuple[int, ...], Coefficients]:
    """Output nodes, and the numbers of the scheme."""
    wanted, scheme, past, grid = problem.request, problem.scheme, problem.history, problem.request.grid
    for part in (kernel.weights, kernel.local):
        if not all_finite(part):
            bad = int((~torch.isfinite(kernel.weights)).flatten(2).any(-1).any(0).nonzero()[0])
            raise InputError(f"the weights are not finite from step {bad} on (h={grid.step:g}); check the order.")
    nodes = {n for n in wanted.nodes if n >= 0}
    dense, positions = None, _positions(wanted, scheme)
    if positions and kernel.dense is not None:
        dense = torch.stack([_reached(kernel.dense(p), p, past) for p in positions])
    if wanted.off_grid and not (kernel.dense is not None and scheme.dense_meets_nodes):
        nodes |= {m for p in wanted.off_grid for m in (math.floor(p), math.floor(p) + 1)}
    start = windowed_start(kernel.start, past)
    weights = past.tabulate(kernel.weights)
    base = kernel.base
    if base is not None and dense is not None:
        assert kernel.dense_base is not None
        base = torch.cat([base, torch.stack([kernel.dense_base(p) for p in positions], dim=1)], dim=1)
    if problem.jumps is not None:
        after = problem.jumps.steps(
            torch.cat([grid.elapsed, *[_elapsed(grid, p) for p in positions if dense is not None]])
        )
        after = after[..., None].expand(-1, -1, kernel.weights.shape[-1])
        base = torch.cat([torch.ones_like(after[:1]) if base is None else base, after])
    return tuple(sorted(nodes)), Coefficients(weights, kernel.local, start, dense, base)


def _elapsed(grid: Grid, position: float) -> Tensor:
    """The time since the start at a position, (1,)."""
    low = min(int(position), grid.steps - 1)
    return torch.lerp(grid.elapsed[low], grid.elapsed[low + 1], position - low)[None]


def _reached(row: Tensor, position: float, history: History) -> Tensor:
    """The weights of continuous output without those that a window has forgotten."""
    if not isinstance(history, Window):
        return row
    return torch.where((position - torch.arange(row.shape[0]) <= history.length)[:, None], row, 0.0)


def _positions(wanted: Request, scheme: Scheme) -> tuple[float, ...]:
    """Where the scheme's continuous output is evaluated: also at the nodes around, where it does not meet them."""
    if scheme.dense_meets_nodes:
        return wanted.off_grid
    return tuple(x for p in wanted.off_grid for x in (p, float(math.floor(p)), math.floor(p) + 1.0))


def _paper_weights(problem: Problem, like: Tensor) -> Tensor | None:
    if not isinstance(problem.adjoint, Paper):
        return None
    grid = problem.request.grid
    weights = uniform.rectangle(problem.known["order"].detach(), grid.step, grid.steps)
    return to_device(problem.history.tabulate(weights[None]), like)


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
