"""The march that finds a mesh for a tolerance: one trial step after the other, without gradients."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..base.policy import (
    ADAPTIVE_COARSER,
    ADAPTIVE_DAMPED,
    ADAPTIVE_FIRST,
    ADAPTIVE_FIRST_SHARE,
    ADAPTIVE_FORESEEN,
    ADAPTIVE_KERNEL,
    ADAPTIVE_PASSES,
    ADAPTIVE_STAGE,
    ADAPTIVE_STIFFNESS,
    ADAPTIVE_WEIGHT,
    JUMP_LENGTH,
)
from ..base.structure import all_finite, extent
from ..errors import ConvergenceError, NonFiniteError
from ..schemes import OneStage, Scheme, Stages
from .controller import Tolerance, Trial, cell_error, next_length
from .jumps import Jumps
from .past import Past


@dataclass(frozen=True)
class Equation:
    """``D^β z = f(t, z)`` from time 0, in rows (groups, width).

    Attributes:
        slope: from a time and a state to its slope.
        shape: the shape of a state for the scheme and for ``slope``.
        order: (groups,), float64.
        gain: (groups,), float64: a factor of all weights.
        initial: z_0, (groups, width).
        known: from a time to the contribution of an observed past there, which replaces z_0.
    """

    slope: Callable[[float, Tensor], Tensor]
    shape: torch.Size
    order: Tensor
    gain: Tensor
    initial: Tensor
    known: Callable[[float], Tensor] | None = None


@dataclass(frozen=True)
class Found:
    """The times at which the steps of the solve end, half as long as those of the march; the number of steps that were
    rejected; and the last state."""

    times: Tensor
    rejected: int
    state: Tensor


@torch.no_grad()
def find_mesh(
    equation: Equation,
    scheme: Scheme,
    end: float,
    tolerance: Tolerance,
    jumps: Jumps | None = None,
    until: Callable[[float, Tensor], bool] | None = None,
    lag: float = math.inf,
    outputs: Sequence[float] = (),
) -> Found:
    """March from 0 to ``end``. Only accepted steps change anything, so that rejected ones need not be undone.

    The march stops just before each jump and starts again after it. It ends at the first accepted step for which
    ``until(time, state)`` is true. No step is longer than ``lag``, the shortest delay after which ``slope`` uses the
    states again; these are linear between steps, and that error is held to the tolerance too. A step ends at a time of
    ``outputs`` where the state between steps would not meet the tolerance.
    """
    power, most = 1.0 + (scheme.cells[0] == "linear"), float(equation.order.max())
    time, state = 0.0, equation.initial
    slope = equation.slope(time, state.view(equation.shape)).view_as(state)
    if not all_finite(slope):
        raise NonFiniteError(
            "func is NaN or infinite at the initial time, in the initial state, where every solve begins. Check func "
            "there, or take a term out of it that is infinite at that time, such as t ** -0.3: its fractional integral "
            "is a known part of the solution."
        )
    if 2 * end / lag > tolerance.max_steps:
        raise ConvergenceError(
            f"no step may be longer than the lag of {lag:.3g}, and {tolerance.max_steps} of half that length do not "
            f"reach the end, {end:.6g} after the start. Ask for a shorter time, or give a larger max_steps=."
        )
    length = min(ADAPTIVE_FIRST_SHARE * end, _first_length(equation, state, slope, tolerance))
    past = Past(
        scheme.cells, equation.order, equation.gain, length, end, ADAPTIVE_KERNEL * min(tolerance.rtol, 1.0), state
    )
    past.begin(slope)
    jumped, states = torch.zeros_like(state), [state]
    ahead = [] if jumps is None else list(enumerate(jumps.times))
    times, rejected, trial, stages = array("d", [0.0]), 0, None, _roughly(scheme, tolerance, state).open_stages()
    aim: float | None = None
    while time < end:
        stop = ahead[0][1] - JUMP_LENGTH * end if ahead else end
        jumping = bool(ahead) and time >= stop
        if jumping and jumps is not None:
            k, stop = ahead.pop(0)
            jumped = jumped + jumps.by(k, state)
        if aim is not None:
            length, whole, stop = aim - time, length, aim
        else:
            length = whole = stop - time if jumping else _fitting(min(length, lag), stop - time)
        if 2 * len(times) > tolerance.max_steps or length <= 1e-15 * time or length < 1e-280:
            raise ConvergenceError(_gave_up(scheme, len(times) - 1, time, end, length, state, trial, tolerance))
        past.initial = jumped + (equation.initial if equation.known is None else equation.known(time + length))
        trial = _tried(equation, scheme, stages, past, time, length, states, tolerance, time + lag < end)
        excess = math.inf if trial is None else trial.excess
        accepted = trial is not None and (excess <= 1 or (jumping and math.isfinite(excess)))
        if trial is not None and accepted:
            if aim is None and not jumping and (aim := trial.first_lost(outputs, time, length)) is not None:
                continue  # a shorter step, which ends there
            past.accept(length, trial.slope)
            time, state = stop if length == stop - time else time + length, trial.state
            times.append(time)
            states = [*states[-1:], state]
            if until is not None and until(time, state):
                break
        elif jumping:
            raise ConvergenceError(_gave_up(scheme, len(times) - 1, time, end, length, state, trial, tolerance))
        else:
            rejected += 1
        if jumping:
            states = [state]
            past.begin(past.slopes[-1])
            length = _first_length(equation, state, past.slopes[-1], tolerance)
        else:
            length = next_length(length, excess, power, 0.0 if trial is None else trial.stiffness, most)
            length = max(length, whole) if accepted and aim is not None else length  # which would have been accepted
        aim = None
    return Found(_halved(torch.frombuffer(times, dtype=torch.float64)), rejected, state)


def refuse_hopeless(march: Callable[[Tolerance], Found], tolerance: Tolerance) -> None:
    """Raise if a tolerance needs far more steps than are allowed, extrapolating from marches with larger tolerances.

    A rule of second order needs about ``rtol^-½`` steps for a change of size 1.
    """
    most, by = tolerance.max_steps, ADAPTIVE_COARSER
    if most < ADAPTIVE_FORESEEN or tolerance.rtol * most**2 > 1:
        return
    try:
        few, more = (len(march(tolerance.times(by**k)).times) for k in (3, 2))
    except ConvergenceError as error:
        raise ConvergenceError(
            f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g} cannot be met, since larger tolerances cannot: {error}"
        ) from error
    needed = more * (more / few) ** 2
    if needed > 1.5 * most:  # a prediction, usually too low
        met = tolerance.times(by ** (2 - math.log(most / more) / math.log(more / few)))
        raise ConvergenceError(
            f"rtol={tolerance.rtol:g}, atol={tolerance.atol:g} would take about {needed:.0e} steps. max_steps={most} "
            f"steps meet about rtol={met.rtol:.0e}, atol={met.atol:.0e}. Use larger tolerances or max_steps=."
        )


def _halved(times: Tensor) -> Tensor:
    """The times with a new one in the middle of each step, except the tiny steps that end in a jump."""
    found = times.new_empty(2 * len(times) - 1)
    found[::2] = times
    torch.lerp(times[:-1], times[1:], 0.5, out=found[1::2])
    wide = times.diff() > 2 * JUMP_LENGTH * times[-1]
    if bool(wide.all()):
        return found
    kept = torch.ones_like(found, dtype=torch.bool)
    kept[1::2] = wide
    return found[kept]


def _tried(
    equation: Equation, scheme: Scheme, stages: Stages | None, past: Past, time: float, length: float,
    states: list[Tensor], tolerance: Tolerance, again: bool,
) -> Trial | None:  # fmt: skip
    """Try a step of this length from the last of ``states``; None if an implicit step is not solved.

    ``again``: the states will be used again by delays, so that their own error matters too.
    """
    before, shape, groups = states[-1], equation.shape, len(equation.order)
    sums, local = past.trial(length)
    x = [c.view(shape) for c in sums]
    w0 = local[0] if groups == 1 else local[:, None]
    seen: list[tuple[Tensor, Tensor]] = []  # the first and the last evaluation

    def f(z: Tensor) -> Tensor:
        v = equation.slope(time + length, z)
        seen[1:] = [(z, v)]
        return v

    v: Tensor | None
    if scheme.implicit:
        try:
            z, v = scheme.locate(f, x[0], w0, before.view(shape), stages, f"the step to t={time + length:g}")
        except ConvergenceError:
            lost = [v for _, v in seen if not all_finite(v)]
            return Trial(before, lost[0].view_as(before), lost[0].view_as(before).abs()) if lost else None
    else:
        z, v = scheme.evaluate(f, x, w0)
    assert v is not None
    state, slope = z.view_as(sums[0]), v.view_as(sums[0])
    linear = scheme.cells[0] == "linear"
    scale = tolerance.scale(before, state)
    rate, stiffness, passes = _rates(seen, w0, v, past.slopes[-1].view(shape), scale.view(shape))
    since = min(past.age + length, ADAPTIVE_PASSES * passes * length)
    signed = cell_error([*past.slopes, slope], [past.length, length], linear)
    cell, early = signed.abs(), past.reach(since).to(state)
    # for D^β e = rate · e it is t^β E_{β,β+1}(rate t^β): between its limits, t^β/Γ(β+1) early and 1/|rate| late
    damping = 1 - min(rate, 0.0) * early
    error = cell * early / damping
    if stages is not None and rate < 0 and float(damping.max()) > ADAPTIVE_DAMPED:
        error = _slow(stages, signed * early, early, shape, error)
    if linear and not scheme.implicit:
        error += (sums[0] + local[:, None] * slope - state).abs()  # what one more correction would change
    if again:
        error += cell_error([*states, state], [past.length, length], linear=True).abs()
    stable = math.inf if scheme.implicit else ADAPTIVE_STIFFNESS[scheme.cells[-1]]

    def between(ahead: float) -> float:
        return float((ADAPTIVE_WEIGHT * cell * past.reach(ahead).to(state) / scale).max())

    return Trial(state, slope, ADAPTIVE_WEIGHT * error / scale, stiffness / stable, between)


def _slow(stages: Stages, undamped: Tensor, weight: Tensor, shape: torch.Size, error: Tensor) -> Tensor:
    """The ``error`` that one rate for all elements has damped, but no smaller than the Jacobian damps it.

    An equation may be stiff in some directions alone, and errors in others stay: ``(I - w J)⁻¹`` tells them apart.
    """
    found = stages.damped(weight[0, 0] if len(weight) == 1 else weight, undamped.view(shape))
    return error if found is None else error.maximum(found.abs().view_as(error))


def _roughly(scheme: Scheme, tolerance: Tolerance, state: Tensor) -> Scheme:
    """The scheme with stages solved only as accurately as the tolerance needs, unless it has its own tolerance.

    That of a stage is relative to the largest element of a sample; what is allowed for small ones may be far below.
    """
    if not isinstance(scheme, OneStage) or scheme.solver.tol is not None:
        return scheme
    least = max(tolerance.atol / (extent(state) or 1.0), torch.finfo(state.dtype).eps / ADAPTIVE_STAGE)
    return replace(scheme, solver=replace(scheme.solver, tol=ADAPTIVE_STAGE * min(tolerance.rtol, least)))


def _rates(
    seen: list[tuple[Tensor, Tensor]], w0: Tensor, slope: Tensor, last: Tensor, scale: Tensor
) -> tuple[float, float, float]:
    """From the first and the last evaluation: the derivative of the slope along their difference, and its size times
    ``w0``; both are 0 if the two evaluations differ only by rounding. Also the number of steps like this one in which
    slopes change by their own size. All products are computed at once, with one transfer from the device.
    """
    (a, before), (b, after) = seen[0], seen[-1]
    change = after - before
    rows = torch.stack([b - a, change, w0 * change, b, slope, slope - last]).div_(scale).reshape(6, -1).double()
    products = (rows @ rows.T).tolist()
    by, _, weighed, size, now, turned = (math.sqrt(products[k][k]) for k in range(6))
    passes = now / max(turned, 1e-300)
    if not by > 1e3 * torch.finfo(b.dtype).eps * size:
        return 0.0, 0.0, passes
    return products[0][1] / by / by, weighed / by, passes


def _first_length(equation: Equation, state: Tensor, slope: Tensor, tolerance: Tolerance) -> float:
    """The step size over which the initial slope changes the state by a share of the root of the tolerance."""
    allowed = ADAPTIVE_FIRST * tolerance.scale(state) / math.sqrt(tolerance.rtol)
    order = equation.order.to(slope)[:, None]
    weight = torch.exp(-torch.lgamma(order + 1)) * equation.gain.to(slope)[:, None]
    found = float(((torch.log(allowed) - torch.log(weight * slope.abs())) / order).min())  # infinite without a slope
    return math.exp(min(max(found, -600.0), 600.0)) if found > -math.inf else 1.0


def _fitting(length: float, rest: float) -> float:
    """The size of the next step: the last two before a stop get about the same size."""
    return rest if length >= rest else rest / 2 if 2 * length > rest else length


def _gave_up(
    scheme: Scheme, steps: int, time: float, end: float, length: float, state: Tensor, trial: Trial | None,
    tolerance: Tolerance,
) -> str:  # fmt: skip
    limit = f"{2 * steps} steps" if 2 * steps >= tolerance.max_steps - 1 else f"a step of {length:.3g}"
    if trial is None:
        culprit = "an implicit step could not be solved"
    elif not bool(torch.isfinite(trial.error).all()):
        culprit = "func, or the state, becomes NaN or infinite there"
    else:
        worst = int(trial.error.argmax())
        value, slope = float(state.flatten()[worst]), float(trial.slope.flatten()[worst])
        culprit = f"the largest error is that of element {worst} of the state, z={value:.4g} with slope {slope:.4g}"
    stiff = "" if scheme.implicit else "method='trapezoid' for a stiff equation, and "
    return (
        f"the solve to rtol={tolerance.rtol:g}, atol={tolerance.atol:g} has reached t={time:.6g} of {end:g} (from its "
        f"start) and gives up with {limit}: {culprit}. Use {stiff}a solve on "
        "either side of a discontinuity; a solution that blows up has no values beyond. Otherwise use larger "
        "tolerances or max_steps=."
    )
