"""The public calls: names, defaults and what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .adjoints import Adjoint
from .base.caches import to_device
from .base.checks import named
from .base.grid import Grid
from .base.structure import as_numbers, is_complex
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
    """What ``solve`` returns.

    Attributes:
        ts: the times.
        ys: the states at these times, in the structure of ``z0``, stacked along the first axis.
        stats: what the solve did and what it cost.
        error: the estimated error of every element of ``ys``, with ``estimate_error=``.
        state: what a later solve continues from, as ``past=state``, with ``resume=True``.
        event_times: the times of events, with their gradients, with ``event=``: in the shape that ``event`` returns if
            it ends the solve, otherwise several, stacked along a new first axis; infinite where there was no event.
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
        """The times at which the steps ended, in float64, for use as ``grid=``; None if there were no steps.

        Computed on demand: for very many steps of a small state, storing the times would take much memory.
        """
        if self._grid is None:
            return None
        # the step that ends in a jump may be shorter than what a late time tells apart
        return (self._grid.start + self._grid.elapsed).unique_consecutive()


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
    """Solve ``D z = func(t, z, *args)``, ``z(t_0) = z0``, where ``D`` is Caputo's derivative or a related operator.

    Args:
        func: the right-hand side ``func(t, z, *args)``. ``t`` is a 0-d tensor, ``z`` has the structure of ``z0``.
        z0: the initial state: a tensor of any shape, or a tuple, dict or nesting of tensors, all of one dtype: float32,
            float64, complex64 or complex128.
        t: a number T integrates from 0 and returns z(T). A 1-D increasing tensor returns the states at its times,
            stacked along a new first axis; ``t[0]`` is the initial time. States between grid points come from the
            scheme's own continuous output, all of them in one product. A 2-D tensor (batch, times) gives each sample
            its own times, if ``z0`` is one tensor with the batch along its first axis: rows begin with the same initial
            time and do not decrease. Shorter rows end with NaN, and their last state is repeated. State ``k`` of sample
            ``b`` is ``result[k, b]``. A list of tensors or a nested tensor works too.
        order: β in (0, 2], a number, a tensor that broadcasts to the state (one order per channel, or per sample as
            ``(batch, 1)``), a structure of orders like that of ``z0``, or an operator: ``MultiTerm``,
            ``DistributedOrder``, ``Tempered``, ``VariableOrder``, ``CustomKernel``. Every tensor in it that requires
            grad gets the exact gradient.
        method: ``'predictor'``, ``'abm'``, ``'trapezoid'``, ``'gl'``, ``'l1'``, ``'predictor-implicit'``,
            ``'gl-explicit'``, ``'l1-explicit'``, ``'bdf2'``, ``'flmm-trapezoid'``, ``'imex'``, or a scheme object such
            as ``ABM(corrections=3)``. The default is ``'trapezoid'`` if a tolerance chooses the steps, ``'imex'`` with
            given steps and ``linear=``, and ``'predictor'`` otherwise.
        step: the step size h; it must divide the interval. Without ``step``, ``steps`` and ``grid`` the steps adapt to
            ``rtol`` and ``atol``.
        steps: the number of steps, in place of ``step``.
        adjoint: ``'exact'`` (default), ``'direct'`` or ``'paper'``.
        history: ``'auto'`` (default), ``'full'``, ``'fft'``, ``'exponentials'``, or an object such as ``Window(64)``.
        storage: ``'device'`` (default), ``'host'``, ``'checkpoint'``, ``'auto'`` (by free memory), or an object such as
            ``Host(path='/scratch')``.
        params: tensors used by ``func`` that get gradients; default: its parameters that require grad.
        args: further arguments of ``func``; tensors among them get gradients.
        solver: how implicit stages are solved: ``'auto'`` (default: Newton's method, which exploits the structure of
            the Jacobian), ``'dense'``, ``'banded'``, ``'sparse'``, ``'krylov'``, ``'fixed-point'`` or an object.
        callback: called as ``callback(step, total)`` in both passes, from step 0, where a pass begins, to ``total``.
        check_finite: if the state is not finite, raise ``NonFiniteError``, which names the step; if it has grown
            because explicit steps are too long, issue an ``AccuracyWarning``.
        velocity: ``z'(t_0)`` in the structure of ``z0``, for orders above 1; gets a gradient.
        horizon: a scale of time, a positive number or tensor that broadcasts to the state: each element runs in its
            own time ``horizon · t``. For example, ``t=1.0`` and ``horizon`` of shape (batch, 1) end every sample at its
            own T. ``func`` gets ``horizon · t`` in the shape of ``horizon``. It scales the weights, since
            ``D^β_t = T^{-β} D^β_s``, and gets the exact gradient.
        grading: r in ``t_k = T (k/N)^r``, which concentrates points at the start, where solutions behave like ``t^β``.
            Needs ``steps=``.
        stepper: how steps are taken: ``'auto'`` (default), ``'single'`` (one after the other), ``'picard'`` (many steps
            of a small state at once, ``func`` vectorised over time), ``'recorded'`` (one after the other, by the
            recorded operations of ``func``, on a CPU), ``'cuda-graph'`` (blocks of steps replayed on a GPU),
            ``'kernel'`` (blocks of steps in one Triton kernel compiled from ``func``, on a GPU), or an object. The
            results are the same; ``solve(...).stats`` says which ran and why. All but ``'single'`` require that
            ``func`` is a pure function.
        grid: increasing times at which the steps end, in place of ``step``: a graded or logarithmic mesh, or the
            ``grid`` of an earlier solution. It begins and ends with the times of ``t``. Methods: ``'predictor'``,
            ``'predictor-implicit'``, ``'trapezoid'``, ``'abm'``, and with ``history='full'`` also ``'imex'``, ``'l1'``
            and ``'l1-explicit'``. That history needs all N² weights; ``'exponentials'`` sums the distant past in O(N).
        rtol: the relative tolerance, 1e-4 by default. A first pass without gradients finds a mesh on which errors stay
            at about ``atol + rtol |z|``, and the solve on it has exact gradients, as with ``grid=``. For orders up to 1
            and the methods ``'trapezoid'`` (implicit) or ``ABM(ahead=True)`` (explicit, with steps limited by
            stability); ``'abm'``, ``'predictor-implicit'`` and ``'predictor'`` work but take many steps.
        atol: the absolute tolerance, by default as large as ``rtol``.
        max_steps: raise ``ConvergenceError`` if a tolerance needs more steps.
        jumps: ``(times, values)``: the state jumps at known times (doses, kicks). Values are stacked along a first axis
            in the structure of ``z0``: ``z(t) = z0 + Σ_{t_k ≤ t} Δ_k + I^β f``. Or a function from the state before a
            jump to its value, which takes a solve for each jump. Values get gradients, and with ``'full'`` times too.
            The state at the time of a jump is the one after it. Each jump adds two points to the grid.
        event: a function ``event(t, z, *args)`` that ends the solve where it crosses zero, or an ``Event`` with more
            options. It returns one number, or one per sample of a batch, (batch,); then each sample ends separately and
            its state stays constant. ``solve(...).event_times`` and all states have exact gradients.
        past: ``(times, states)``, an observed window to continue from: increasing times up to the initial one, states
            stacked along a first axis in the structure of ``z0``, which is the last of them, or None. The state is
            linear between samples and constant before the window, and enters exactly, as a known sum; states get
            gradients. For orders up to 1; the weights take one number for each sample and step. Or the ``state`` of a
            solution (``solve(..., resume=True)``): the trajectory is then that of one long solve, with any order and
            the same step. ``t`` is the new end, ``z0`` is None or a state of the same structure, and what came before
            is detached, as in truncated backpropagation.
        lags: delays τ, a positive number or tensor, or several of them: ``func(t, z, lagged, *args)`` then gets
            ``z(t - τ)``, or a tuple of states for several lags, linear between steps. Before the initial time the state
            is that of ``past``, or ``z0``. Tensors get exact gradients. No step may be longer than a lag. The graph of
            every step is kept, and the past is summed in full, O(N²).
        linear: ``A`` in ``D z = A z + func(t, z)``: a matrix that acts on the last axis of the state (or a batch of
            matrices, one per sample), a sparse tensor, an object of ``neuralfde.linear`` or one with ``matvec(z)``,
            ``solve(w0, r)`` and ``solve_transposed(w0, r)`` for ``I - w0 A``, or a function without arguments that
            returns one of these. Its tensors get gradients. ``method='imex'`` (the default with given steps; order 2,
            for a rough start with ``grading=2``) is implicit in ``A`` and explicit in ``func``; other methods solve for
            the sum of both. ``func`` may then be None or a tensor, a constant source; without steps, method and
            tolerance the solution is the Mittag-Leffler function of ``A``, to rounding.

    Returns:
        z(T) in the structure of ``z0``, or the states at the times of ``t`` stacked along a new first axis.
    """
    given = Options(
        method, step, steps, adjoint, history, storage, params, args, solver, callback, check_finite, velocity,
        horizon, grading, stepper, grid, rtol, atol, max_steps, jumps, event, past, lags, linear,
    )  # fmt: skip
    z0, t = asked(z0, t, past)
    if linear is not None and needs_no_steps(func, given) and not is_complex(z0):
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

    If ``t`` is a number, the first axis of the states has length 1.

    Args:
        estimate_error: True solves again with steps of twice the length; ``|z_h - z_2h| / (2^p - 1)`` estimates the
            error of each element, where p is the order of the method for a solution that is not smooth. This takes 50 %
            more work. ``'embedded'`` compares the sum of each step with the same sum over every other slope: it takes
            one more evaluation, memory for N more states, and O(N log N) work. It measures what each step adds, but not
            how errors grow afterwards. Both need an even number of steps.
        resume: True keeps what a later solve needs to continue (N states); pass it as ``past=found.state``.
    """
    given = options_of("solve", options, ("estimate_error", "resume"))
    if not isinstance(resume, bool):
        raise InputTypeError("resume must be True or False; to continue, pass the .state of a solution as past=.")
    z0, t = asked(z0, t, given.past)
    if given.linear is not None and needs_no_steps(func, given) and not (resume or is_complex(z0)):
        instants, exact = solved_exactly(func, z0, t, order, given, bool(estimate_error))  # type: ignore[arg-type]
        some = slice(-1, None) if isinstance(t, int | float) or t.ndim == 0 else slice(None)
        off = None if exact.error is None else exact.error[some]
        return Solution(
            torch.tensor(instants, dtype=torch.float64).to(z0)[some], exact.states[some], stats_of(exact), off
        )
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
            "estimate_error= needs given steps (rtol= and atol= control the error) and no jumps=; neither it nor "
            "resume= works with event= or past=, unless past= is a solve to continue."
        )
    solved = (follow if given.eventful else run)(func, z0, t, order, given, resume, pair == "embedded")
    wanted, structure = solved.problem.request, solved.problem.structure
    ys, error, stats = solved.ys, solved.error, solved.stats
    times = wanted.grid.start + wanted.grid.at(wanted.all_positions)
    ts = to_device(times, torch.empty(0, dtype=structure.dtype, device=structure.device)).clone()
    if wanted.terminal:
        ys = structure.unpack(structure.pack(ys)[None])
    if pair is True:
        refuse_estimate(solved.problem)
        longer = {"steps": wanted.grid.steps // 2} if given.grid is None else {"grid": given.grid[::2]}
        with torch.no_grad():
            half = run(func, z0, t, order, given._replace(step=None, **longer)).ys
        half = structure.unpack(structure.pack(half)[None]) if wanted.terminal else half
        error = difference(ys, half, gain(stats.method, order))
    return Solution(ts, ys, stats, error, solved.state, solved.event_times, wanted.grid)


def asked(z0: Any, t: Any, past: Any) -> tuple[Any, Any]:
    """The initial state, which an observed past may hold, and the times, those of samples in rows."""
    if z0 is None and past is None:
        raise InputTypeError(
            "z0 is None and must be the initial state. It may be left out with past= alone: an observed window, or the "
            ".state of solve(..., resume=True), which is None without resume=True."
        )
    z0 = as_numbers(z0)
    start = z0 if past is None else as_numbers(initial_state(z0, past))
    return start, t if isinstance(t, float) else in_rows(t)


def options_of(name: str, options: dict[str, Any], more: Collection[str] = ()) -> Options:
    """The options of a call with the defaults of ``fdeint``; ``more``: what this call takes besides."""
    known = fdeint.__kwdefaults__ or {}
    refuse(f"{name}()", options, {*known, *more})
    return Options(**{**known, **options})
