"""Whether the data know the order: the loss minimised over everything else, as a function of the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .intervals import robust_variance, wide
from .optimisers import LevenbergMarquardt, Optimiser
from .problem import UNSOLVABLE, Problem
from .unknowns import ORDER, Unknowns

#: Widest 95 % range of the order that still counts as known.
RESOLUTION = 0.25


@dataclass(frozen=True)
class Profile:
    """The profile of the loss over the order.

    Attributes:
        orders: where the order was held fixed.
        losses: the least loss over all other unknowns there.
        threshold: orders with a loss up to this one are compatible with the data at 95 %.
        interval: the range of compatible orders.
        identifiable: that range is narrower than ``resolution``.
    """

    orders: tuple[float, ...]
    losses: tuple[float, ...]
    threshold: float
    interval: tuple[float, float]
    identifiable: bool
    resolution: float = RESOLUTION


def profile(
    problem: Problem,
    flat: Tensor,
    orders: Sequence[float] | None = None,
    optimiser: Optimiser | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Refit all unknowns but the order at each of ``orders`` (default: nine over the allowed range).

    An order is compatible with the data where the sum of squares exceeds its minimum by less than 3.84 noise
    variances (the likelihood ratio at 95 %); by the square of Student's t if the variance is itself an estimate.
    """
    values = problem.unknowns.split(flat)
    best = float(values[ORDER])
    bound = problem.unknowns.bounds[ORDER]
    if orders is None:
        spread = torch.linspace(max(bound.low, 0.05), bound.high, 7, dtype=torch.float64).tolist()
        near = [max(best - 0.05, bound.low, 0.02), min(best + 0.05, bound.high)]
        orders = [o for o in (*spread, *near) if o != 1 or bound.high == 1]  # with a velocity, orders above 1 alone
    orders = sorted({round(float(o), 6) for o in orders} - {round(best, 6)})
    shapes = {n: s for n, s in problem.unknowns.shapes.items() if n != ORDER}
    others = Unknowns(shapes, {n: problem.unknowns.bounds[n] for n in shapes})
    chosen = LevenbergMarquardt(iterations=12, tolerance=1e-5) if optimiser is None else optimiser
    count = problem.data.count
    with torch.no_grad():
        least = float(problem.loss(flat))
    found = {best: least}
    # outwards from the estimate on each side, each fit starting where its neighbour ended
    for side in ([o for o in orders if o > best], [o for o in reversed(orders) if o < best]):
        start = others.to_free(others.pack(values)) if shapes else torch.zeros(0, dtype=torch.float64)
        at, slope = best, torch.zeros_like(start)
        for order in side:
            fixed = replace(problem, unknowns=others, order=order)
            try:
                if shapes:
                    guess = start + slope * (order - at)  # along the line through the two before
                    path = chosen.minimise(fixed, guess, lambda *_: False, None)
                    slope = (path.free - start) / (order - at)
                    at, start, found[order] = order, path.free, path.history[-1]
                else:
                    with torch.no_grad():
                        found[order] = float(fixed.loss(start))
            except UNSOLVABLE:  # the solution blows up at this order: further out is no better
                break
            if progress is not None:
                progress(len(found) - 1, len(orders))
    least = min(found.values())
    freedom = max(1, count - problem.unknowns.size)
    floor = 1e-12 * float((problem.data.scale * problem.data.values).square().sum()) / count
    variance = 1.0 if problem.data.calibrated else max(least * count / freedom, floor)
    if problem.robust is not None:
        with torch.no_grad():
            residual = problem.residuals(flat)[problem.data.seen]
        variance = max(float(robust_variance(residual, problem.robust, problem.unknowns.size)), floor)
    threshold = least + wide(problem, freedom) ** 2 * variance / count
    tested = tuple(sorted(found))
    losses = tuple(found[o] for o in tested)
    interval = _crossing(tested, losses, threshold)
    return Profile(tested, losses, threshold, interval, interval[1] - interval[0] <= RESOLUTION)


def _crossing(orders: tuple[float, ...], losses: tuple[float, ...], threshold: float) -> tuple[float, float]:
    """Where the profile crosses the threshold: between nodes the square root of the excess is taken as linear."""
    least = min(losses)
    height = [(max(v - least, 0.0)) ** 0.5 for v in losses]
    level = (threshold - least) ** 0.5
    inside = [k for k, h in enumerate(height) if h <= level]
    low, high = orders[inside[0]], orders[inside[-1]]
    if inside[0] > 0:
        k = inside[0]
        part = (height[k - 1] - level) / (height[k - 1] - height[k])
        low = orders[k - 1] + part * (orders[k] - orders[k - 1])
    if inside[-1] < len(orders) - 1:
        k = inside[-1]
        part = (level - height[k]) / (height[k + 1] - height[k])
        high = orders[k] + part * (orders[k + 1] - orders[k])
    return low, high
