"""What may be wrong with a fit that has converged, and warnings about it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .intervals import Uncertainty
from .problem import Problem
from .unknowns import ORDER

#: Deviations of the autocorrelation from 0 that count as seen: independent residuals reach them once in 200 fits.
_SEEN = 2.6


class FitWarning(UserWarning):
    """A fit may be less reliable than it seems; the base class of all warnings of ``fit``."""


class IdentifiabilityWarning(FitWarning):
    """The data do not determine an unknown, so its estimate means little."""


class StepWarning(FitWarning):
    """Halving the solver's step moves an estimate by more than the half-width of its interval."""


class ResidualWarning(FitWarning):
    """Neighbouring residuals are correlated, while the intervals assume that they are independent."""


class BoundWarning(FitWarning):
    """An estimate lies at its bound: the data favour values beyond it, and its interval is not symmetric."""


@dataclass(frozen=True)
class Diagnostics:
    """What the residuals and the Jacobian reveal about a fit.

    Attributes:
        autocorrelation: the correlation of neighbouring residuals of a trajectory, from -1 to 1; near 0 if the model
            fits.
        correlated: whether it is significantly above 0, so that the intervals are too narrow.
        at_bound: the unknowns at a bound for which the data favour values beyond it.
        undetermined: the unknowns that the data do not determine, alone or because only a combination of them matters.
    """

    autocorrelation: float
    correlated: bool
    at_bound: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()

    @property
    def widening(self) -> float:
        """The factor by which intervals would widen for noise correlated by ``autocorrelation`` from value to value."""
        r = min(max(self.autocorrelation, 0.0), 0.99)
        return ((1 + r) / (1 - r)) ** 0.5

    def lines(self) -> list[str]:
        """One sentence for everything that was found."""
        found = []
        if self.correlated:
            found.append(
                f"neighbouring residuals are correlated ({self.autocorrelation:.2f}): the intervals are too narrow, "
                f"by a factor of about {self.widening:.1f} if it is noise that persists"
            )
        if self.at_bound:
            found.append(f"at its bound, where the data would have it beyond: {_listed(self.at_bound)}")
        if self.undetermined:
            found.append(f"not determined by the data: {_listed(self.undetermined)}")
        return found


def diagnose(problem: Problem, flat: Tensor, residuals: Tensor, sure: Uncertainty | None) -> Diagnostics:
    """Look at residuals (T, B, m), NaN where nothing was measured, and at what the Jacobian said."""
    count = int((~residuals.isnan()).sum())
    r, pairs = autocorrelation(residuals)
    size = float((problem.data.scale * problem.data.values).square().sum()) / max(1, count)
    real = problem.data.calibrated or float(residuals.nan_to_num().square().sum()) / max(1, count) > 1e-12 * size
    correlated = real and r * pairs**0.5 > _SEEN
    if sure is None:
        return Diagnostics(r, correlated)
    down, up = problem.unknowns.room(flat)
    names = problem.unknowns.labels()
    beyond = ((sure.step <= down) | (sure.step >= up)) & ~sure.blind
    return Diagnostics(r, correlated, _pick(names, beyond), _pick(names, sure.blind))


def autocorrelation(residuals: Tensor) -> tuple[float, int]:
    """``Σ r_i r_{i+1} / Σ r_i²`` over neighbouring values of every column, skipping NaN, and the number of pairs."""
    product, square, pairs = 0.0, 0.0, 0
    for column in residuals.flatten(1).T:
        kept = column[~column.isnan()]
        product += float(kept[1:] @ kept[:-1])
        square += float(kept @ kept)
        pairs += max(0, len(kept) - 1)
    return (product / square if square > 0 else 0.0), pairs


def warn_of(found: Diagnostics, order_checked: bool, explained: bool) -> None:
    """Issue what the diagnostics found, each with what to do.

    A profile has said all about the order where that was checked; too long a step explains correlated residuals.
    """
    lost = [n for n in found.undetermined if n != ORDER or not order_checked]
    if lost:
        warnings.warn(
            f"the data do not determine {_listed(lost)}: the predictions do not depend on them, or only on a "
            "combination of them, or there are no more values than unknowns. Fix some of them, or measure more; for a "
            "network, whose weights mean nothing one by one, pass intervals=None.",
            IdentifiabilityWarning,
            stacklevel=3,
        )
    if found.at_bound:
        warnings.warn(
            f"{_listed(found.at_bound)} ended at a bound, where the loss still falls: the other estimates depend on "
            "that bound. Widen bounds= (or order_bounds=), or fix the value if the bound is certain.",
            BoundWarning,
            stacklevel=3,
        )
    if found.correlated and not explained:
        warnings.warn(
            f"neighbouring residuals are correlated ({found.autocorrelation:.2f}), and the intervals take them as "
            f"independent: they are too narrow, by a factor of about {found.widening:.1f} if it is noise that "
            "persists. A term may be missing in the model, or the first value is noisy (learn_initial=True); look at "
            "residuals over time.",
            ResidualWarning,
            stacklevel=3,
        )


def _pick(names: list[str], mask: Tensor) -> tuple[str, ...]:
    return tuple(n for n, hit in zip(names, mask.tolist(), strict=True) if hit)


def _listed(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return ", ".join(names[:4] if more else names) + more
