"""The distant past as a few moments per panel of rows, exact to rounding: this makes ``full`` cheap on long horizons.

A panel is P consecutive rows. Seen from at least P steps away, its weights are smooth: to the last digit of the state's
dtype they are a polynomial of low degree in the lag. So ``Σ_q w_{l+q} v_q = Σ_k a_k(l) m_k`` with r ≪ P moments
``m_k = Σ_q Q_{qk} v_q`` of the panel, where Q is an orthonormal basis of polynomials on its P points and
``a_k(l) = Σ_q w_{l+q} Q_{qk}``. The basis is the same for all weights and orders. Whether it suffices is checked for
the weights at hand; if it does not (kernels with kinks), the rows themselves are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..base.caches import Cache
from ..base.policy import PANELS_FEWEST, PANELS_LAGS, PANELS_LONG, PANELS_MANY, PANELS_WIDE


class _Sizes(NamedTuple):
    """Rows and moments of a panel, and how many units of rounding the error of a weight may have."""

    length: int
    moments: int
    misfit: float


_SIZES = {torch.float32: _Sizes(128, 11, 2), torch.float64: _Sizes(256, 22, 64)}
#: Solves with fewer steps have no panels.
FEWEST_STEPS = PANELS_FEWEST * min(size.length for size in _SIZES.values()) - 1
_BASES: Cache[Tensor] = Cache("bases of panels", 8)


class Panels:
    """The moments of the panels of one input, in a buffer (panels · r, groups, width) that is filled during the pass.

    With ``backward`` the buffer is filled from its end, so that the panels of a backward pass replace those of the
    forward pass that are no longer needed.
    """

    def __init__(self, table: Table, buffer: Tensor, backward: bool) -> None:
        self.table, self.buffer, self.backward = table, buffer, backward
        self.done = 0

    def slice(self, count: int) -> Tensor:
        """The moments of the first ``count`` panels, in the order of the buffer."""
        rows = count * self.table.moments
        return self.buffer[self.buffer.shape[0] - rows :] if self.backward else self.buffer[:rows]

    def take(self, rows: Tensor) -> None:
        """Compute the moments of the next panel from its rows (P, groups, width), in the order of their buffer."""
        r, at = self.table.moments, self.done
        self.done += 1
        low = self.buffer.shape[0] - (at + 1) * r if self.backward else at * r
        target = self.buffer[low : low + r].flatten(1)
        basis = self.table.basis.flip(1) if self.backward else self.table.basis
        torch.mm(basis, rows.flatten(1), out=target)


class Table:
    """The weights of a panel's moments by the lag of its latest row, for lags from P on: (sums, groups, lag, r)."""

    def __init__(self, length: int, moments: int, basis: Tensor, weights: Tensor) -> None:
        self.length, self.moments, self.basis, self.weights = length, moments, basis, weights

    def count(self, first: int) -> int:
        """The number of panels that end at least P steps before row ``first``."""
        return max(0, (first + 1) // self.length - 1)

    def block(self, first: int, rows: int, count: int, latest_first: bool) -> Tensor:
        """The weights of the moments of the first ``count`` panels in these rows: (sums, groups, rows, count · r)."""
        panels = torch.arange(count, device=self.weights.device)
        panels = panels.flip(0) if latest_first else panels
        last = (panels + 1) * self.length - 1  # the latest time in each panel
        lag = torch.arange(first, first + rows, device=self.weights.device)[:, None] - last
        return self.weights[:, :, lag - self.length].flatten(-2)

    def buffer(self, steps: int, row: Tensor) -> Tensor:
        """A buffer for the moments of all panels of a pass."""
        return row.new_empty(self.count(steps) * self.moments, *row.shape)


def panels_for(
    lags: Tensor, steps: int, row: Tensor, backward: bool, spare: tuple[Tensor, Sequence[Panels]] | None
) -> list[Panels]:
    """Panels for each input of a pass with these lag weights (sums, groups, steps + 1); none if they do not pay.

    ``spare`` are the weights and panels of the forward pass, whose table and buffer are reused.
    """
    held = spare[1][0] if spare is not None and spare[1] else None
    table = held.table if held is not None and spare is not None and torch.equal(spare[0], lags) else None
    table = table_for(lags, row) if table is None else table
    if table is None:
        return []
    first = table.buffer(steps, row) if held is None else held.buffer
    more = len(lags) - 1 if backward else 0
    return [Panels(table, b, backward) for b in (first, *[torch.empty_like(first) for _ in range(more)])]


def table_for(lags: Tensor, row: Tensor) -> Table | None:
    """The table for lag weights (sums, groups, steps + 1); None if moments do not pay or are not accurate enough."""
    length, moments, allowed = _SIZES[row.dtype]
    length = length if row.numel() <= PANELS_WIDE and lags.shape[-1] <= PANELS_MANY else PANELS_LONG
    if row.device.type != "cpu" or lags.shape[1] > 1 or lags.shape[-1] < PANELS_FEWEST * length:
        return None
    basis = _BASES.get((length, moments), lambda: _polynomials(length, moments))
    parts = []
    for spread, weights in _tabulated(lags, basis):
        misfit = (weights @ basis.t() - spread).abs().amax(-1)
        if bool((misfit > allowed * torch.finfo(row.dtype).eps * spread.abs().amax(-1)).any()):
            return None
        parts.append(weights.to(row))
    # the earliest row first, as in the buffer of a forward pass
    return Table(length, moments, basis.flip(0).t().to(row).contiguous(), torch.cat(parts, dim=2))


def _tabulated(lags: Tensor, basis: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The weights of a panel's rows and of its moments, for consecutive lags of its latest row, from lag P on."""
    length = basis.shape[0]
    for first in range(length, lags.shape[-1] - length + 1, PANELS_LAGS):
        spread = lags[..., first : first + PANELS_LAGS + length - 1].double().unfold(-1, length, 1)
        yield spread, spread @ basis


def _polynomials(length: int, count: int) -> Tensor:
    """Orthonormal polynomials of degree < count on ``length`` points: (length, count), float64."""
    x = torch.linspace(-1, 1, length, dtype=torch.float64)
    powers = [torch.ones_like(x), x]
    for _ in range(2, count):
        powers.append(2 * x * powers[-1] - powers[-2])  # Chebyshev polynomials: monomials would be ill-conditioned
    return torch.linalg.qr(torch.stack(powers[:count], dim=1))[0]
