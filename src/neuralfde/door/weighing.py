"""From the arguments of a solve to its problem and weights; for small solves both are cached."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.caches import Cache, capturing, to_device
from ..base.grid import Mesh
from ..base.policy import DEVICE_ORDERS, DEVICE_WEIGHTS, PICARD_NUMBERS
from ..base.structure import Structure, all_finite
from ..base.torch_private import is_constant, outside_of_programs, outside_of_transforms, transforms_are_active
from ..errors import InputError, InputTypeError
from ..history import Exponentials
from ..history.wrappers import Tables
from ..orders import KNOWN, Caputo
from ..schemes import SOLVERS
from ..solve.plan import Coefficients
from ..weights.kernel import Kernel
from .observed import read_velocity
from .output import Output, output
from .resume import refuse_resume, settings_of, windowed_start
from .validation import Options, Problem, is_small, read

# Stage solvers that are equal if their numbers are equal.
_SOLVERS = (type(None), str, *map(type, SOLVERS.values()))
_READ: Cache[tuple[Problem, Weights]] = Cache("small solves as they were read", 32)


class Weights(NamedTuple):
    """The weights of a solve, and what goes with them.

    ``times`` are the grid points, ``nodes`` those whose states are returned; slopes before ``first`` have no
    weight. In a resumed solve ``past_rows`` is the contribution of the past to each row. A solve that is to be resumed
    keeps the ``kernel`` of all steps. ``tables`` are kept from solve to solve.
    """

    coefficients: Coefficients
    times: Tensor
    nodes: tuple[int, ...]
    first: int
    past_rows: Any
    kernel: Kernel | None
    tables: Tables | None = None


def weighed(
    structure: Structure, t: Any, order: Any, given: Options, keep: bool, every: bool
) -> tuple[Problem, Weights]:
    """The problem and its weights; those of a small solve with the same arguments are cached.

    Args:
        keep: whether this solve will be resumed.
        every: whether the state is needed at every step.
    """

    def made(tables: Tables | None = None) -> tuple[Problem, Weights]:
        problem = read(structure, t, order, given, torch.is_grad_enabled())
        return problem, _weights(problem, given, keep, every)._replace(tables=tables)

    if torch.compiler.is_exporting():
        with outside_of_programs():
            return made()
    if keep or every or not _is_found_again(structure, t, order, given):
        return made()
    kinds = type(t), type(order), *map(type, given)  # 1 and 1.0 are equal, but not the same
    # larger states are stepped one by one, where all blocks share one table of the memory
    tables: Tables | None = {} if structure.numel <= PICARD_NUMBERS[0] else None
    key = structure, t, order, given, kinds, torch.is_grad_enabled()
    with outside_of_transforms() if transforms_are_active() else nullcontext():  # cached tensors belong to no transform
        problem, weights = _READ.get(key, lambda: made(tables))
    return problem, weights._replace(times=weights.times.clone())  # func may write to its time


def _is_found_again(structure: Structure, t: Any, order: Any, given: Options) -> bool:
    """Whether this is a small solve on the CPU whose arguments are numbers and names only."""
    others = (given.callback, given.velocity, given.horizon, given.grid, given.jumps, given.past, given.lags)
    if given.args != () or not (given.params is None and all(x is None for x in others)):
        return False
    numbers = type(t) is type(order) is float
    known = given.method is None or isinstance(given.method, str) or type(given.method) in KNOWN
    names = type(given.adjoint) is type(given.history) is type(given.storage) is type(given.stepper) is str
    names = names and type(given.solver) in _SOLVERS
    small = type(given.steps) is int and is_small(structure, given.steps)
    return numbers and small and known and names and structure.device.type == "cpu"


def _weights(problem: Problem, given: Options, keep: bool, every: bool) -> Weights:
    like = torch.empty(0, dtype=problem.structure.dtype, device=problem.structure.device)
    wanted, past, before = problem.request, problem.history, given.before
    grid, past_rows, velocity = wanted.grid, None, given.velocity is not None
    if keep:
        refuse_resume(problem.adjoint, wanted, problem.scheme)
        settings = settings_of(problem.scheme, problem.operator, problem.known, past)
    if before is not None:
        second = read_velocity(given.velocity, problem.structure) if velocity else None
        before.check(problem.structure, settings, second)
        grid, velocity = before.whole(grid.steps), before.initial.shape[0] > 1
    known, mesh, place = _placed(problem, problem.mesh(velocity, grid), not keep)
    with place:
        whole = kernel = _checked(problem.operator.kernel(known, problem.scheme, mesh), problem, mesh, known)
    if before is not None:
        with torch.autocast(like.device.type, enabled=False):  # as in the loop, which takes these sums
            kernel, past_rows = before.continued(whole, past)
    nodes, coefficients = _coefficients(kernel, problem, every)
    fixed = {k: c for k, c in coefficients._asdict().items() if c is not None and is_constant(c)}
    coefficients = coefficients._replace(**{k: to_device(c, like) for k, c in fixed.items()})
    times = grid.times(like)[grid.steps - wanted.grid.steps :]
    return Weights(coefficients, times, nodes, kernel.first, past_rows, whole if keep else None)


def _checked(kernel: Any, problem: Problem, mesh: Mesh, known: dict[str, Tensor]) -> Kernel:
    """The weights, if those of a scheme or an operator from elsewhere can be used."""
    made = f"kernel() of {type(problem.scheme).__name__}, with order {type(problem.operator).__name__},"
    if not isinstance(kernel, Kernel):
        raise InputTypeError(f"{made} must return a neuralfde.weights.kernel.Kernel, got {type(kernel).__name__}.")
    wanted, shape = (problem.scheme.sums, mesh.steps + 1), tuple(kernel.weights.shape)
    if len(shape) not in (3, 4) or shape[0] != wanted[0] or (mesh.uniform and shape[1] != wanted[1]):
        raise InputError(
            f"{made} gave weights of shape {shape}; they must be (sums, steps + 1, groups), here "
            f"({wanted[0]}, {wanted[1]}, groups)."
        )
    parts = (kernel.weights, kernel.local, kernel.start, kernel.base)
    lost = [name for name, x in known.items() if x.requires_grad]
    if lost and torch.is_grad_enabled() and not any(x is not None and x.requires_grad for x in parts):
        raise InputError(
            f"{made} gave weights without a gradient, but {', '.join(lost)} requires one. Compute them by PyTorch "
            "operations from the numbers that kernel() is given, without detach() or float()."
        )
    return kernel


def _placed(problem: Problem, mesh: Mesh, alone: bool) -> tuple[dict[str, Tensor], Mesh, AbstractContextManager[Any]]:
    """Numbers, mesh and device for computing the weights: the GPU for very many orders, otherwise the host."""
    known, device, groups = problem.known, problem.structure.device, problem.structure.groups
    if device.type != "cuda" or not DEVICE_ORDERS <= groups <= DEVICE_WEIGHTS // (mesh.steps + 1) or capturing():
        return known, mesh, nullcontext()
    plain = alone and mesh.uniform and not mesh.velocity and not len(problem.request.between)
    plain = plain and problem.observed is problem.jumps is problem.rates is None
    covered = type(problem.operator) is Caputo and type(problem.scheme) in KNOWN
    if not plain or not covered or type(problem.history) is not Exponentials:
        return known, mesh, nullcontext()
    moved = replace(mesh, elapsed=mesh.elapsed.to(device), horizon=mesh.horizon.to(device))
    return {name: x.to(device) for name, x in known.items()}, moved, device


def _coefficients(kernel: Kernel, problem: Problem, every: bool) -> tuple[tuple[int, ...], Coefficients]:
    """The grid points whose states are returned, and the weights of the scheme."""
    wanted, scheme, past, grid = problem.request, problem.scheme, problem.history, problem.request.grid
    if not all_finite(kernel.weights, kernel.local):
        bad = (~torch.isfinite(kernel.weights)).flatten(2).any(-1).any(0) | (~torch.isfinite(kernel.local)).any(-1)
        first = int(bad.nonzero()[0])
        raise InputError(f"the weights are not finite from step {first} on (h={grid.step:g}); check the order.")
    if every or len(wanted.between):
        out = output(wanted, problem.structure, scheme, kernel, past, every)
    else:
        out = Output(tuple(sorted({*wanted.nodes})), wanted.between, None)
    start = None if kernel.start is None else windowed_start(kernel.start, past)
    weights = past.tabulate(kernel.weights)
    base = kernel.base
    if base is not None and out.dense is not None:
        assert kernel.dense_base is not None
        base = torch.cat([base, kernel.dense_base(out.positions)], dim=1)
    elapsed = grid.elapsed if grid.moving is None else grid.moving
    if out.dense is not None:
        positions = out.positions[:, 0]
        here = grid.at(positions)
        if grid.moving is not None:  # grid points may move, output times between them stay
            here = torch.where(positions == positions.round(), grid.moving[positions.long()], here)
        elapsed = torch.cat([elapsed, here])
    if problem.observed is not None:
        if wanted.series:
            raise InputError(
                "past= and times for each sample do not go together: give all times in one row, t.unique()."
            )
        base = problem.observed.base(problem.known["order"], elapsed)
    if problem.jumps is not None:
        after = problem.jumps.steps(elapsed.detach())[..., None].expand(-1, -1, kernel.weights.shape[-1])
        base = torch.cat([torch.ones_like(after[:1]) if base is None else base, after])
    return out.nodes, Coefficients(weights, kernel.local, start, out.dense, base)
