"""A fit as a function of a flat vector: predictions, residuals and their Jacobian."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import jvp, vmap

from ..api import fdeint
from ..errors import ConvergenceError, InputError, NonFiniteError
from .data import Data, OwnTimes, own_times
from .differences import columns_by_differences
from .modules import Named, call, names_at
from .semilinear import Unknown
from .steps import halved
from .tangents import coupled, output_is_limited, tangents
from .unknowns import INITIAL, ORDER, Unknowns

#: What a solve raises at unknowns for which the equation has no solution up to the end, or none that steps can find.
UNSOLVABLE = (NonFiniteError, ConvergenceError)

#: The step of the central difference in the order; its error is about 1e-10 in float64.
_DELTA = 1e-5


@dataclass(frozen=True)
class Problem:
    """What is fitted to what. All arithmetic is in float64, whatever the model's own precision.

    ``initial`` has shape (trajectories, variables); the model sees states of that shape, or with fewer trajectories.
    ``velocity``, of the same shape, is ``z'(0)`` for orders above 1. Residuals beyond ``robust`` count linearly.
    Each trajectory has its own of the parameters ``each``, (trajectories,).
    """

    model: nn.Module
    data: Data
    unknowns: Unknowns
    initial: Tensor
    order: float
    observe: Callable[[Tensor], Tensor]
    options: dict[str, Any]
    fixed: dict[str, Tensor] = field(default_factory=dict)  # buffers and frozen parameters, in float64
    velocity: Tensor | None = None
    robust: float | None = None
    each: tuple[str, ...] = ()
    places: dict[str, str] = field(init=False, repr=False, compare=False)  # where the model keeps which tensor

    def __post_init__(self) -> None:
        # now, not at the first evaluation: an implicit method would see a func that changes
        object.__setattr__(self, "places", names_at(self.model))

    @property
    def names(self) -> list[str]:
        """The unknowns that belong to the model."""
        return [n for n in self.unknowns.shapes if n not in (INITIAL, ORDER)]

    @property
    def semilinear(self) -> bool:
        """Whether there is a linear part."""
        return self.options.get("linear") is not None

    def field_of(self, t: Tensor, z: Tensor, *values: Tensor) -> Tensor:
        """The right-hand side with the model's unknowns as arguments."""
        named = dict(zip(self.names, values, strict=True))
        if self.each:
            return self._field_of_each(t, z, named)
        if isinstance(self.model, Named):
            return self.model.func(t, z, **named)
        return call(self.model, self.places, {**self.fixed, **named}, t, z)

    def _field_of_each(self, t: Tensor, z: Tensor, named: dict[str, Tensor]) -> Tensor:
        """The function for one trajectory, with the numbers that are its own, mapped over all of them.

        One by one where it cannot be mapped, as where it looks at values of the state.
        """
        assert isinstance(self.model, Named)
        func, axes = self.model.func, {n: 0 if n in self.each else None for n in named}
        axis = z.ndim - 2
        try:
            out: Tensor = vmap(lambda x, v: func(t, x, **v), in_dims=(axis, axes), out_dims=axis)(z, named)
        except RuntimeError as error:
            if type(error) not in (RuntimeError, NotImplementedError):
                raise
            own = ({n: v[k] if n in self.each else v for n, v in named.items()} for k in range(z.shape[axis]))
            out = torch.stack([func(t, x, **v) for x, v in zip(z.unbind(axis), own, strict=True)], axis)
        return out

    def solve(
        self, named: Mapping[str, Tensor], times: Tensor | None = None, rows: Tensor | None = None, **changes: Any
    ) -> Tensor:
        """States at the times, (T, B, d); ``rows`` picks trajectories."""
        z0, velocity = named.get(INITIAL, self.initial), self.velocity
        if rows is not None:
            z0, velocity = z0[rows], None if velocity is None else velocity[rows]
        order = named.get(ORDER, self.order)
        times = self.data.times if times is None else times
        picked = self.each if rows is not None else ()
        values = tuple(named[n][rows] if n in picked else named[n] for n in self.names)
        options = {**self.options, **changes, "velocity": velocity}
        if isinstance(options.get("linear"), Unknown):
            options["linear"] = options["linear"].at(named)
        states: Tensor = fdeint(self.field_of, z0, times, order, args=values, **options)
        return states

    def predict(self, flat: Tensor, rows: Tensor | None = None) -> Tensor:
        """What would be measured, (T, B, m), from natural numbers; differentiable."""
        return self.observed(self.solve(self.unknowns.split(flat), rows=rows))

    def residuals(self, flat: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scaled differences (T, B, m), zero where nothing was measured; large ones shortened by a robust loss."""
        values, scale = self.data.values, self.data.scale
        if rows is not None:
            values, scale = values[:, rows], scale[:, rows]
        return shortened(scale * (self.predict(flat, rows) - values), self.robust)

    def finer(self) -> Problem:
        """The same with half the step."""
        return replace(self, options=halved(self.options))

    def loss(self, flat: Tensor, rows: Tensor | None = None, among: Tensor | None = None) -> Tensor:
        """The mean of the squared residuals, or the share of ``rows`` in the mean ``among`` more of them."""
        among = rows if among is None else among
        seen = self.data.scale if among is None else self.data.scale[:, among]
        rest = self.residuals(flat, rows) if self.own is None else self._own_residuals(self.own, flat, rows)
        return rest.square().sum() / (seen > 0).sum().clamp(min=1)

    @cached_property
    def own(self) -> OwnTimes | None:
        """The times of each trajectory, where they are few of all."""
        return None if self.velocity is not None else own_times(self.data)

    def _own_residuals(self, own: OwnTimes, flat: Tensor, rows: Tensor | None) -> Tensor:
        """The residuals of each trajectory at its own times, (times, trajectories, m)."""
        own = own if rows is None else own.of(rows)
        predicted = self.observed(self.solve(self.unknowns.split(flat), own.times, rows))
        return shortened(own.scale * (predicted - own.values), self.robust)

    def jacobian(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals (M,) and their Jacobian (M, unknowns) in natural numbers, that of the discrete solution itself.

        Forward mode along the solution, see ``tangents``. Where that does not do, columns of the model and of the
        initial state solve the sensitivity equation ``D^β S = (∂f/∂z) S + ∂f/∂θ`` together with the state and with the
        same scheme, and the column of the order is a central difference. With ``linear=``, where PyTorch has no
        forward mode for what the model does, and where states between steps are limited, all columns are differences.
        """
        _load_forward_mode()
        with torch.no_grad():
            named = self.unknowns.split(flat)
            quick = None if self.semilinear else tangents(self, named)
            if quick is None and INITIAL in named:
                self.refuse_coupled(
                    named, "initial states are learned for each of them", "give initial= without learn_initial=True"
                )
            if self.semilinear or (quick is None and output_is_limited(self)):
                predicted, columns = columns_by_differences(self, flat, vectorised=self.semilinear)
            else:
                try:
                    predicted, columns = self._along(self._sensitivities(named) if quick is None else quick)
                except RuntimeError as error:
                    if type(error) not in (RuntimeError, NotImplementedError):
                        raise
                    # PyTorch has no forward mode or no vmap for what func does
                    quick, (predicted, columns) = None, columns_by_differences(self, flat, vectorised=False)
            last = []
            if ORDER in named:
                last = [self._order_column(named, predicted)[None] if quick is None else columns[-1:]]
            matrix = torch.cat([*self._arrange(named, columns), *last]) * self.data.scale
            seen = self.data.seen
            plain = (self.data.scale * (predicted - self.data.values))[seen]
            pair = jvp(lambda r: shortened(r, self.robust), (plain,), (torch.ones_like(plain),))
            return pair[0], matrix[:, seen].T * pair[1][:, None]

    def refuse_coupled(self, named: Mapping[str, Tensor], why: str, instead: str) -> None:
        """Raise if trajectories depend on each other, where something is done for each of them or for some of them."""
        times = self.data.times[[0, len(self.data.times) // 2, -1]]
        states = named.get(INITIAL, self.initial).expand(len(times), -1, -1)
        if coupled(self, [named[n] for n in self.names], times, states):
            raise InputError(
                f"trajectories depend on each other in the model, and {why}. If they belong together, make them the "
                f"variables of one trajectory; or {instead}."
            )

    def _along(self, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Predictions and their columns, from states and theirs."""
        states, directions = found
        columns = vmap(lambda s: jvp(self.observed, (states,), (s,))[1])(directions.movedim(1, 0))
        return self.observed(states), columns

    def _sensitivities(self, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        z0 = named.get(INITIAL, self.initial)
        sizes = [named[n].numel() for n in self.names]
        count, width = sum(sizes), z0.shape[-1] if INITIAL in named else 0
        values = tuple(named[n] for n in self.names)
        shapes = [v.shape for v in values]
        units = torch.eye(count, dtype=z0.dtype)
        units = torch.cat([units, units.new_zeros(width, count)])
        seeds = z0.new_zeros(count + width, *z0.shape)
        if width:
            seeds[count:] = torch.eye(width, dtype=z0.dtype)[:, None, :]

        def augmented(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            # implicit schemes hand over states with further leading axes
            z, directions = state[0].reshape(z0.shape), state[1].reshape(seeds.shape)

            def along(unit: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
                parts = tuple(p.reshape(s) for p, s in zip(unit.split(sizes), shapes, strict=True))
                pair = jvp(lambda x, *v: self.field_of(t, x, *v), (z, *values), (direction, *parts))
                return pair[0], pair[1]

            slopes, moved = vmap(along)(units, directions)
            return slopes[0], moved  # out_dims=None would keep the solver from vectorising this over time

        order = named.get(ORDER, self.order)
        options = {k: v for k, v in self.options.items() if k != "adjoint"}
        if not len(seeds):
            return self.solve(named), z0.new_zeros(len(self.data.times), 0, *z0.shape)
        if self.velocity is not None:
            options["velocity"] = (self.velocity, torch.zeros_like(seeds))
        found: tuple[Tensor, Tensor] = fdeint(augmented, (z0, seeds), self.data.times, order, **options)
        return found

    def _arrange(self, named: Mapping[str, Tensor], columns: Tensor) -> list[Tensor]:
        """Columns in the order of the unknowns; an initial value moves its own trajectory only."""
        count = sum(named[n].numel() for n in self.names)
        found = [columns[:count]]
        if INITIAL in named:
            batch, width = named[INITIAL].shape
            block = columns.new_zeros(batch, width, *columns.shape[1:])
            for b in range(batch):
                block[b, :, :, b] = columns[count : count + width, :, b]
            found.append(block.flatten(0, 1))
        return found

    def _order_column(self, named: Mapping[str, Tensor], here: Tensor) -> Tensor:
        beta = float(named[ORDER])

        def at(order: float) -> Tensor:
            return self.observed(self.solve({**named, ORDER: torch.tensor(order, dtype=torch.float64)}))

        if beta + _DELTA <= (1 if beta <= 1 else 2):
            return (at(beta + _DELTA) - at(beta - _DELTA)) / (2 * _DELTA)
        return (3 * here - 4 * at(beta - _DELTA) + at(beta - 2 * _DELTA)) / (2 * _DELTA)

    def observed(self, states: Tensor) -> Tensor:
        """What is measured of states (T, B, d), as (T, B, m)."""
        seen = self.observe(states)
        expected = (*states.shape[:2], self.data.values.shape[-1])
        if seen.shape != expected:
            raise InputError(
                f"the model predicts observations of shape {tuple(seen.shape)}, the data need {expected} "
                "(times, trajectories, variables). Use observe= to say which part of the state was measured."
            )
        return seen


def shortened(residual: Tensor, robust: float | None) -> Tensor:
    """Residuals r whose squares grow linearly beyond k = ``robust``: ``2k²(√(1 + (r/k)²) - 1)``, Huber's, smooth."""
    if robust is None:
        return residual
    ratio = (residual / robust).square()
    return residual * (2 / (1 + (1 + ratio).sqrt())).sqrt()


def influence(residual: Tensor, robust: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of shortened residuals s(r): their slope s', the force ψ = s s' = r / √(1 + (r/k)²) on the estimates, and ψ'."""
    root = 1 + residual.square() / (2 * robust**2)  # √(1 + (r/k)²)
    slope = ((root + 1) / 2).sqrt() / root
    return slope, residual * slope, root.pow(-3)


def default_steps(times: Tensor) -> int:
    """A grid that meets equally spaced times, with at least 100 steps; 200 steps for irregular times."""
    gaps = times[1:] - times[:-1]
    if bool(((gaps - gaps[0]).abs() <= 1e-9 * gaps[0].abs()).all()):
        return len(gaps) * max(1, math.ceil(100 / len(gaps)))
    return 200


@cache
def _load_forward_mode() -> None:
    """PyTorch warns of its own use of ``torch.jit`` where forward mode is used first: it does so here, unheard."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore")
        forward_ad.make_dual(torch.zeros(()), torch.ones(()))
