"""The arguments of a solve, read and checked: the one place where a bad call is refused before anything is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..adjoints import Adjoint, Direct, Exact, Paper
from ..base.checks import function, named
from ..base.grid import Grid, Mesh, Request, request
from ..base.policy import SMALL_NUMBERS, SMALL_STATE
from ..base.structure import Structure, grouped, tensors_in
from ..base.torch_private import derivatives_are_watched, is_constant, places, value_of, with_parameters
from ..errors import InputError, InputTypeError, UnsupportedError
from ..history import Exponentials, Full, History
from ..orders import Operator, read_order
from ..rhs.first import refuse_computed
from ..schemes import Scheme, StageSolver
from ..solve.delays import lags_of
from ..solve.steppers import Single, Stepper
from ..storage import Device, Storage
from ..time import Jumps, read_jumps, with_jumps
from ..weights.fading import Rates
from .cost import Size, decided
from .meshes import on_mesh, refuse_history, refuse_jumps, why_not_fading
from .migration import refuse_method
from .names import ADJOINTS, HISTORIES, METHODS, SOLVERS, STEPPERS, STORAGES
from .observed import Observed, read_past, refuse_past
from .paper import refuse_paper
from .resume import State

_DEVICE = Device()


class Options(NamedTuple):
    """The keyword arguments of ``fdeint``, as given."""

    method: str | Scheme | None
    step: float | None
    steps: int | None
    adjoint: str | Adjoint
    history: str | History
    storage: str | Storage
    params: Iterable[Tensor] | None
    args: tuple[Any, ...]
    solver: str | StageSolver | None
    callback: Callable[[int, int], None] | None
    check_finite: bool
    velocity: Any
    horizon: Any
    grading: float
    stepper: str | Stepper
    grid: Tensor | Sequence[float] | Grid | None
    rtol: float | None
    atol: float | None
    max_steps: int
    jumps: Any
    event: Any
    past: Any
    lags: Any
    linear: Any = None

    @property
    def adaptive(self) -> bool:
        """Whether a tolerance chooses the steps."""
        return self.step is None and self.steps is None and self.grid is None and self.before is None

    @property
    def before(self) -> State | None:
        """The solve to be resumed, if ``past=`` is one."""
        return self.past if isinstance(self.past, State) else None

    @property
    def eventful(self) -> bool:
        """Whether the course of the solve depends on the state: by an event, or by jumps that are a function of it."""
        on_state = isinstance(self.jumps, tuple | list) and len(self.jumps) == 2 and callable(self.jumps[1])
        return on_state or self.event is not None


@dataclass(frozen=True)
class Problem:
    """A solve as it was read; ``known`` are the numbers of its operator and its horizon by name, each (groups,)."""

    structure: Structure
    request: Request
    scheme: Scheme
    adjoint: Adjoint
    operator: Operator
    known: dict[str, Tensor]
    history: History
    storage: Storage
    why: str
    size: Size
    stepper: Stepper | None
    rates: Rates | None = None
    jumps: Jumps | None = None
    observed: Observed | None = None

    def mesh(self, velocity: bool, grid: Grid) -> Mesh:
        """The grid as the weights see it, in the time of each group."""
        horizon = self.known.get("horizon")
        if horizon is None:
            horizon = torch.ones(self.structure.groups, dtype=torch.float64)
        elif not bool((torch.isfinite(value_of(horizon)) & (value_of(horizon) > 0)).all()):
            raise InputError(f"horizon={float(value_of(horizon).min()):g} must be positive and finite.")
        elapsed = grid.elapsed if grid.moving is None else grid.moving
        return Mesh(grid.steps, elapsed, grid.start, grid.uniform, horizon, velocity, self.rates)


def read(structure: Structure, t: float | Tensor, order: Any, given: Options, train: bool) -> Problem:
    """The problem, or an error that says what to change; ``train``: whether rows are kept for a backward pass."""
    before, scheme = given.before, read_scheme(given.method, given.solver)
    read_callback(given.callback)
    if not isinstance(given.check_finite, bool):
        raise InputTypeError(f"check_finite must be True or False, got {type(given.check_finite).__name__}.")
    if given.rtol is not None or given.atol is not None:
        raise InputError(
            "rtol= and atol= choose the steps: leave step=, steps=, grid= and a resumed solve out, or the tolerances."
        )
    if before is None:
        wanted = request(t, given.step, given.steps, given.grading, given.grid)
    elif given.grid is not None or given.grading != 1:
        raise InputError("a resumed solve continues with steps of one length; leave grid= and grading= out.")
    else:
        wanted = before.request(t, given.step, given.steps)
    how = named("adjoint", given.adjoint, ADJOINTS, (Exact, Direct, Paper))
    operator = read_order(order)
    structure, known = read_numbers(structure, operator, given.horizon)
    jumps = None
    if given.jumps is not None:
        refuse_jumps(scheme, operator, before)
        jumps = read_jumps(given.jumps, structure, t)
        wanted = with_jumps(wanted, jumps, t, () if given.lags is None else lags_of(given.lags)[0])
    known_past = None
    if given.past is not None and before is None:
        refuse_past(operator, known, given.velocity is not None, read_history(given.history))
        known_past = read_past(given.past, structure, t)
    row_bytes, double = structure.numel * structure.dtype.itemsize, structure.dtype == torch.float64
    size = Size(wanted.grid.steps, row_bytes, scheme.sums, train, double)
    toeplitz = operator.toeplitz and wanted.grid.uniform
    against = None if toeplitz else why_not_fading(operator, known, scheme)
    if wanted.grid.moving is not None:
        against = "times of jumps, or lags, that require grad need all weights"
    past, kept = read_history(given.history), named("storage", given.storage, STORAGES, Storage)
    if past is None and kept == _DEVICE and toeplitz and is_small(structure, size.steps):
        past, why = Full(), f"exact sums of a small past, {size.steps * structure.numel} numbers; storage as given"
    else:
        fades = against is None and given.lags is None
        past, kept, why = decided(past, kept, size, structure.device, isinstance(how, Direct), toeplitz, fades)
    if not toeplitz:
        refuse_history(past, operator, wanted, against)
    rates = None
    if not toeplitz and isinstance(past, Exponentials):
        past, rates = on_mesh(past, scheme, wanted, all(map(is_constant, known.values())))
    if isinstance(how, Paper):
        refuse_paper(operator, known, wanted, more=not (given.velocity is given.horizon is given.past is None))
    stepper = read_stepper(given.stepper, how)
    return Problem(
        structure, wanted, scheme, how, operator, known, past, kept, why, size, stepper, rates, jumps, known_past
    )


def is_small(structure: Structure, steps: int) -> bool:
    """Whether a solve is so small that its history is kept in full without checking the free memory.

    So is one that is exported for batches of any size, which has no number of elements yet.
    """
    if isinstance(structure.numel, torch.SymInt):
        return True
    return steps * max(SMALL_STATE, structure.numel) <= SMALL_NUMBERS


def read_numbers(structure: Structure, operator: Operator, horizon: Any) -> tuple[Structure, dict[str, Tensor]]:
    """The numbers of the operator and the horizon by name, each (groups,), and the structure with these groups."""
    numbers = {**operator.numbers(), **({} if horizon is None else {"horizon": horizon})}
    structure = grouped(structure, numbers)
    return structure, {name: structure.spread(name, x) for name, x in numbers.items()}


def read_scheme(method: str | Scheme | None, solver: str | StageSolver | None, default: str = "predictor") -> Scheme:
    """The scheme, with another stage solver if one is given."""
    method = default if method is None else method
    if isinstance(method, str) and method not in METHODS:
        refuse_method(method, METHODS)
    scheme = named("method", method, METHODS, Scheme)
    if solver is None:
        return scheme
    if not scheme.implicit:
        raise InputError(
            f"solver={solver!r} is for implicit methods, but {type(scheme).__name__} is explicit. "
            "Drop solver=, or use an implicit method ('trapezoid', 'gl', 'l1', 'predictor-implicit')."
        )
    found = named("solver", solver, SOLVERS, StageSolver)
    if "solver" not in {f.name for f in fields(scheme)} if is_dataclass(scheme) else True:
        raise InputError(f"{type(scheme).__name__} has no field 'solver' and solves its stages itself. Drop solver=.")
    return replace(scheme, solver=found)  # type: ignore[type-var, call-arg]


def read_callback(callback: Any) -> None:
    """Raise unless the callback is None or can be called."""
    if callback is not None:
        function("callback", callback, "callback(step, total)")


def check_names(options: Mapping[str, Any]) -> None:
    """Raise if an option of a block is neither a known name nor an object of the right kind."""
    read_callback(options["callback"])
    read_scheme(options["method"], options["solver"])
    read_history(options["history"])
    named("storage", options["storage"], STORAGES, Storage)
    read_stepper(options["stepper"], named("adjoint", options["adjoint"], ADJOINTS, (Exact, Direct, Paper)))


def read_history(history: str | History) -> History | None:
    """The history; None for ``auto``."""
    if history == "window":
        raise InputError("history='window' needs a length: pass history=Window(64) for the last 64 steps.")
    found = named("history", history, HISTORIES, History)
    # a history taken from an earlier solve still has the mesh of that solve
    return replace(found, mesh=None, terms=None) if isinstance(found, Exponentials) and found.mesh else found


def read_stepper(stepper: str | Stepper, how: Adjoint) -> Stepper | None:
    """The stepper; None for ``auto``."""
    found = named("stepper", stepper, STEPPERS, Stepper)
    if isinstance(how, Direct) and found not in (None, Single()):
        raise InputError(
            f"stepper={stepper!r} does not keep the graph of each step, as adjoint='direct' has it. "
            "Use adjoint='exact', or stepper='single'."
        )
    return found


def refuse_surroundings(func: Callable[..., Any]) -> None:
    """Raise if a solve cannot work in its surroundings: in ``torch.jit``, in a replica, or with a sharded ``func``."""
    if func is None or isinstance(func, Tensor):
        given = "missing" if func is None else "a tensor"
        raise InputError(
            f"func is {given}. Pass func(t, z, *args); None and a constant tensor need linear=. (Arguments stand as "
            "func, z0, t, order.)"
        )
    function("func", func, "func(t, z, *args)")
    if torch.jit.is_tracing():
        raise UnsupportedError("torch.jit is not supported: use torch.export, which takes solves with given steps.")
    if getattr(func, "_is_replica", False):
        raise UnsupportedError(
            "nn.DataParallel gives each device a replica whose tensors are not parameters and would get no gradient. "
            "Use torch.nn.parallel.DistributedDataParallel, with one process per device."
        )
    if any(kind.__name__ == "FSDPModule" for kind in type(func).__mro__):
        raise UnsupportedError(
            "fully_shard was applied to func itself, which would gather its parameters again at every evaluation. "
            "Apply it to the FDEBlock, or to the module that calls fdeint: they are then gathered once per pass."
        )


def read_params(func: Callable[..., Any], params: Iterable[Tensor] | None) -> list[Tensor]:
    """The tensors that get gradients: those given, or the parameters of ``func``."""
    if params is None:
        params = func.parameters() if isinstance(func, nn.Module) else ()
    else:
        params = given_params(params)
        if not derivatives_are_watched():
            refuse_computed(params)
    return list({id(p): p for p in params if p.requires_grad}.values())


def parameters_apart(func: Any, params: Iterable[Tensor] | None) -> contextlib.AbstractContextManager[Any]:
    """Context in which the parameters of ``func`` are views of themselves if one may be computed from another.

    ``torch.func.functional_call`` brings such parameters, for example from the inner steps of meta-learning. The
    gradient of the one must not include what flows through the other; a view is computed from no other view.
    """
    if not isinstance(func, nn.Module) or params is not None or not torch.is_grad_enabled():
        return contextlib.nullcontext()
    owned = {id(x): x for x in func.parameters() if x.requires_grad}
    if len(owned) < 2 or all(x.is_leaf for x in owned.values()) or derivatives_are_watched():
        return contextlib.nullcontext()
    views = {at: x.view_as(x) for at, x in owned.items()}
    return with_parameters(func, {name: views[id(x)] for name, x in places(func).items() if id(x) in views})  # type: ignore[no-any-return]


def given_params(params: Any) -> list[Tensor]:
    """The tensors of ``params=`` as a list, since a generator can be read only once."""
    single = isinstance(params, Tensor) or not isinstance(params, Iterable)
    found = [params] if single else list(params)
    for p in found:
        if single or not isinstance(p, Tensor):
            raise InputTypeError(
                f"params must be a collection of tensors, got {type(p).__name__}. Pass module.parameters(), or "
                "params=[tensor] for one."
            )
    return found


def read_args(args: Any, structure: Structure) -> tuple[Any, ...]:
    """The further arguments of ``func``, checked."""
    if not isinstance(args, tuple | list):
        raise InputTypeError(f"args must be a tuple, passed on to func, got {type(args).__name__}; use args=(value,).")
    for a in tensors_in(args):
        if a.device != structure.device and a.ndim > 0:
            raise InputTypeError(
                f"args contains a tensor on {a.device}, the state is on {structure.device}; move it there first."
            )
    return tuple(args)
