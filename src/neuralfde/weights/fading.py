"""The kernel as a sum of exponentials in closed form: weights on any increasing times in O(N) numbers.

The substitution ``s = e^x`` in the Laplace integral of the kernel, and the trapezoid rule in ``x``, give::

    t^{β-1}/Γ(β) = sin(πβ)/π ∫ e^{-t e^x} e^{(1-β)x} dx  ≈  Σ_i c_i e^{-s_i t}

with ``s_i = e^{iΔ}``, ``c_i = Δ sin(πβ)/π s_i^{1-β}``; the error is about ``e^{-π²/Δ}`` (Trefethen and Weideman 2014).
All terms with rates up to the slowest rate σ that is kept add up to ``C_0 - C_1 t``, within the tolerance; both are
geometric series. They are replaced by a constant and a multiple of ``e^{-σt}`` with the same two moments. So the rates
do not depend on the order, and the coefficients are analytic in it, also at β = 1, where only the constant remains.

The newest cell is not summed like this: it is integrated by the rule of the scheme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.cells import cell_integrals
from ..base.policy import DENSE_CELLS, OWN_WEIGHTS
from ..base.torch_private import is_constant
from ..special.gamma import sinc
from .kernel import Kernel
from .meshes import between, one_cell, share_ahead
from .uniform import power_or_zero


@dataclass(frozen=True)
class Rates:
    """The rates 0 and ``e^{iΔ}``, i = lowest … highest."""

    spacing: float
    lowest: int
    highest: int

    @staticmethod
    def for_lags(shortest: float, longest: float, tol: float) -> Rates:
        """The fewest rates that give the kernel with a relative error ``tol`` at all lags in this range."""
        digits = math.log(1 / tol)
        spacing = math.pi**2 / (digits + 3)
        lowest = math.floor(math.log(math.sqrt(tol) / longest) / spacing)
        highest = math.ceil(math.log((digits + 6) / shortest) / spacing)
        return Rates(spacing, lowest, max(highest, lowest + 1))

    @property
    def values(self) -> Tensor:
        """All rates, (count,), float64."""
        x = torch.arange(self.lowest, self.highest + 1, dtype=torch.float64) * self.spacing
        return torch.cat([torch.zeros(1, dtype=torch.float64), torch.exp(x)])

    def coefficients(self, order: Tensor) -> Tensor:
        """The coefficients (count, groups) for orders (groups,) in (0, 1]; differentiable."""
        rest = 1 - order
        sine = torch.sin(math.pi * rest) / math.pi  # sin(πβ)/π, exactly 0 at β = 1
        x = torch.arange(self.lowest, self.highest + 1, dtype=torch.float64)[:, None] * self.spacing
        c = self.spacing * sine * torch.exp(rest * x)
        whole = sinc(rest) * torch.exp(rest * x[0]) / _mean_decay(rest * self.spacing)
        ramp = c[0] / -torch.expm1(-(1 + rest) * self.spacing)
        return torch.cat([(whole - ramp)[None], ramp[None], c[1:]])


def kernel(cells: tuple[str, ...], order: Tensor, times: Tensor, horizon: Tensor, rates: Rates) -> Kernel:
    """The kernel of a scheme whose sums integrate by the rules ``cells``, on increasing times (steps + 1,).

    Its ``weights`` are (sums, numbers + rates, groups): first the weights of each row's newest cell for the slope one
    step before (and two, if a rule needs it), then the coefficients of the exponentials. If the order is constant,
    three numbers replace the former, see :func:`newest`: the order in two parts, so that no digit is lost in the dtype
    of the state, and a factor of all weights. The table is needed otherwise, because the weights must be linear in
    these numbers to be differentiated. Since ``D^β_t = T^{-β} D^β_s``, a horizon T is a factor T^β.
    """
    gain = torch.exp(order * torch.log(horizon))
    far = gain * rates.coefficients(order)
    if is_constant(order) and is_constant(horizon):
        rest = (order - order.to(torch.bfloat16).to(order)).detach()
        near = [torch.stack([order - rest, rest, gain])] * len(cells)
        local = gain.new_zeros(len(times), len(gain))
        for k in range(0, len(times) - 1, OWN_WEIGHTS):  # in parts, so that only the result grows with the steps
            lengths = times[k : k + OWN_WEIGHTS + 1].diff()[:, None]
            local[k + 1 : k + 1 + len(lengths)] = gain * newest(cells[0], order, lengths)[0]
    else:
        lengths, lags = torch.cat([torch.zeros_like(times[:1]), times.diff()])[:, None], 1 + ("ahead" in cells)
        near = [gain * torch.cat(newest(cell, order, lengths)[1 : 1 + lags]) for cell in cells]
        local = gain * newest(cells[0], order, lengths)[0]
    weights = torch.stack([torch.cat([own, far]) for own in near])
    return Kernel(
        weights,
        local,
        first=int(cells[0] == "right"),
        dense=lambda positions: _dense(cells[0], order, times, horizon, rates, positions),
    )


def _dense(cell: str, order: Tensor, times: Tensor, horizon: Tensor, rates: Rates, positions: Tensor) -> Tensor:
    """As :func:`~.meshes.between`, with all but the last two cells before each position summed as exponentials."""
    steps = times.shape[0] - 1
    if positions.shape[1] > 1 or steps < DENSE_CELLS:
        return between(cell, order, times[:, None] * horizon)(positions)
    low = positions[:, 0].long().clamp(max=steps - 1)
    here = torch.lerp(times[low], times[low + 1], positions[:, 0] - low)
    found = torch.zeros(len(low), steps + 1, order.shape[0], dtype=torch.float64)
    for k in (0, 1):  # the cell of each position, and the one before
        n, part = low - k, (positions[:, 0] - low if k == 0 else torch.ones_like(here))
        whole, left = one_cell(order, here, times[n.clamp(min=0)], times[n.clamp(min=0) + 1])
        right = {"left": 0 * whole, "right": whole}.get(cell, (whole - left) * part[:, None]) * (n >= 0)[:, None]
        rows = torch.arange(len(low))
        for ends, share in ((n, whole * (n >= 0)[:, None] - right), (n + 1, right)):
            found = found.index_put((rows, ends.clamp(min=0)), share, accumulate=True)
    far, s = rates.coefficients(order), rates.values
    for first in range(0, int(low.max()) - 1, DENSE_CELLS):
        last = min(first + DENSE_CELLS, steps)
        ends = times[first + 1 : last + 1]
        p, q = (x[0] for x in cell_integrals((cell,), (ends - times[first:last])[:, None], s))  # (cells, K)
        late = low - 1 >= last  # positions for which all cells of the block are distant: a product of two factors
        then = torch.exp(-(here[late] - ends[-1])[:, None] * s)[:, None] * far.T  # (times, groups, K)
        fade = torch.exp(-(ends[-1] - ends)[:, None] * s)
        amid = (low - 1 > first) & ~late
        near = torch.exp(-(here[amid, None] - ends).clamp(min=0)[..., None] * s)  # (times, cells, K)
        near = torch.where((torch.arange(first, last) < low[amid, None] - 1)[..., None], near, 0.0)
        for x, place in ((p, slice(first, last)), (q, slice(first + 1, last + 1))):
            found[late, place] += (then @ (fade * x).T).transpose(1, 2)
            found[amid, place] += (near * x) @ far
    return torch.exp(order * torch.log(horizon)) * found


def newest(cell: str, order: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of each row's newest cell for the slopes at its end, one step before and two: (steps + 1, groups).

    The rule ``"ahead"`` is linear, with the slope at the end extrapolated from the two before.
    """
    end = power_or_zero(lengths, order) * torch.exp(-torch.lgamma(order + 2))
    return by_rule(cell, order, end, share_ahead(lengths, torch.cat([lengths[:1], lengths[:-1]])))


def by_rule(cell: str, order: Tensor, end: Tensor, share: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same from ``end = h^β/Γ(β+2)`` and the share of extrapolation, see :func:`~.meshes.share_ahead`."""
    none = torch.zeros_like(end)
    if cell == "linear":
        return end, order * end, none
    if cell == "ahead":
        return none, (1 + order + share) * end, -share * end
    whole = (1 + order) * end
    return (none, whole, none) if cell == "left" else (whole, none, none)


def _mean_decay(x: Tensor) -> Tensor:
    """``(1 - e^{-x})/x``, by its series near 0."""
    small = x.abs() < 1e-4
    safe = torch.where(small, 1.0, x)
    return torch.where(small, 1 - x / 2 + x**2 / 6, -torch.expm1(-safe) / safe)
