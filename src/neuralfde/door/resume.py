"""Resuming a solve where it stopped: the slopes so far contribute a known sum to every new row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..adjoints import Adjoint, Paper
from ..base.grid import Grid, Request, request
from ..base.policy import WHOLE_SLACK
from ..base.structure import Structure
from ..base.torch_private import pytree
from ..errors import InputError
from ..history import FFT, Exponentials, Full, History, Window
from ..schemes import Scheme
from ..weights.kernel import Kernel


@dataclass(frozen=True)
class State:
    """Where a solve stopped: its initial values, last state and slopes ``v_0 … v_{N-1}``, all detached.

    It holds N rows: a fractional equation never forgets its past, so that an exact continuation needs all of it.

    Attributes:
        start: the initial time.
        step: the step size.
        settings: what the weights of the past depend on, by the name of the argument.
        structure: the structure of the state.
        initial: the initial values, (initials, groups, width).
        last: the state where it stopped, (groups, width).
        slopes: (steps, groups, width).
        weights: the weights of the past; those of a later solve must be the same.
        pairs: whether the state is complex; all of the above then contain pairs of real numbers.
    """

    start: float
    step: float
    settings: Mapping[str, Any]
    structure: Structure
    initial: Tensor
    last: Tensor
    slopes: Tensor
    weights: Tensor
    pairs: bool = False

    def template(self) -> Any:
        """The last state in its structure, for a call without ``z0``."""
        last = self.structure.unpack(self.last)
        return pytree.tree_map(torch.view_as_complex, last) if self.pairs else last

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self.slopes.shape[0]

    @property
    def time(self) -> float:
        """The time where it stopped."""
        return self.start + self.steps * self.step

    def request(self, t: float | Tensor, step: float | None, steps: int | None) -> Request:
        """The grid of the continuation; ``t`` is the new end, or times that begin where the last solve stopped."""
        several = isinstance(t, Tensor) and t.ndim > 0
        if isinstance(t, Tensor) and t.ndim > 1:
            raise InputError("a resumed solve needs one row of times for the whole batch, on its grid.")
        first, last = (float(t[0]), float(t[-1])) if isinstance(t, Tensor) and several else (self.time, float(t))
        eps = torch.finfo(t.dtype if isinstance(t, Tensor) and t.is_floating_point() else torch.float64).eps
        if abs(first - self.time) > max(WHOLE_SLACK * self.step, 4 * eps * abs(self.time)):
            raise InputError(
                f"t begins at {first!r}, but the solve to be resumed stopped at {self.time!r}: begin there, or give "
                "the new end alone, as a number."
            )
        if last <= self.time:
            raise InputError(f"t={last:g} is not after {self.time:g}, where the solve to be resumed stopped.")
        if steps is not None:
            raise InputError("a resumed solve keeps its step; leave steps= out and give the new end time as t.")
        if step is not None and abs(step - self.step) > WHOLE_SLACK * self.step:
            refuse_other("step", f"{self.step:g}", f"{step:g}")
        times = t if several else torch.tensor([self.time, last], dtype=torch.float64)
        found = request(times, self.step, None)
        grid = Grid(self.time, self.step, found.grid.steps)
        return Request(grid, found.positions if several else found.positions[-1:], not several)

    def whole(self, more: int) -> Grid:
        """The grid of all steps, from the initial time on."""
        return Grid(self.start, self.step, self.steps + more)

    def check(self, structure: Structure, settings: Mapping[str, Any], velocity: Tensor | None) -> None:
        """Raise if a setting of the resumed solve differs, naming it."""
        mine, other = (replace(s, spans=None) for s in (self.structure, structure))
        if mine != other:
            refuse_other("z0", _looks(mine), _looks(other))
        if velocity is not None and not (len(self.initial) > 1 and torch.equal(velocity.detach(), self.initial[1])):
            refuse_other("velocity", "the second initial value", "another")
        for name in {**self.settings, **settings}:
            then, now = self.settings.get(name), settings.get(name)
            if then != now:
                refuse_other(name, then, now)
        if self.structure != structure:  # the same orders, but for other elements of the state
            refuse_other("order", "one shape", "another")

    def continued(self, kernel: Kernel, history: History) -> tuple[Kernel, Tensor]:
        """The kernel of the new steps, from that of all steps, and the contribution of the past to the new rows.

        The latter, (count, sums, groups, width), takes the place of the initial values. The last row so far is the
        first of the new ones.
        """
        past, like = self.steps, self.slopes
        known = weights_of_past(kernel, past).to(self.weights)
        if not torch.allclose(known, self.weights, rtol=1e-9, atol=0):
            refuse_other("order", "these weights of the past", "others: its function of time or of the lag")
        weights, start, local = kernel.weights, kernel.start, kernel.local
        toeplitz, rows = weights.ndim == 3, (kernel.weights.shape[1] - past)
        seen = _windowed(kernel, history)
        slopes = like.clone()
        slopes[: kernel.first] = 0
        memory = Full(block=rows).forward(seen.weights.detach().to(like), past + rows - 1, self.last)
        memory.inputs[0].buffer[:past].copy_(slopes)
        sums = memory.product(past, rows, 0, past)
        if seen.start is not None:
            early = seen.start[:, :past, past:].detach().to(like)
            sums[:, : len(early)] += torch.einsum("sjng,jgm->nsgm", early, like[: early.shape[1]])
        if kernel.base is None:
            sums += self.initial[0]
        else:
            sums += torch.einsum("ing,igm->ngm", kernel.base[:, past:].detach().to(like), self.initial)[:, None]
        sums[0] = self.last
        part = Kernel(
            weights[:, :rows] if toeplitz else weights[:, past:, past:],
            local if local.ndim == 1 else local[past:],
            start[:, past:, past:] if start is not None and past < start.shape[1] else None,
        )
        return part, sums

    def extended(self, blocks: list[Tensor], last: Tensor, kernel: Kernel) -> State:
        """The state after further steps with the slopes in ``blocks``; ``kernel`` is that of all steps."""
        slopes = torch.cat([self.slopes, *blocks])
        return replace(self, slopes=slopes, last=last, weights=weights_of_past(kernel, slopes.shape[0]))


def weights_of_past(kernel: Kernel, steps: int) -> Tensor:
    """What identifies the weights of the first steps: the lag weights, or the row sums of a matrix."""
    weights = kernel.weights.detach()[:, : steps + 1]
    return weights.clone() if weights.ndim == 3 else weights.sum(2)


def settings_of(method: Any, operator: Any, numbers: Mapping[str, Tensor], history: History) -> dict[str, Any]:
    """What the weights of a solve depend on besides its grid, by the name of the argument."""
    if not isinstance(history, Full | FFT | Exponentials | Window):
        raise InputError(
            f"history={type(history).__name__} cannot be resumed: the solver does not know how it sums the past. "
            "Use 'full', 'fft', 'exponentials' or a Window."
        )
    return {
        "method": method,
        "order": (type(operator).__name__, {k: x.detach().tolist() for k, x in numbers.items() if k != "horizon"}),
        "horizon": numbers["horizon"].detach().tolist() if "horizon" in numbers else None,
        "history": f"Window of {history.length} steps" if isinstance(history, Window) else "the whole past",
    }


def refuse_other(name: str, then: Any, now: Any) -> None:
    """Raise: a setting differs from that of the solve so far."""
    raise InputError(
        f"past=: {name} differs. The solve so far has {then}, this one has {now}. A resumed solve keeps its grid, "
        f"method and order; give the same {name}, or start a new solve."
    )


def _windowed(kernel: Kernel, history: History) -> Kernel:
    """The kernel with zero weights at lags that a window forgets."""
    if not isinstance(history, Window):
        return kernel
    lag = torch.arange(kernel.weights.shape[1])
    weights = torch.where((lag <= history.length)[:, None], kernel.weights, 0.0)
    start = None if kernel.start is None else windowed_start(kernel.start, history)
    return replace(kernel, weights=weights, start=start)


def windowed_start(start: Tensor, history: History) -> Tensor:
    """Starting weights, with zeros for slopes that a window has forgotten."""
    if not isinstance(history, Window):
        return start
    lag = torch.arange(start.shape[2]) - torch.arange(start.shape[1])[:, None]
    return torch.where((lag <= history.length)[..., None], start, 0.0)


def _looks(structure: Structure) -> str:
    return f"{[tuple(s) for s in structure.shapes]}, {structure.dtype} on {structure.device}"


def refuse_resume(how: Adjoint, wanted: Request, scheme: Scheme) -> None:
    """Raise if a solve cannot be resumed."""
    if not scheme.slopes_are_at_states:
        raise InputError(
            f"{type(scheme).__name__} evaluates func at predicted states, and a solve is resumed from states: it "
            "cannot be resumed. Solve in one piece, or use an implicit method."
        )
    if isinstance(how, Paper) or len(wanted.between) or not wanted.grid.uniform:
        raise InputError(
            "a resumed solve needs adjoint='exact' or 'direct' and output times on a uniform grid "
            f"(step {wanted.grid.step:g}); otherwise solve in one piece."
        )
