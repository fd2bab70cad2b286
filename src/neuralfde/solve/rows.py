"""What a backward pass reads: the rows of the forward pass, and a few slopes that ``func`` must return again.

Rows come from the storage, from slopes that the memory kept, or segment by segment from its saved states.

The backward pass evaluates ``func`` again at these rows. If ``func`` has changed in between, keeps state, or draws from
its own random generator, its slopes differ, and the gradient would be wrong. So some slopes are compared. The graphs of
these steps also show tensors that ``func`` uses only at later times and that would get no gradient.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..base.policy import WITNESS_STEPS, WITNESSES, WITNESSES_OF_STATE
from ..errors import ChangedFunctionError
from ..history import Memory, ieee
from ..rhs.field import derivative_only
from ..rhs.first import refuse_captured
from ..schemes.stage_solvers import rounding_of
from ..storage import Tape
from .plan import Coefficients, Plan
from .segments import SegmentRows
from .steppers.work import leaves, local_weights, traced


class SlopeRows:
    """Rows recomputed block by block from the slopes that a memory kept, so that no second buffer is needed."""

    def __init__(self, plan: Plan, memory: Memory, local: Tensor) -> None:
        self.plan, self.memory, self.local = plan, memory, local
        self.first = plan.steps + 1
        self.rows: tuple[Tensor, ...] = ()
        self.block: Tensor | None = None  # the same rows as one tensor

    def read(self, n: int) -> Tensor:
        """Row ``n``, (sums, groups, width); rows are read in descending order."""
        if n < self.first:
            self._compute(n)
        if not self.rows:
            assert self.block is not None
            self.rows = self.block.unbind(0)
        row = self.rows[n - self.first]
        if not self.plan.scheme.implicit or n == 0:
            return row
        own = self.local if self.local.ndim == 1 else self.local[n]
        return self.plan.scheme.restore(row[0], self.memory.kept(n).to(row.device), own[:, None])[None]

    def read_rows(self, steps: range) -> Tensor:
        """The rows of these steps, which descend, at once."""
        parts, n = [], steps[0]
        while n >= steps[-1]:
            if n < self.first:
                self._compute(n)
            assert self.block is not None
            low = max(self.first, steps[-1])
            parts.append(self.block[low - self.first : n + 1 - self.first].flip(0))
            n = low - 1
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        later = steps[:-1] if steps[-1] == 0 else steps  # the initial state is given, without a stage
        if self.plan.scheme.implicit and later:
            own = self.local if self.local.ndim == 1 else self.local[later[-1] : later[0] + 1].flip(0)
            c, slopes = rows[: len(later), 0], self.memory.kept_rows(later).to(rows.device)
            c.copy_(self.plan.scheme.restore(c, slopes, own[..., None]))
        return rows

    def _compute(self, n: int) -> None:
        """Recompute the sums of a block of rows up to row ``n``."""
        count = min(self.memory.replay_block, n + 1)
        self.first, self.rows, self.block = n + 1 - count, (), None  # free the last block before computing the next
        with ieee(self.local) if self.local.is_cuda else contextlib.nullcontext():
            self.block = self.memory.replay(self.first, count)

    @property
    def bytes(self) -> int:
        """What it holds besides the memory: nothing."""
        return 0


def readers(
    plan: Plan, c: Coefficients, tape: Tape | SlopeRows | SegmentRows | None, witness: Witness | None
) -> tuple[Callable[[int], Tensor], Callable[[range], Tensor], Callable[[], None]]:
    """Functions that read row ``n`` and the rows of a block, and one that compares slopes at the rows that were read.

    ``witness`` is None if the stepper compares slopes itself. Otherwise they are compared after each block, while a GPU
    is still working on it.
    """
    held: dict[int, Tensor] = {}
    if tape is None:  # the graphs of the steps are kept in place of rows
        return _unread, _unread, _nothing
    if witness is None:
        return tape.read, partial(read_rows, tape), _nothing

    def read(n: int) -> Tensor:
        row = tape.read(n)
        if n in witness.slopes:
            held[n] = row.clone()
        return row

    def read_block(steps: range) -> Tensor:
        rows = read_rows(tape, steps)
        found = [n for n in witness.slopes if n in steps]
        if found:  # one copy for all
            held.update(zip(found, torch.stack([rows[steps.index(n)] for n in found]).unbind(), strict=True))
        return rows

    def compare() -> None:
        while held:
            n, row = held.popitem()
            if n not in witness.slopes:  # the stepper fell back to single steps, which compare
                continue
            own = c.local if c.local.ndim == 1 else c.local[n]
            (w0,) = local_weights(own[None], plan.field.structure.groups, weigh=False)
            with torch.enable_grad(), derivative_only(False):
                x = leaves(row, plan.field.shape)
                _, v = traced(plan.scheme, partial(plan.field, n), x, w0, slope=True, start=n == 0)
            witness.compare(n, v, x)

    return read, read_block, compare


def read_rows(tape: Tape | SlopeRows | SegmentRows, steps: range) -> Tensor:
    """The rows of these steps, which descend, (steps, *shape), contiguous; at once if the tape can, else one by one."""
    at_once = getattr(tape, "read_rows", None)
    if at_once is not None:
        return at_once(steps).contiguous()  # type: ignore[no-any-return]
    first = tape.read(steps[0])
    rows = first.new_empty(len(steps), *first.shape)
    rows[0] = first
    for k, n in enumerate(steps[1:], 1):
        rows[k] = tape.read(n)
    return rows


def _unread(_: object) -> Tensor:
    raise AssertionError("the graphs of the steps are kept in place of rows")


def _nothing() -> None: ...


class Witness:
    """The slopes of a few steps of the forward pass, (groups, width) each, by grid point, for comparison."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        keeps_state = plan.field.impure is not None  # then the first steps differ most, whose state is long gone
        count = WITNESSES_OF_STATE if keeps_state else min(WITNESSES, 1 + plan.steps // WITNESS_STEPS)
        last = plan.steps if plan.scheme.implicit else plan.steps - 1  # the last step with a slope
        self.steps = {last - last * k // count for k in range(count + keeps_state)}
        self.slopes: dict[int, Tensor] = {}
        self.states: dict[int, Tensor] = {}  # of implicit schemes
        self.sizes: dict[int, tuple[Tensor, Tensor]] = {}  # of slopes and states
        self.off: dict[int, Tensor] = {}  # the sizes of differences of slopes that were compared
        self.size: Tensor | None = None  # that of the largest state so far, which determines the rounding of sums

    def note(self, steps: range, states: Tensor, slopes: Tensor) -> None:
        """Keep the chosen slopes of a block of the forward pass."""
        if self.plan.scheme.implicit:
            size = largest(states)
            self.size = size if self.size is None else torch.maximum(self.size, size)
        found = [*self.steps.intersection(steps)]
        if not found:
            return
        kept, at = (torch.stack([x[n - steps[0]] for n in found]) for x in (slopes, states))
        sizes = [torch.linalg.vector_norm(x.flatten(1), math.inf, dim=1).unbind() for x in (kept, at)]
        self.sizes.update(zip(found, zip(*sizes, strict=True), strict=True))
        self.slopes.update(zip(found, kept.unbind(), strict=True))
        if self.plan.scheme.implicit:
            self.states.update(zip(found, at.unbind(), strict=True))

    def compare(self, n: int, v: Tensor | None, inputs: Sequence[Tensor]) -> None:
        """Compare the slope of step ``n``, evaluated again from these inputs, with its graph."""
        if n in self.slopes and v is not None:  # before the pop: after an error the steps may be tried in another way
            refuse_captured([v], [*inputs, *self.plan.field.known])
        known = self.slopes.pop(n, None)
        if known is None or v is None:  # not chosen, compared before, or a slope that is not used
            return
        with torch.no_grad():
            self.off[n] = largest(known.sub_(v.reshape(known.shape)))

    def _roughness(self, n: int) -> float:
        """How much the slope of a state changes by the rounding of its sum: much if ``func`` is stiff."""
        field = self.plan.field
        z = self.states[n].reshape(field.shape)
        assert self.size is not None
        moved = z + rounding_of(torch.ones_like(z)) * self.size
        return float(largest(torch.sub(field(n, moved), field(n, z))))

    def verdict(self) -> None:
        """Raise unless all compared slopes were the same, up to rounding."""
        if not self.off:
            return
        rough, fine = _tolerances(self.plan)
        sizes = torch.stack([x for n, off in self.off.items() for x in (off, *self.sizes[n])])  # one transfer for all
        excess = {}
        for n, (off, slope, state) in zip(self.off, sizes.view(-1, 3).tolist(), strict=True):
            excess[n] = off - rough * slope - fine / min(1.0, self.plan.step) * state
        stiff = self.plan.scheme.implicit and self.plan.field.impure is None
        if all(x <= 0 or (stiff and x <= 16 * self._roughness(n)) for n, x in excess.items()):
            return
        raise ChangedFunctionError(
            "func returns other values in the backward pass than in the forward pass, so that the gradient would be "
            "wrong: something that it uses was changed before backward() (weights or buffers in place, a variable of "
            "a loop), or it keeps state, or draws random numbers from a generator of its own or in some evaluations "
            "only. Call backward() before such changes and let func depend on (t, z, *args) alone, or use "
            "adjoint='direct', which keeps the graphs of the forward pass."
        )


def largest(x: Tensor) -> Tensor:
    """The largest absolute value, NaN if there is a NaN; makes no second tensor of the size of ``x``."""
    return torch.linalg.vector_norm(x, math.inf)


def _tolerances(plan: Plan) -> tuple[float, float]:
    """How far slopes may differ, relative to slopes and to states per step: rows are recomputed in another order."""
    if plan.field.autocast is not None or plan.storage.dtype is not None:  # lower precision
        return 0.1, 1e-2
    structure, implicit = plan.field.structure, plan.scheme.implicit  # a stiff func amplifies the rounding of states
    if structure.dtype == torch.float64:
        return 1e-8, 1e-6 if implicit else 1e-12
    # matrix products on a GPU may have ten bits, and their rounding depends on the shapes
    return 2e-5 if structure.device.type == "cpu" else 5e-3, 1e-3 if implicit else 1e-5
