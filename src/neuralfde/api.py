"""The public calls: names, defaults and what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .adjoints import Adjoint
from .base.caches import to_device
from .base.checks import named
from .base.grid import Grid
from .base.structure import is_complex
from .base.torch_private import compiler_is_watching, pytree, without_compiler
from .course import follow, needs_no_steps, solved_exactly, stats_of
from .door.complex_numbers import again_complex, in_real_numbers
from .door.estimates import difference, gain, refuse_estimate
from .door.migration import refuse, refuse_call
from .door.observed import initial_state
from .door.output import in_rows
from .door.resume import State
from .door.stats import Stats
from .door.validation import Options
from .errors import InputError, InputTypeError
from .history import History
from .orders import Operator
from .schemes import Scheme, StageSolver
from .solve.steppers import Stepper
from .solver import run
from .storage import Storage
from .time import Event

_P = ParamSpec("_P")
_R = TypeVar("_R")


def explained(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """``call`` with help where its arguments do not fit, outside of any graph that ``torch.compile`` is building."""

    def attempt(*args: _P.args, **given: _P.kwargs) -> _R:
        try:
            return call(*args, **given)
        except TypeError:
            refuse_call(call, len(args), given)
            raise

    alone = without_compiler(attempt)

    # solve and FDEBlock read the defaults from the function
    @functools.wraps(call, (*functools.WRAPPER_ASSIGNMENTS, "__kwdefaults__"))
    def checked(*args: _P.args, **given: _P.kwargs) -> _R:
        return (alone if compiler_is_watching() else attempt)(*args, **given)

    return checked


@dataclass(frozen=True)
class Solution:
    """Times, states in the structure of ``z0`` stacked along the first axis, and the cost.

    ``error`` is the estimated error of every number of ``ys``, where ``estimate_error=`` asked for it.
    ``state``, where ``resume=True`` asked for it, is what a later solve goes on from, as ``past=state``.
    ``event_times``, with ``event=``, are the times at which it happened, with their gradients: of the shape that
    ``event`` returns where it ends the solve, several stacked first where not, infinite where it did not happen.
    """

    ts: Tensor
    ys: Any
    stats: Stats
    error: Any = None
    state: State | None = None
    event_times: Tensor | None = None
    _grid: Grid | None = field(default=None, repr=False)

    @property
    def grid(self) -> Tensor | None:
        """The times at which the steps ended, float64; a later solve takes them as ``grid=``. None: there were none.

        Made when it is asked for: beside a solve of very many small steps, one more number a step is a lot.
        """
        return None if self._grid is None else self._grid.start + self._grid.elapsed


@explained
def fdeint(
    func: Callable[..., Any] | Tensor | None,
    z0: Any,
    t: float | Tensor,
    order: float | Tensor | Operator | Any,
    *,
    method: str | Scheme | None = None,
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
    velocity: Any = None,
    horizon: float | Tensor | Any = None,
    grading: float = 1.0,
    stepper: str | Stepper = "auto",
    grid: Tensor | Sequence[float] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 100_000,
    jumps: tuple[Any, Any] | None = None,
    event: Event | Callable[..., Any] | None = None,
    past: tuple[Any, Any] | State | None = None,
    lags: float | Tensor | Sequence[float | Tensor] | None = None,
    linear: Any = None,
) -> Any:
    """Solve ``D z = func(t, z, *args)``, ``z(t_0) = z0``; ``D`` is Caputo's derivative of order β or a relative of it.

    Args:
        func: the right-hand side ``func(t, z, *args)``; ``t`` is a 0-d tensor, ``z`` has the structure of ``z0``.
        z0: the initial state: a tensor of any shape, or a tuple, dict or nesting of tensors, of one dtype: float32,
            float64, complex64 or complex128.
        t: a number T integrates from 0 and returns z(T); a 1-D increasing tensor returns the states at its times,
            stacked first, with ``t[0]`` the initial time. Times between grid points come from the scheme's own
            continuous output, all of them in one product. A 2-D tensor (batch, times) has the times of each sample,
            for one tensor ``z0`` with the batch along its first axis: rows begin with the one initial time, do not
            decrease, and NaN fills those of shorter series, whose last state is then repeated; state ``k`` of sample
            ``b`` is ``result[k, b]``. A list of tensors or a nested tensor is the same.
        order: β in (0, 2], a number, a tensor that broadcasts to the state (one order per channel, or per sample as
            ``(batch, 1)``), a structure of them like that of ``z0``, or an operator: ``MultiTerm``,
            ``DistributedOrder``, ``Tempered``, ``VariableOrder``, ``CustomKernel``. Every tensor in it that requires
            grad gets the exact gradient.
        method: ``'predictor'``, ``'abm'``, ``'trapezoid'``, ``'gl'``, ``'l1'``, ``'predictor-implicit'``,
            ``'gl-explicit'``, ``'l1-explicit'``, ``'bdf2'``, ``'flmm-trapezoid'``, or a scheme object such as
            ``ABM(corrections=3)``. The default is ``'trapezoid'`` where a tolerance chooses the steps, ``'predictor'``
            else.
        step: the step h; it must divide the interval. Without ``step``, ``steps`` and ``grid`` the steps follow from
            ``rtol`` and ``atol``.
        steps: the number of steps, in place of ``step``.
        adjoint: ``'exact'`` (default), ``'direct'`` or ``'paper'``.
        history: ``'auto'`` (default), ``'full'``, ``'fft'``, ``'exponentials'``, or an object such as ``Window(64)``.
        storage: ``'device'`` (default), ``'host'``, ``'checkpoint'``, ``'auto'`` (by free memory), or an object such as
            ``Host(path='/scratch')``.
        params: tensors ``func`` uses that get gradients; default: its parameters that require grad.
        args: passed on to ``func``; tensors among them get gradients.
        solver: how implicit stages are solved: ``'auto'`` (default: Newton's method with the structure that the
            Jacobian has), ``'dense'``, ``'banded'``, ``'sparse'``, ``'krylov'``, ``'fixed-point'`` or an object.
        callback: called as ``callback(step, total)`` in both passes.
        check_finite: raise ``NonFiniteError`` naming the step where the state stopped being finite.
        velocity: ``z'(t_0)`` in the structure of ``z0``, for orders above 1; gets a gradient.
        horizon: a factor of time, a positive number or tensor that broadcasts to the state: each element runs in its
            own time ``horizon · t``, so that ``t=1.0`` with ``horizon`` of shape (batch, 1) ends every sample at its
            own T. ``func`` gets ``horizon · t`` in the shape of ``horizon``. As ``D^β_t = T^{-β} D^β_s``, it scales
            the weights; it gets the exact gradient.
        grading: r in ``t_k = T (k/N)^r``: points gather at the start, where solutions behave like ``t^β``. Takes
            ``steps=``.
        stepper: how steps are taken: ``'auto'`` (default), ``'single'`` (one after the other), ``'picard'`` (many steps
            of a small state at once, ``func`` vectorised over time), ``'cuda-graph'`` (blocks of steps replayed on a
            GPU), ``'kernel'`` (blocks of steps in one Triton kernel made from ``func``, on a GPU), or an object. The
            numbers are the same; ``solve(...).stats`` says which ran and why. All but ``'single'`` rely on ``func``
            being a function of its arguments.
        grid: increasing times at which the steps end, in place of ``step``: a graded or logarithmic mesh, or the
            ``grid`` of an earlier solution. It begins and ends with the times of ``t``. Methods: ``'predictor'``,
            ``'predictor-implicit'``, ``'trapezoid'``, ``'abm'``, and ``'l1'`` with ``history='full'``. That history has
            all N² weights; ``'exponentials'`` sums the far past in O(N) work.
        rtol: the tolerance, 1e-4 by default: a march without gradients finds a mesh on which errors stay at about
            ``atol + rtol |z|``, and the solve is done on it with exact gradients, as with ``grid=``. For orders up to 1
            and ``'trapezoid'`` (implicit) or ``ABM(ahead=True)`` (explicit, its steps bounded by stability); also
            ``'abm'``, ``'predictor-implicit'`` and ``'predictor'``, which take many steps.
        atol: the absolute part of it, by default as large as ``rtol``.
        max_steps: where to give up, with ``ConvergenceError``.
        jumps: ``(times, values)``, by which the state jumps at known times (doses, kicks), values stacked along a first
            axis in the structure of ``z0``: ``z(t) = z0 + Σ_{t_k ≤ t} Δ_k + I^β f``; or a function from the state
            before a jump to its value, which takes a solve for each. Values get gradients, times with ``'full'`` too.
            The state at a jump is the one after it. Each jump adds two points to the grid.
        event: a function ``event(t, z, *args)`` that ends the solve where it crosses zero, or an ``Event`` that says
            more. It returns one number, or one for each sample of a batch, (batch,), each of which then ends by
            itself: its state stays what it was. ``solve(...).event_times`` have exact gradients, like all states.
        past: ``(times, states)``, an observed window to go on from in place of a point: times increasing up to the
            initial one, states stacked first in the structure of ``z0``, which is the last of them, or None. Linear
            between samples and constant before, it enters as a known sum, exactly; states get gradients. For orders
            up to 1. Weights take a number for each sample and step. Or the ``state`` of a solution that kept it
            (``solve(..., resume=True)``): the trajectory is then that of one long solve, with any order and the same
            step; ``t`` is the new end, ``z0`` None or a state that looks the same, and what came before is cut off
            from gradients, as truncated training wants it.
        lags: delays τ, a positive number or tensor, or several of them: ``func(t, z, lagged, *args)`` then gets
            ``z(t - τ)``, a tuple of states for several, linear between steps; before the initial time it is that of
            ``past``, or ``z0``. Tensors get exact gradients. No step may be longer than a lag. The graph of every step
            is kept, and the past is summed in full: O(N²).
        linear: ``A`` in ``D z = A z + func(t, z)``: a matrix that acts on the last axis of the state (a batch of them
            for samples of their own), a sparse tensor, an object of ``neuralfde.linear`` or one with ``matvec(z)``,
            ``solve(w0, r)`` and ``solve_transposed(w0, r)`` for ``I - w0 A``, or a function without arguments that
            returns one. Its tensors get gradients. It is part of the equation, and ``method=`` says how it is solved:
            ``'imex'`` (the default with it; order 2, for a rough start with ``grading=2``) is implicit in ``A`` and
            explicit in ``func``, other methods take the sum of both. ``func`` may then be None or a tensor, a constant
            source; without steps, method and tolerance the solution is the Mittag-Leffler function of ``A``, to
            rounding.

    Returns:
        z(T) in the structure of ``z0``, or the states at the times of ``t`` stacked along a new first axis.
    """
    given = Options(
        method, step, steps, adjoint, history, storage, params, args, solver, callback, check_finite, velocity,
        horizon, grading, stepper, grid, rtol, atol, max_steps, jumps, event, past, lags, linear,
    )  # fmt: skip
    z0, t = asked(z0, t, past)
    if linear is not None and needs_no_steps(func, given):
        _, found = solved_exactly(func, z0, t, order, given, False)  # type: ignore[arg-type]
        return found.states[-1] if isinstance(t, int | float) or t.ndim == 0 else found.states
    way = follow if given.eventful else run
    if not is_complex(z0):
        return way(func, z0, t, order, given).ys
    func, z0, order, given = in_real_numbers(func, z0, order, given)  # type: ignore[arg-type]
    return again_complex(way(func, z0, t, order, given).ys)


@explained
def solve(
    func: Callable[..., Any] | Tensor | None,
    z0: Any,
    t: float | Tensor,
    order: Any,
    *,
    estimate_error: bool | str = False,
    resume: bool = False,
    **options: Any,
) -> Solution:
    """``fdeint`` with the same arguments, returning a ``Solution`` with times, states and statistics.

    For a number T the states have one time along the first axis.

    Args:
        estimate_error: True solves again with steps of twice the length; ``|z_h - z_2h| / (2^p - 1)`` estimates the
            error of each number, p being the order of the method for a solution that is not smooth. It takes half as
            much work again. ``'embedded'`` compares the sum of each step with that of every other slope: no further
            evaluation but one, N rows more memory, O(N log N). It sees what each step adds, and not how errors grow
            from there on. Both take an even number of steps.
        resume: True keeps what a later solve needs to go on (N rows), which gets it as ``past=found.state``.
    """
    given = options_of("solve", options)
    if not isinstance(resume, bool):
        raise InputTypeError("resume must be True or False; a solve goes on from the .state of a solution as past=.")
    z0, t = asked(z0, t, given.past)
    if given.linear is not None and needs_no_steps(func, given) and not resume:
        instants, exact = solved_exactly(func, z0, t, order, given, bool(estimate_error))  # type: ignore[arg-type]
        some = slice(-1, None) if isinstance(t, int | float) or t.ndim == 0 else slice(None)
        off = None if exact.error is None else exact.error[some]
        return Solution(torch.tensor(instants).to(z0)[some], exact.states[some], stats_of(exact), off)
    if is_complex(z0):
        func, z0, order, given = in_real_numbers(func, z0, order, given)  # type: ignore[arg-type]
        found = solve(func, z0, t, order, estimate_error=estimate_error, resume=resume, **given._asdict())
        off = None if found.error is None else pytree.tree_map(torch.abs, again_complex(found.error))
        state = None if found.state is None else replace(found.state, pairs=True)
        return replace(found, ys=again_complex(found.ys), error=off, state=state)
    pair = named("estimate_error", estimate_error, {"embedded": "embedded"}, bool)
    whole = given.event is given.past is None
    if (pair and (given.adaptive or given.jumps is not None or not whole)) or (resume and not (whole or given.before)):
        raise InputError(
            "estimate_error= is for steps that are given (rtol= and atol= hold the error), without jumps=; neither it "
            "nor resume= goes with event= or past=, unless past= is a solve that goes on."
        )
    solved = (follow if given.eventful else run)(func, z0, t, order, given, resume, pair == "embedded")
    wanted, structure = solved.problem.request, solved.problem.structure
    ys, error, stats = solved.ys, solved.error, solved.stats
    times = wanted.grid.start + wanted.grid.at(wanted.all_positions)
    ts = to_device(times, torch.empty(0, dtype=structure.dtype, device=structure.device)).clone()
    if wanted.terminal:
        ys = structure.unpack(structure.pack(ys)[None])
    if pair is True:
        refuse_estimate(wanted.grid.steps)
        longer = {"steps": wanted.grid.steps // 2} if given.grid is None else {"grid": given.grid[::2]}
        with torch.no_grad():
            half = run(func, z0, t, order, given._replace(step=None, **longer)).ys
        half = structure.unpack(structure.pack(half)[None]) if wanted.terminal else half
        error = difference(ys, half, gain(stats.method, order))
    return Solution(ts, ys, stats, error, solved.state, solved.event_times, wanted.grid)


def asked(z0: Any, t: Any, past: Any) -> tuple[Any, Any]:
    """The initial state, which an observed past may hold, and the times, those of samples in rows."""
    return z0 if past is None else initial_state(z0, past), t if isinstance(t, float) else in_rows(t)


def options_of(name: str, options: dict[str, Any]) -> Options:
    """The options of a call with the defaults of ``fdeint``."""
    known = fdeint.__kwdefaults__ or {}
    refuse(f"{name}()", options, known)
    return Options(**{**known, **options})
