"""What may be wrong with a fit that has converged, and warnings about it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from .intervals import Uncertainty
from .problem import Problem, shortened
from .unknowns import ORDER

#: Deviations of the autocorrelation from 0 that count as seen: independent residuals reach them once in 200 fits.
_SEEN = 2.6
#: Fewer values than these do not say how large residuals of a variable are.
_FEW = 8


class FitWarning(UserWarning):
    """A fit may be less reliable than it seems; the base class of all warnings of ``fit``."""


class IdentifiabilityWarning(FitWarning):
    """The data do not determine an unknown, so its estimate means little."""


class StepWarning(FitWarning):
    """Halving the solver's step moves an estimate by more than the half-width of its interval."""


class ResidualWarning(FitWarning):
    """Neighbouring residuals are correlated, while the intervals assume that they are independent."""


class NoiseWarning(FitWarning):
    """Residuals are larger than the ``noise=`` that was given, or, without it, not of one size for all variables."""


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
        excess: how many times larger than ``noise=`` residuals are; 1 if that is not significant, or none was given.
        uneven: how many times larger residuals of one variable are than those of another, if no noise was given; 1 if
            that is less than 2 or not significant.
    """

    autocorrelation: float
    correlated: bool
    at_bound: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()
    excess: float = 1.0
    uneven: float = 1.0

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
        if self.excess > 1:
            found.append(f"residuals are {self.excess:.3g} times the noise= given, which the intervals count on")
        if self.uneven > 1:
            found.append(
                f"residuals of one column are {self.uneven:.3g} times those of another, and the intervals take them "
                "as of one size: give noise= or weights="
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
    # far below the noise that was given, or the data, they are what the solver leaves
    real = float(residuals.nan_to_num().square().sum()) / max(1, count) > (
        1e-6 if problem.data.calibrated else 1e-12 * size
    )
    correlated = real and r * pairs**0.5 > _SEEN
    if sure is None:
        return Diagnostics(r, correlated)
    excess, uneven = 1.0, 1.0
    if problem.data.calibrated and problem.robust is None:
        excess = _excess(residuals, len(flat))
    elif real and not problem.data.calibrated:
        uneven = _uneven(shortened(residuals, problem.robust))
    down, up = problem.unknowns.room(flat)
    names = problem.unknowns.labels()
    beyond = ((sure.step <= down) | (sure.step >= up)) & ~sure.blind
    return Diagnostics(r, correlated, _pick(names, beyond), _pick(names, sure.blind), excess, uneven)


def _excess(residuals: Tensor, unknowns: int) -> float:
    """The deviation of residuals of deviation 1, if that is too large to be chance: χ² as a normal distribution."""
    kept = residuals[~residuals.isnan()]
    freedom = len(kept) - unknowns
    square = float(kept.square().sum()) / max(1, freedom)
    return square**0.5 if freedom > 0 and square > 1 + _SEEN * (2 / freedom) ** 0.5 else 1.0


def _uneven(residuals: Tensor) -> float:
    """The largest ratio of deviations of two variables, from 2 on and beyond chance: log F as a normal distribution.

    Of eight values at least, since log F of few is skewed; with many variables some ratio is always large.
    """
    columns = [c[~c.isnan()] for c in residuals.flatten(0, 1).T]
    squares = [(max(float(c.square().mean()), 1e-300), len(c)) for c in columns if len(c) >= _FEW]
    if len(squares) < 2:
        return 1.0
    (high, many), (low, few) = max(squares), min(squares)
    most = NormalDist().inv_cdf(1 - 0.005 / (len(squares) * (len(squares) - 1)))
    seen = high > 4 * low and math.log(high / low) > most * (2 / many + 2 / few) ** 0.5
    return (high / low) ** 0.5 if seen else 1.0


def autocorrelation(residuals: Tensor) -> tuple[float, int]:
    """``Σ r_i r_{i+1} / Σ r_i²`` over neighbouring values of every column, skipping NaN, and the number of pairs."""
    product, square, pairs = 0.0, 0.0, 0
    for column in residuals.flatten(1).T:
        kept = column[~column.isnan()]
        product += float(kept[1:] @ kept[:-1])
        square += float(kept @ kept)
        pairs += max(0, len(kept) - 1)
    return (product / square if square > 0 else 0.0), pairs


def warn_of(
    found: Diagnostics,
    order_checked: bool = False,
    explained: bool = False,
    network: bool = True,
    known_start: bool = True,
) -> None:
    """Issue what the diagnostics found, each with what to do.

    A profile has said all about the order where that was checked; too long a step explains correlated residuals. Not
    every fit is one of a network, or takes the first value as known.
    """
    lost = [n for n in found.undetermined if n != ORDER or not order_checked]
    if lost:
        warnings.warn(
            f"the data do not determine {_listed(lost)}: the predictions do not depend on them, or only on a "
            "combination of them, or there are no more values than unknowns. Fix some of them, or measure more"
            + ("; for a network, whose weights mean nothing one by one, pass intervals=None." if network else "."),
            IdentifiabilityWarning,
            stacklevel=3,
        )
    if found.at_bound:
        warnings.warn(
            f"{_listed(found.at_bound)} ended at a bound, where the loss still falls: the other estimates depend on "
            "that bound. Widen bounds= (or order_bounds=), or fix the value if the bound is certain."
            + (" An order of 1 is that of the ordinary equation, without memory." if ORDER in found.at_bound else ""),
            BoundWarning,
            stacklevel=3,
        )
    if found.excess > 1 and not explained:
        warnings.warn(
            f"residuals are {found.excess:.3g} times the noise= given, and the intervals count on that noise. Either "
            "it is larger: leave noise= out, or pass weights=; or the model does not fit: look at residuals over time.",
            NoiseWarning,
            stacklevel=3,
        )
    if found.uneven > 1:
        warnings.warn(
            f"residuals of one column are {found.uneven:.3g} times those of another, and the intervals take them "
            "as of one size: too narrow for unknowns of the one, too wide for those of the other. Pass noise= or "
            "weights=, with a number for each column of the observations.",
            NoiseWarning,
            stacklevel=3,
        )
    if found.correlated and not explained:
        warnings.warn(
            f"neighbouring residuals are correlated ({found.autocorrelation:.2f}), and the intervals take them as "
            f"independent: they are too narrow, by a factor of about {found.widening:.1f} if it is noise that "
            "persists. A term may be missing in the model"
            + (", or the first value is noisy (learn_initial=True)" if known_start else "")
            + "; look at residuals over time.",
            ResidualWarning,
            stacklevel=3,
        )


def _pick(names: list[str], mask: Tensor) -> tuple[str, ...]:
    return tuple(n for n, hit in zip(names, mask.tolist(), strict=True) if hit)


def _listed(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return ", ".join(names[:4] if more else names) + more
