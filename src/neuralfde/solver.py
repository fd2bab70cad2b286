"""One solve, from its arguments to its result: read, compute weights, solve, assemble."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .adjoints import Paper
from .base.caches import capturing
from .base.policy import ADAPTIVE_AGAIN, ADAPTIVE_ATTEMPTS, PICARD_FEWEST, PICARD_NUMBERS, WORK_NUMBERS
from .base.structure import as_numbers, extent, replace_tensors, structure_of, tensors_in
from .base.torch_private import derivatives_are_watched, versions_of
from .base.torch_transforms import refuse_many, refuse_written, tangents_of
from .door.adaptive import Adapted, adapted
from .door.cost import less_memory
from .door.estimates import errors_of_steps, gain, refuse_estimate
from .door.export import refuse_export
from .door.lags import read_lags
from .door.observed import read_velocity
from .door.output import assembled
from .door.own_time import in_moving_time, in_own_time
from .door.paper import paper_weights
from .door.resume import State, settings_of, weights_of_past
from .door.semilinear import joined, refuse_orders
from .door.stats import Stats, stats_of
from .door.validation import Options, Problem, parameters_apart, read_args, read_params, refuse_surroundings
from .door.weighing import Weights, weighed
from .errors import ConvergenceError, InputError, UnsupportedError
from .rhs.field import Called, Field
from .rhs.first import first_evaluation, refuse_state
from .solve.delays import Delays
from .solve.function import solved
from .solve.plan import Plan, Run
from .weights.kernel import Kernel

_log = logging.getLogger("neuralfde")


class Solved(NamedTuple):
    """The states in the structure of ``z0``, and whatever else a caller may need."""

    ys: Any
    problem: Problem
    plan: Plan
    run: Run
    state: State | None
    error: Any
    last: Tensor
    march: Adapted | None = None
    event_times: Tensor | None = None
    spent: int = 0

    @property
    def stats(self) -> Stats:
        """What the solve cost and how it was done, including ``spent`` evaluations of earlier solves for events."""
        found = stats_of(self.plan, self.run, self.problem, self.march)
        return replace(found, evaluations=found.evaluations + self.spent) if self.spent else found


def run(
    func: Any, z0: Any, t: float | Tensor, order: Any, given: Options, resume: bool = False, embedded: bool = False
) -> Solved:
    """Solve, with given steps or to a tolerance."""
    if torch.compiler.is_exporting():
        refuse_export(t, order, given)

    def once(share: float) -> tuple[Solved, Adapted]:
        steps, march = adapted(func, z0, t, order, given, resume or embedded, share)
        return _solve_once(func, z0, t, order, steps), march

    with parameters_apart(func, given.params):
        return to_tolerance(once) if given.adaptive else _solve_once(func, z0, t, order, given, resume, embedded)


def to_tolerance(once: Callable[[float], tuple[Solved, Adapted]]) -> Solved:
    """Solve repeatedly, each time with a smaller share of the tolerance, until the error at the end meets it."""
    share, evaluations = 1.0, 0
    for _ in range(ADAPTIVE_ATTEMPTS):
        found, march = once(share)
        evaluations += march.evaluations
        excess = march.excess(found.last)
        if excess <= 1:
            return found._replace(march=march._replace(evaluations=evaluations))
        share, evaluations = share * ADAPTIVE_AGAIN / excess, evaluations + found.spent + found.plan.field.evaluations
        told = march.told(excess)
        if not share * march.tolerance.rtol > 8 * torch.finfo(found.last.dtype).eps:
            break  # rounding dominates, or the state is not finite
        del found, march  # free this mesh before the next one is made
    raise ConvergenceError(told)


def _solve_once(
    func: Any, z0: Any, t: float | Tensor, order: Any, given: Options, resume: bool = False, embedded: bool = False
) -> Solved:
    """Solve on a given grid; ``resume``: keep what a later solve needs; ``embedded``: estimate errors of steps."""
    before, semilinear = given.before, given.linear is not None
    keep = resume or before is not None
    if semilinear:
        func, given = joined(func, z0, given)
    refuse_surroundings(func)
    if (keep or embedded) and derivatives_are_watched():
        raise UnsupportedError(
            "resume=, a resumed solve as past= and estimate_error='embedded' keep rows of a solve, which would outlive "
            "the transform or forward mode around it. Leave them out there."
        )
    problem, weights = weighed(structure_of(z0), t, order, given, keep, embedded)
    structure, wanted = problem.structure, problem.request
    if semilinear:
        refuse_orders(problem)
    if embedded:
        refuse_estimate(problem)
    row0 = structure.pack(z0) if before is None else as_numbers(before.last)
    went = Run()
    if not (torch.compiler.is_exporting() or capturing()):
        went.start = extent(row0)
    if not math.isfinite(went.start):
        raise InputError("z0 contains NaN or infinity (step 0); check the data or the layers before the solve.")
    trained, args = read_params(func, given.params), read_args(given.args, structure)
    delays = None
    if given.lags is not None:
        delays = read_lags(given, problem, keep or embedded)
        args = (delays.at(0, [row0]), *args)
        count = len(args)
    if given.horizon is not None:
        func, args = in_own_time(func, given.horizon, structure, args)
    if wanted.grid.moving is not None:
        func, args = in_moving_time(func, wanted.grid, row0, args)
    if delays is not None:
        delays = replace(delays, place=len(args) - count)
    field, cut = _field(func, problem, weights.times, row0, trained, args)
    if weights.coefficients.base is not None:
        row0 = torch.stack([row0, *([] if given.velocity is None else [read_velocity(given.velocity, structure)])])
        row0 = row0 if problem.observed is None else torch.cat([row0, problem.observed.rows[:-1]])
        row0 = row0 if problem.jumps is None else torch.cat([row0, problem.jumps.rows])
    inputs = (*weights.coefficients, row0, *trained, *tensors_in(args))
    plan = _plan(problem, weights, given, field, inputs, (*trained, *cut), keep or embedded, delays)
    at_nodes, between = solved(plan, went, problem.adjoint, inputs)
    field.refuse_late_noise(plan.train)

    def in_order(rows: Tensor, between: Tensor | None) -> Tensor:
        on_grid = wanted.nodes == weights.nodes
        return rows if on_grid else assembled(wanted, structure, problem.scheme, weights.nodes, rows, between)

    rows = in_order(at_nodes, between)
    ys = structure.unpack(rows[0] if wanted.terminal else rows)
    if wanted.terminal:
        # copies, not views: FSDP2 puts hooks on what a module returns, and an in-place operation may follow
        ys = replace_tensors(ys, [y.clone() for y in tensors_in(ys)])
    error = state = None
    if embedded:
        rows = errors_of_steps(plan, went, problem, at_nodes, row0, given, gain(problem.scheme, order))
        error = structure.unpack(in_order(rows, None))
    if weights.kernel is not None:
        state = _state(plan, went, problem, before, row0, at_nodes, weights.kernel)
    found = Solved(ys, problem, plan, went, state, error, at_nodes[-1])
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("solved: %s", found.stats)
    return found


def _plan(
    problem: Problem,
    weights: Weights,
    given: Options,
    field: Field,
    inputs: tuple[Tensor | None, ...],
    leaves: tuple[Tensor, ...],
    keep_slopes: bool,
    delays: Delays | None,
) -> Plan:
    """The plan of the loop; ``leaves`` are the tensors of ``func`` that may get gradients."""
    train = torch.is_grad_enabled() and not derivatives_are_watched()
    train = train and any(x is not None and x.requires_grad for x in inputs)
    structure, grid, reverse, keeps = problem.structure, problem.request.grid, None, problem.adjoint.stores_graph
    if isinstance(problem.adjoint, Paper):
        reverse = paper_weights(structure, problem.request, problem.known["order"], problem.history)
    return Plan(
        field=field,
        scheme=problem.scheme.bound(field.args) if field.args else problem.scheme,
        history=problem.history,
        storage=problem.storage,
        steps=grid.steps,
        step=grid.step,
        nodes=weights.nodes,
        first=weights.first,
        train=train,
        weigh=train and any(x is not None and x.requires_grad for x in weights.coefficients),
        callback=given.callback,
        check_finite=given.check_finite and not capturing(),
        backward_weights=reverse,
        leaves=leaves,
        called=Called(field.func, leaves) if train else None,
        stepper=problem.stepper,
        known=weights.past_rows,
        advice=partial(less_memory, problem.history, problem.storage, problem.size, structure.device, keeps),
        keep_slopes=keep_slopes,
        tables=weights.tables,
        order=problem.known.get("order"),
        delays=delays,
    )


def _field(
    func: Callable[..., Any], problem: Problem, times: Tensor, row0: Tensor, trained: list[Tensor], args: Any
) -> tuple[Field, list[Tensor]]:
    """The right-hand side with detached arguments, and the tensors among these; ``func`` is evaluated once."""
    if derivatives_are_watched():  # a transform must see every operation, so nothing may be detached
        refuse_many(tangents_of([row0, *trained, *tensors_in(args), *problem.known.values()]))
        copies = [
            a.clone() for a in tensors_in(args)
        ]  # func may write to their tangents, which then are not the caller's
        field = Field(func, problem.structure, times, replace_tensors(args, copies))
        tangents = tangents_of([*trained, *copies])
        versions = versions_of(tangents)
        first_evaluation(field, row0, None)
        refuse_written(versions, tangents)
        field.args = args
        return field, []
    cut = [a.detach().requires_grad_(a.requires_grad) for a in tensors_in(args)]
    field = Field(func, problem.structure, times, replace_tensors(args, cut))
    owned = list(func.parameters()) if isinstance(func, nn.Module) else []  # if not in params=, then on purpose
    # the operations of func are recorded if its steps may be captured or compiled; not for a function that is made in
    # every solve, whose steps could not be reused, and not inside a CUDA graph of the caller
    wanted = problem.structure.device.type == "cuda" or (problem.stepper is not None and problem.stepper.watches)
    watch = wanted and not getattr(func, "made_anew", False) and not capturing()
    keeps = problem.adjoint.stores_graph
    calls, size = problem.request.grid.steps * max(1, problem.scheme.stages), row0.numel()
    # a function may be a new one in every solve, and would be measured every time
    pays = (size > WORK_NUMBERS or isinstance(func, nn.Module)) and calls >= PICARD_FEWEST[torch.is_grad_enabled()]
    choice = problem.stepper is None and problem.structure.device.type == "cpu" and size <= PICARD_NUMBERS[1]
    measure = choice and pays and not keeps  # otherwise `auto` does not ask how much func computes
    first_evaluation(field, row0, [*trained, *owned, *cut], watch and not keeps, keeps, measure)
    if problem.scheme.implicit and field.impure is not None:
        refuse_state(field, row0)
    return field, cut


def _state(
    plan: Plan, went: Run, problem: Problem, before: State | None, row0: Tensor, at_nodes: Tensor, kernel: Kernel
) -> State:
    """What a later solve needs to continue this one."""
    if before is None:
        grid, initial = problem.request.grid, row0.detach().view(-1, *at_nodes.shape[1:])
        settings = settings_of(plan.scheme, problem.operator, problem.known, problem.history)
        before = State(
            grid.start, grid.step, settings, problem.structure, initial, initial[0], at_nodes.detach()[:0],
            weights_of_past(kernel, 0),
        )  # fmt: skip
    return before.extended(went.slopes, at_nodes.detach()[-1].clone(), kernel)
