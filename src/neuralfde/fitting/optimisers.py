"""Optimisers of a fit: Levenberg-Marquardt for small problems, L-BFGS, Adam for networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from ..base.checks import real, whole
from ..errors import InputError, NonFiniteError
from .problem import UNSOLVABLE, Problem


@dataclass(frozen=True)
class Progress:
    """One iteration, passed to the callback. ``fit(resume=...)`` continues from its ``state``.

    ``total`` is the largest possible number of iterations, or the actual number after convergence.
    """

    iteration: int
    total: int
    loss: float
    validation: float | None
    values: Tensor
    state: dict[str, Any]


#: ``watch(iteration, total, free, loss, state)``; returns True to stop early.
Watch = Callable[[int, int, Tensor, float, dict[str, Any]], bool]


#: The message of a search that a callback or ``patience=`` ended, and of one that found no way on.
STOPPED = "stopped early"
NO_STEP = "no step improves the loss; the model may be discontinuous in its parameters, or the solution unstable"


#: How far along a step its bend is measured, and how long it may be for the step: Transtrum and Sethna, section 3.
_PROBE, _MOST_BEND = 0.1, 0.375


@dataclass
class Path:
    """Where an optimiser went."""

    free: Tensor
    history: list[float] = field(default_factory=list)
    converged: bool = False
    message: str = "the iterations were used up"

    @classmethod
    def begin(cls, free: Tensor, state: dict[str, Any] | None, *own: str) -> tuple[int, Path]:
        """The iterations done and the way so far: none, or those of a saved ``state``, which holds its ``own`` too."""
        if state is None:
            return 0, cls(free)
        if state.keys() != {"iteration", "free", "history", *own} or state["free"].shape != free.shape:
            raise InputError(
                "resume= is not a state of this fit: another optimiser wrote it, or for other unknowns. Pass the "
                ".state of a Progress, which callback= gets, to a fit with the same arguments."
            )
        return state["iteration"], cls(state["free"], [*state["history"]])

    def ends(self, done: int, total: int, watch: Watch, **own: Any) -> bool:
        """Show the way so far and what else the optimiser goes on from; whether it ends here."""
        saved = {"iteration": done, "free": self.free, "history": [*self.history], **own}
        stop = watch(done, done if self.converged else total, self.free, self.history[-1], saved)
        if self.converged or stop:
            self.message = "converged" if self.converged else STOPPED
        return self.converged or stop


class Optimiser(Protocol):
    """Moves the unconstrained vector."""

    def minimise(self, problem: Problem, free: Tensor, watch: Watch, state: dict[str, Any] | None) -> Path:
        """From ``free``, or from a saved ``state``, to a minimum of ``problem.loss``."""


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Damped Gauss-Newton: about ten iterations for up to a few dozen unknowns.

    It works with the unknowns themselves and stays inside their bounds. (A change of variables to enforce the bounds
    would flatten the loss near them, so that a search could get stuck after one long step.) Columns of the Jacobian
    are scaled by their largest norm so far (Moré, 1978), so that units do not matter. A step follows the bend of the
    predictions (geodesic acceleration: Transtrum and Sethna, arXiv:1201.5885), which takes one more solve: unknowns
    that make up for each other, such as a rate and a small order, leave a narrow bent valley.

    Attributes:
        iterations: the largest number of accepted or rejected steps.
        tolerance: stop when a step improves the loss, or changes the unknowns, by less than this fraction.
    """

    iterations: int = 50
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        whole("LevenbergMarquardt.iterations", self.iterations)
        real("LevenbergMarquardt.tolerance", self.tolerance)

    def minimise(self, problem: Problem, free: Tensor, watch: Watch, state: dict[str, Any] | None) -> Path:
        """See ``Optimiser``."""
        begin, path = Path.begin(free, state, "damping", "values", "scale")
        damping = 1e-3 if state is None else state["damping"]
        values = problem.unknowns.to_value(path.free) if state is None else state["values"]
        residual, matrix = self._begin(problem, values)
        scale = matrix.norm(dim=0) if state is None else state["scale"]
        cost, count = float(residual.square().sum()), max(1, len(residual))
        path.history = path.history or [cost / count]
        # of the data, so that their unit does not matter; data that are zero have none
        size = float((problem.data.scale * problem.data.values).square().sum()) or cost
        for k in range(begin, self.iterations):
            scale = torch.maximum(scale, matrix.norm(dim=0))
            move = bounded_move(residual, matrix, damping, scale, problem.unknowns.room(values))
            expected = cost - float((residual + matrix @ move).square().sum())
            move = self._bent(move, problem, values, residual, matrix, damping, scale)
            trial_cost = self._cost(problem, values + move)
            gained = cost - trial_cost
            small = float((move * scale).norm()) <= self.tolerance * (
                float((values * scale).norm()) + self.tolerance * size**0.5
            )
            if gained >= 0:
                values = values + move
                path.converged = small or gained <= self.tolerance * cost or trial_cost <= 1e-28 * size
                cost = trial_cost
                # smoothly from a tenth, where the step brought what was expected, to twice (Nielsen, 1999)
                kept = min(gained / expected, 1.0) if expected > 0 else 1.0
                damping = max(damping * max(0.1, 1 - (2 * kept - 1) ** 3), 1e-12)
            else:
                damping *= 4
                # no direction improves the loss any more at the precision of the arithmetic
                path.converged = small or expected <= self.tolerance * cost
                if damping > 1e12 and not path.converged:
                    path.message = NO_STEP
                    break
            path.free = problem.unknowns.to_free(values)
            path.history.append(cost / count)
            if path.ends(k + 1, self.iterations, watch, damping=damping, values=values, scale=scale):
                break
            if gained >= 0:
                residual, matrix = problem.jacobian(values)
        return path

    def _begin(self, problem: Problem, values: Tensor) -> tuple[Tensor, Tensor]:
        try:
            residual, matrix = problem.jacobian(values)
            if not (torch.isfinite(residual.norm()) and torch.isfinite(matrix.norm())):
                raise NonFiniteError(_TOO_LARGE)
            return residual, matrix
        except UNSOLVABLE as error:
            raise _hopeless(error) from error

    def _bent(
        self, move: Tensor, problem: Problem, values: Tensor, residual: Tensor, matrix: Tensor, damping: float,
        scale: Tensor,
    ) -> Tensor:  # fmt: skip
        """The step with its second-order term, where that can be computed and is the smaller part."""
        try:
            with torch.no_grad():
                ahead = problem.residuals(values + _PROBE * move)[problem.data.seen]
        except (*UNSOLVABLE, ValueError):  # the step leaves the region where the equation can be solved
            return move
        if not bool(torch.isfinite(ahead).all()):  # what is observed is not a number there, such as a logarithm
            return move
        bend = _damped_step(((ahead - residual) / _PROBE - matrix @ move) / _PROBE, matrix, damping, scale)
        if not float((bend * scale).norm()) <= _MOST_BEND * float((move * scale).norm()):
            return move
        low, high = problem.unknowns.room(values)
        return (move + bend).clamp(0.9 * low, 0.9 * high)

    def _cost(self, problem: Problem, values: Tensor) -> float:
        try:
            with torch.no_grad():
                cost = float(problem.residuals(values).square().sum())
        except (*UNSOLVABLE, ValueError):  # the step left the region where the equation can be solved
            return math.inf
        return cost if math.isfinite(cost) else math.inf


def bounded_move(
    residual: Tensor, matrix: Tensor, damping: float, scale: Tensor, room: tuple[Tensor, Tensor]
) -> Tensor:
    """The damped step; unknowns that would cross a bound go nine tenths of the way, and the others make up for it."""
    low, high = 0.9 * room[0], 0.9 * room[1]
    move, held = torch.zeros_like(scale), torch.zeros_like(scale, dtype=torch.bool)
    while not bool(held.all()):
        rest = ~held
        move[rest] = _damped_step(residual + matrix[:, held] @ move[held], matrix[:, rest], damping, scale[rest])
        across = rest & ((move < low) | (move > high))
        if not bool(across.any()):
            break
        move = torch.where(across, move.clamp(low, high), move)
        held = held | across
    return move


def _damped_step(residual: Tensor, matrix: Tensor, damping: float, scale: Tensor) -> Tensor:
    """The least of ``|residual + matrix x|² + damping |scale x|²``, without squaring the condition of the matrix."""
    unit = torch.where(scale > 0, scale, 1.0)
    rows = torch.cat([matrix / unit, damping**0.5 * torch.eye(len(scale), dtype=matrix.dtype)])
    right = torch.cat([-residual, residual.new_zeros(len(scale))])
    # full rank by the damping; unlike gelsy, the default, gels gives the same bits at every address in memory
    found: Tensor = torch.linalg.lstsq(rows, right[:, None], driver="gels").solution[:, 0] / unit
    return found


@dataclass(frozen=True)
class LBFGS:
    """Quasi-Newton with a strong Wolfe line search and exact gradients, for a few hundred unknowns."""

    iterations: int = 100
    tolerance: float = 1e-9
    memory: int = 10

    def __post_init__(self) -> None:
        whole("LBFGS.iterations", self.iterations)
        real("LBFGS.tolerance", self.tolerance)
        whole("LBFGS.memory", self.memory)

    def minimise(self, problem: Problem, free: Tensor, watch: Watch, state: dict[str, Any] | None) -> Path:
        """See ``Optimiser``."""
        begin, path = Path.begin(free, state, "optimiser")
        u = path.free.clone().requires_grad_()
        inner = torch.optim.LBFGS(
            [u], lr=1.0, max_iter=1, max_eval=25, history_size=self.memory, line_search_fn="strong_wolfe",
            tolerance_grad=0.0, tolerance_change=0.0,
        )  # fmt: skip
        # its thresholds are absolute: it sees the loss as a share of the first one
        inner.param_groups[0]["unit"] = unit_of(problem, path.free) if state is None else 1.0
        if state is not None:
            inner.load_state_dict(state["optimiser"])
        unit = float(inner.param_groups[0].get("unit", 1.0))

        def closure() -> Tensor:
            inner.zero_grad()
            try:
                loss = problem.loss(problem.unknowns.to_value(u)) / unit
            except UNSOLVABLE:
                loss = u.new_tensor(math.inf)
            if not torch.isfinite(loss.detach()):
                u.grad = torch.zeros_like(u)
                return torch.tensor(1e100, dtype=u.dtype)  # the line search squares it
            loss.backward()
            return loss

        for k in range(begin, self.iterations):
            before = u.detach().clone()
            loss = float(inner.step(closure).detach())
            path.history.append(unit * loss)
            path.free = u.detach().clone()
            rests = float((path.free - before).norm()) <= self.tolerance * (float(before.norm()) + self.tolerance)
            # a line search that finds no step at all rests too, but not where it is flat
            slope = inner.state[u].get("prev_flat_grad", torch.zeros_like(before))
            path.converged = rests and float((slope * (1 + before.abs())).abs().max()) <= max(loss, 1e-6)
            # a copy: the optimiser goes on changing its own
            if path.ends(k + 1, self.iterations, watch, optimiser=copy.deepcopy(inner.state_dict())):
                break
            if rests:
                path.message = NO_STEP
                break
        return path


def unit_of(problem: Problem, free: Tensor) -> float:
    """The loss at the start, where it can be divided by."""
    try:
        with torch.no_grad():
            found = float(problem.loss(problem.unknowns.to_value(free)))
        if not math.isfinite(found):
            raise NonFiniteError(_TOO_LARGE)
    except UNSOLVABLE as error:
        raise _hopeless(error) from error
    return found or 1.0


_TOO_LARGE = "Residuals, or their derivatives, are too large for their sum of squares."


def _hopeless(error: Exception) -> Exception:
    """The same error, with what it means for a search."""
    what = "the solution blows up" if isinstance(error, NonFiniteError) else "the equation cannot be solved"
    return type(error)(
        f"{what} at the values the search starts from. {error} A closer first guess, bounds=, more steps=, "
        "method='trapezoid', or stages=(0.1, 0.3, 1.0), which fits early data first, may help."
    )


@dataclass(frozen=True)
class Adam:
    """Adam over shuffled minibatches of trajectories.

    Attributes:
        epochs: passes over the trajectories.
        lr: learning rate, for the unconstrained variables.
        batch_size: trajectories per step; default: all of them, as it must be if they depend on each other.
        seed: the seed of the shuffling.
        stop_below: the loss below which the fit counts as converged.
        group: a ``torch.distributed`` process group whose members split the trajectories of every step. All of them
            call ``fit`` with the same data and get the same result, equal to that of one process to rounding.
    """

    epochs: int = 500
    lr: float = 0.01
    batch_size: int | None = None
    seed: int = 0
    stop_below: float = 0.0
    group: Any = None

    def __post_init__(self) -> None:
        whole("Adam.epochs", self.epochs)
        real("Adam.lr", self.lr, above=0)
        if self.batch_size is not None:
            whole("Adam.batch_size", self.batch_size)

    def minimise(self, problem: Problem, free: Tensor, watch: Watch, state: dict[str, Any] | None) -> Path:
        """See ``Optimiser``."""
        begin, path = Path.begin(free, state, "optimiser", "generator")
        generator = torch.Generator().manual_seed(self.seed)
        u = path.free.clone().requires_grad_()
        inner = torch.optim.Adam([u], lr=self.lr)
        if state is not None:
            generator.set_state(state["generator"])
            inner.load_state_dict(state["optimiser"])
        batch = problem.initial.shape[0]
        size = batch if self.batch_size is None else min(self.batch_size, batch)
        if size < batch or (self.group is not None and dist.get_world_size(self.group) > 1):
            with torch.no_grad():
                named = problem.unknowns.split(problem.unknowns.to_value(path.free))
                why, instead = "steps with some of them leave out the others", "leave out batch_size= and group="
                problem.refuse_coupled(named, why, instead)
        for k in range(begin, self.epochs):
            total = 0.0
            for rows in torch.randperm(batch, generator=generator).split(size):
                inner.zero_grad()
                total += self._gradient(problem, u, rows) * len(rows)
                inner.step()
            path.free = u.detach().clone()
            path.history.append(total / batch)
            path.converged = path.history[-1] <= self.stop_below
            own = {"optimiser": copy.deepcopy(inner.state_dict()), "generator": generator.get_state()}
            if path.ends(k + 1, self.epochs, watch, **own):
                break
        return path

    def _gradient(self, problem: Problem, u: Tensor, rows: Tensor) -> float:
        """Leave the gradient in ``u.grad``; the loss."""
        shared = self.group is not None
        mine = rows[dist.get_rank(self.group) :: dist.get_world_size(self.group)] if shared else rows
        sums = u.new_zeros(1 + len(u))
        if len(mine):
            whole = len(mine) == problem.initial.shape[0]
            loss = problem.loss(problem.unknowns.to_value(u), None if whole else mine, rows)
            sums[0], sums[1:] = loss.detach(), torch.autograd.grad(loss, u)[0]
        if shared:
            dist.all_reduce(sums, group=self.group)
        u.grad = sums[1:]
        return float(sums[0])


OPTIMISERS: dict[str, Optimiser] = {"lm": LevenbergMarquardt(), "lbfgs": LBFGS(), "adam": Adam()}
