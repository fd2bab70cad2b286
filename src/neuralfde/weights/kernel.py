"""The weights of one scheme on one grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Kernel:
    """The weights of one scheme on one grid, in float64.

    Attributes:
        weights: (sums, steps + 1, groups); ``weights[k, m]`` multiplies the slope ``m`` steps back in sum ``k``.
            Or, if the weights depend on both row ``n`` and slope ``j``, (sums, steps + 1, steps + 1, groups).
        local: (groups,), the weight ``w_0`` of the slope at the new point, zero for explicit schemes; or one for each
            row, (steps + 1, groups).
        start: (started, starts, steps + 1, groups) or None; extra weights of ``v_j``, j < starts, in row ``n`` of the
            first ``started`` sums.
        first: the first slope that enters the history: 1 if ``v_0`` does not, else 0.
        dense: a function from positions in steps, (times, 1 or groups), to the weights of the slopes in the scheme's
            continuous output there, (times, steps + 1, groups); None if output is linear between grid points.
        base: (initials, steps + 1, groups) or None; ``base_n = Σ_i base[i, n] z_0^{(i)}`` of the initial values
            ``z_0``, ``z'_0``; None means ``z_0`` alone.
        dense_base: the same function for ``base``: from positions to (initials, times, groups).
    """

    weights: Tensor
    local: Tensor
    start: Tensor | None = None
    first: int = 0
    dense: Callable[[Tensor], Tensor] | None = None
    base: Tensor | None = None
    dense_base: Callable[[Tensor], Tensor] | None = None
