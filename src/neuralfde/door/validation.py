"""What was asked for, read and checked: the only place where a bad solve is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..adjoints import Adjoint, Direct, Exact, Paper
from ..base.checks import function
from ..base.grid import Grid, Mesh, Request, request
from ..base.policy import MESH_STEPS
from ..base.structure import Structure, grouped, structure_of, tensors_in
from ..base.torch_private import is_constant, pytree, value_of
from ..errors import InputError, InputTypeError, UnsupportedError, nearest
from ..history import Exponentials, FadingMesh, Full, History
from ..orders import Caputo, Operator, read_order
from ..schemes import Scheme, StageSolver
from ..solve.delays import lags_of
from ..solve.steppers import Single, Stepper
from ..storage import Device, Host, Storage
from ..time import Jumps, read_jumps, with_jumps
from ..weights.fading import Rates, newest
from .cost import Size, choose, exponentials_for
from .names import ADJOINTS, HISTORIES, METHODS, ORDINARY, SOLVERS, STEPPERS, STORAGES, TORCHFDE
from .observed import Observed, read_past, refuse_past
from .resume import State

_T = TypeVar("_T")
_DEVICE, _HOST = Device(), Host()


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
        """The solve that this one goes on with, if that is its past."""
        return self.past if isinstance(self.past, State) else None

    @property
    def eventful(self) -> bool:
        """Whether the course depends on the state: an event, or jumps by a function of the state before."""
        on_state = isinstance(self.jumps, tuple | list) and len(self.jumps) == 2 and callable(self.jumps[1])
        return on_state or self.event is not None


@dataclass(frozen=True)
class Problem:
    """Where and how a solve runs; ``known`` are the numbers of its operator by name, one for each group."""

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
    rates: Rates | None = None
    jumps: Jumps | None = None
    observed: Observed | None = None

    def mesh(self, velocity: bool, grid: Grid) -> Mesh:
        """The grid in the time of each group."""
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
    if given.rtol is not None or given.atol is not None:
        raise InputError(
            "rtol= and atol= choose the steps: leave step=, steps=, grid= and a solve as past= out, or the tolerances."
        )
    if before is None:
        wanted = request(t, given.step, given.steps, given.grading, given.grid)
    elif given.grid is not None or given.grading != 1:
        raise InputError("a resumed solve goes on with steps of one length; leave grid= and grading= out.")
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
        against = "jumps at times, or behind lags, that require grad need all weights"
    past, kept, why = _memory(given, size, structure, how, toeplitz, against is None)
    if not toeplitz:
        _refuse_history(past, operator, wanted, against)
    rates = None
    if not toeplitz and isinstance(past, Exponentials):
        past, rates = _on_mesh(past, scheme, wanted, all(map(is_constant, known.values())))
    beta = torch.cat([*known.values(), torch.zeros(0, dtype=torch.float64)])
    refuse_combinations(how, past, kept, beta, wanted, scheme)
    _refuse_paper(how, operator, given, wanted)
    return Problem(structure, wanted, scheme, how, operator, known, past, kept, why, size, rates, jumps, known_past)


def read_numbers(structure: Structure, operator: Operator, horizon: Any) -> tuple[Structure, dict[str, Tensor]]:
    """The numbers of the operator and the horizon by name, one for each group, and the structure with these groups."""
    numbers = {**operator.numbers(), **({} if horizon is None else {"horizon": horizon})}
    structure = grouped(structure, numbers)
    return structure, {name: structure.spread(name, x) for name, x in numbers.items()}


def _memory(
    given: Options,
    size: Size,
    structure: Structure,
    how: Adjoint,
    toeplitz: bool,
    fades: bool,
) -> tuple[History, Storage, str]:
    """History and storage as given or as chosen, and why.

    Without Toeplitz weights every row and weight is needed, unless the far past ``fades`` as exponentials.
    """
    past, kept = read_history(given.history), named("storage", given.storage, STORAGES, Storage)
    if isinstance(how, Direct):  # which keeps graphs in place of rows
        kept, size = kept or STORAGES["device"], replace(size, train=False)
    left = past is None
    if not toeplitz and past is None:
        long = size.steps >= MESH_STEPS or (kept is not None and kept.recomputes)
        past = exponentials_for(size) if fades and long and given.lags is None else Full()
    if isinstance(past, Full) and past.keeps_slopes and kept in ((_HOST, _DEVICE) if past.host else (_HOST,)):
        past, kept = replace(past, host=True), _HOST
    past, kept, why = choose(past, kept, size, structure.device)
    if left and not toeplitz:
        why = why.replace("history as given", f"{size.steps} steps whose weights depend on more than the lag")
    return past, kept, why


def refuse_surroundings(func: Callable[..., Any]) -> None:
    """Raise where the solver is run in a way that cannot work, naming the one that does."""
    if func is None or isinstance(func, Tensor):
        raise InputError("func is missing. Pass func(t, z, *args); None and a constant tensor go with linear=.")
    function("func", func, "func(t, z, *args)")
    if torch.jit.is_tracing():
        raise UnsupportedError("a solve is not for torch.jit: use torch.export, which takes solves with fixed steps.")
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


def why_not_fading(operator: Operator, known: Mapping[str, Tensor], scheme: Scheme) -> str | None:
    """Why the far past of a mesh cannot be summed as exponentials; None if it can."""
    if not isinstance(operator, Caputo):
        return "the exponentials are those of Caputo's kernel with one order"
    if float(value_of(known["order"]).max()) > 1:
        return "the kernel of an order above 1 grows and is no sum of decaying exponentials"
    if not scheme.cells:
        return f"method={type(scheme).__name__} is no integration rule on cells"
    return None


def _refuse_history(past: History, operator: Operator, wanted: Request, against: str | None) -> None:
    """A matrix that is not Toeplitz needs all rows and all weights, or exponentials on the mesh."""
    if isinstance(past, Full) or (isinstance(past, Exponentials) and against is None):
        return
    cause = wanted.grid.cause if operator.toeplitz else f"order={type(operator).__name__}"
    raise InputError(
        f"history={type(past).__name__} needs weights that depend on the lag alone, which {cause} has not"
        + (f", and on a mesh {against}. Use history='full'." if against else ". Use history='full' or 'exponentials'.")
    )


def refuse_jumps(scheme: Scheme, operator: Operator, before: State | None = None) -> None:
    """Raise where a state cannot jump."""
    if not scheme.cells or not isinstance(operator, Caputo) or before is not None:
        raise InputError(
            "jumps= put a short step before each jump: use method='predictor', 'predictor-implicit', 'trapezoid' "
            "or 'abm', ABM(ahead=True), orders of Caputo's derivative, and no solve as past=."
        )


def _on_mesh(past: Exponentials, scheme: Scheme, wanted: Request, fixed: bool) -> tuple[Exponentials, Rates]:
    """The exponentials that stand for the kernel at all lags of the mesh; ``fixed``: of an order that is constant."""
    if past.terms is not None:
        raise InputError(
            f"Exponentials(terms={past.terms}) is for uniform grids, where exponentials are fitted; on a mesh their "
            "number follows from tol=. Leave terms= out."
        )
    times = wanted.grid.elapsed
    rates = Rates.for_lags(wanted.grid.extremes[0], float(times[-1]), past.tol)
    mesh = FadingMesh(times, rates.values, scheme.cells, newest if fixed else None)
    return replace(past, mesh=mesh, terms=rates.values.shape[0]), rates


def _refuse_paper(how: Adjoint, operator: Operator, given: Options, wanted: Request) -> None:
    more = not (given.velocity is given.horizon is given.past is None)
    if isinstance(how, Paper) and (not isinstance(operator, Caputo) or more or not wanted.grid.uniform):
        raise InputError(
            "adjoint='paper' is defined for a Caputo derivative of order up to 1 on a uniform grid, without horizon=, "
            "velocity= and past=. Use adjoint='exact'."
        )


def read_params(func: Callable[..., Any], params: Iterable[Tensor] | None) -> list[Tensor]:
    """The tensors that get gradients: those given, or the parameters of ``func``."""
    if params is None:
        params = func.parameters() if isinstance(func, nn.Module) else ()
    else:
        params = given_params(params)
    return list({id(p): p for p in params if p.requires_grad}.values())


def given_params(params: Any) -> list[Tensor]:
    """The tensors of ``params=``, which a generator gives only once."""
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
    """What is passed on to ``func``."""
    if not isinstance(args, tuple | list):
        raise InputTypeError(f"args must be a tuple passed on to func, got {type(args).__name__}; write args=(value,).")
    for a in tensors_in(args):
        if a.device != structure.device and a.ndim > 0:
            raise InputTypeError(
                f"args contains a tensor on {a.device}, the state is on {structure.device}; move it there first."
            )
    return tuple(args)


def read_velocity(velocity: Any, structure: Structure) -> Tensor:
    """``z'(0)`` as a row."""
    given = structure_of(velocity, "velocity")
    if replace(given, spans=structure.spans) != structure:
        raise InputTypeError(
            "velocity must have the structure, shapes, dtype and device of z0: it is z'(0), one number for each of z0."
        )
    return structure.pack(velocity)


def in_own_time(
    func: Callable[..., Any], horizon: Any, structure: Structure, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` of the grid's time; the factors travel among the arguments, where tensors get gradients."""
    scales = pytree.tree_map(lambda x: torch.as_tensor(x).to(device=structure.device, dtype=structure.dtype), horizon)

    def scaled(s: Tensor, z: Any, factors: Any, *rest: Any) -> Any:
        return func(pytree.tree_map(lambda x: x * s, factors), z, *rest)

    scaled.made_anew = True  # type: ignore[attr-defined]  # at every call: no cache of captured steps would know it
    return scaled, (scales, *args)


def in_moving_time(
    func: Callable[..., Any], grid: Grid, like: Tensor, args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` of times some of which have gradients; these travel among the arguments."""
    assert grid.moving is not None
    fixed, instants = grid.times(like), (grid.start + grid.moving).to(like)

    def moved(t: Tensor, z: Any, instants: Tensor, *rest: Any) -> Any:
        place = torch.searchsorted(fixed, t.detach()).clamp(max=len(fixed) - 1)
        return func(instants.index_select(0, place.reshape(1)).reshape(()), z, *rest)

    moved.made_anew = True  # type: ignore[attr-defined]
    return moved, (instants, *args)


def named(kind: str, given: Any, table: Mapping[str, _T], kinds: Any) -> _T:
    """An object from its name; an object of the right kind is passed through."""
    if isinstance(given, kinds):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        if given in table:
            return table[given]
        raise InputError(f"unknown {kind} {given!r}. {nearest(given, table)}")
    raise InputTypeError(f"{kind} must be a name or an object, got {type(given).__name__}. {nearest('', table)}")


def read_scheme(method: str | Scheme | None, solver: str | StageSolver | None, default: str = "predictor") -> Scheme:
    """The scheme, with another stage solver if one is given."""
    method = default if method is None else method
    if isinstance(method, str) and method in ORDINARY:
        raise InputError(
            f"method={method!r} is for ordinary equations; one with memory needs weights for its whole past. "
            f"The nearest is method={ORDINARY[method]!r}. At order 1 'predictor' is Euler's method "
            "and 'abm' is Heun's."
        )
    base = method.removesuffix("-f").removesuffix("-o") if isinstance(method, str) else ""
    if base in TORCHFDE or (base != method and base in METHODS):
        raise InputError(
            f"method={method!r} is torchfde's name; here it is {TORCHFDE.get(base, f'method={base!r}')}. "
            "For code written for torchfde import fdeint from neuralfde.compat.torchfde."
        )
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
    """Raise where progress cannot be told."""
    if callback is not None:
        function("callback", callback, "callback(step, total)")


def check_names(options: Mapping[str, Any]) -> None:
    """Raise where one of the options of a block is no name or object of its kind."""
    read_callback(options["callback"])
    read_scheme(options["method"], options["solver"])
    read_history(options["history"])
    named("storage", options["storage"], STORAGES, Storage)
    read_stepper(options["stepper"], named("adjoint", options["adjoint"], ADJOINTS, (Exact, Direct, Paper)))


def read_history(history: str | History) -> History | None:
    """The history; None where it is left to ``auto``."""
    if history == "window":
        raise InputError("history='window' needs a length: pass history=Window(64) for the last 64 steps.")
    found = named("history", history, HISTORIES, History)
    # the history of an earlier solve knows the mesh of that one
    return replace(found, mesh=None, terms=None) if isinstance(found, Exponentials) and found.mesh else found


def read_stepper(stepper: str | Stepper, how: Adjoint) -> Stepper | None:
    """The stepper; None where it is left to ``auto``."""
    found = named("stepper", stepper, STEPPERS, Stepper)
    if isinstance(how, Direct) and found not in (None, Single()):
        raise InputError(
            f"stepper={stepper!r} does not keep the graph of each step, as adjoint='direct' has it. "
            "Use adjoint='exact', or stepper='single'."
        )
    return found


def refuse_combinations(
    how: Adjoint, past: History, kept: Storage, beta: Tensor, wanted: Request, scheme: Scheme
) -> None:
    """Raise where two choices make no sense together, naming the alternative."""
    if isinstance(how, Paper):
        if beta.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "adjoint='paper' has no gradient for the order. Use adjoint='exact' to learn it, "
                "or pass order.detach()."
            )
        if len(wanted.between):
            raise InputError(
                "adjoint='paper' is defined on the grid only, but t has times between grid points "
                f"(step {wanted.grid.step:g}). Use adjoint='exact', or a step that meets every time."
            )
    _refuse_storage(how, past, kept)


def refuse_resume(how: Adjoint, wanted: Request, scheme: Scheme) -> None:
    """Raise where a solve cannot be gone on with."""
    if not scheme.slopes_are_at_states:
        raise InputError(
            f"{type(scheme).__name__} evaluates func beside its states, and a solve goes on from states: it cannot be "
            "resumed. Solve in one piece, or use an implicit method."
        )
    if isinstance(how, Paper) or len(wanted.between) or not wanted.grid.uniform:
        raise InputError(
            "a solve that is resumed takes adjoint='exact' or 'direct' and output times on a uniform grid "
            f"(step {wanted.grid.step:g}); solve in one piece otherwise."
        )


def _refuse_storage(how: Adjoint, past: History, kept: Storage) -> None:
    name = type(kept).__name__
    if isinstance(how, Direct) and kept != _DEVICE:
        raise InputError(
            f"adjoint='direct' keeps the graph of every step on the device, storage={name} would store nothing. "
            "Use adjoint='exact', or storage='device'."
        )
    if kept.recomputes and not past.keeps_slopes and not past.snapshots:
        raise InputError(
            f"storage={name} computes rows again from kept states of the history; history={type(past).__name__} has "
            "no state that can be kept (snapshots = False). Use storage='device' or 'host', or history='exponentials'."
        )
    on_host = isinstance(past, Full) and past.host and kept == _HOST
    if past.keeps_slopes and kept != _DEVICE and not on_host:
        raise InputError(
            f"history={type(past).__name__} holds every row in the dtype of the state, since each sum needs them all, "
            f"and storage={kept} could not take them away. Use history='exponentials' (or a Window) with it, or "
            "storage='device'; history='full' goes with storage='host' too."
        )
