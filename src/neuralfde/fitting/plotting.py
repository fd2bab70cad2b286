"""The picture of a fit. Imported only when one is drawn, since matplotlib is optional."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from .result import Fit

#: Colours that stay apart in grey and for colour-blind readers (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw(fit: Fit, path: str | Path | None, labels: list[str] | None) -> Any:
    """See ``Fit.plot``."""
    count = fit.observed.shape[2]
    if labels is not None and (isinstance(labels, str) or len(labels) != count):
        raise InputError(f"labels={labels!r}: {count} names are needed, one for each observed variable, in a list.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = 2 if fit.profile is None else 3
    figure = Figure(figsize=(4.6 * panels, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels)
    _curves(fit, axes[0], labels)
    history = fit.history
    axes[1].plot(range(1, len(history) + 1), history, color=COLOURS[0], marker="o" if len(history) < 40 else None)
    _logarithmic(axes[1], history)
    axes[1].set(xlabel="iteration", ylabel="loss", title="loss")
    axes[1].xaxis.get_major_locator().set_params(integer=True)
    if fit.profile is not None:
        _profile(fit, axes[2])
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _curves(fit: Fit, ax: Any, labels: list[str] | None) -> None:
    times = fit.grid()
    curves = fit.predict(times)
    band = None if fit.covariance is None or not bool(fit.covariance.isfinite().all()) else fit.band(times)
    names = list(fit.variables) if labels is None else labels
    shown = min(fit.observed.shape[1], 2)
    for m in range(fit.observed.shape[2]):
        colour = COLOURS[m % len(COLOURS)]
        for b in range(shown):
            first = b == 0
            ax.plot(fit.times, fit.observed[:, b, m], "o", ms=4, color=colour, alpha=1 if first else 0.4)
            ax.plot(
                times, curves[:, b, m], "-" if first else "--", color=colour, alpha=1 if first else 0.5,
                label=names[m] if first else None,
            )  # fmt: skip
        if band is not None:
            low, high = (side[:, 0, m] for side in band)
            ax.fill_between(times, low, high, color=colour, alpha=0.15, lw=0, label=None if m else "95 % band")
    more = fit.observed.shape[1] - shown
    title = f"data (points) and fit, order {fit.order:.3f}"
    ax.set(xlabel="time", title=title + (f"; {more} more trajectories" if more else ""))
    ax.title.set_size(10)
    ax.legend(frameon=False)


def _profile(fit: Fit, ax: Any) -> None:
    assert fit.profile is not None
    p = fit.profile
    ax.plot(p.orders, p.losses, "o-", color=COLOURS[0], ms=4)
    ax.axhline(p.threshold, color=COLOURS[1], ls="--", label="95 % threshold")
    ax.axvspan(*p.interval, color=COLOURS[4], alpha=0.25, label="compatible orders")
    _logarithmic(ax, p.losses)
    ax.set(xlabel="order", ylabel="least loss", title="profile over the order")
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _logarithmic(ax: Any, losses: Iterable[float]) -> None:
    """A logarithmic axis, unless every loss is 0, as where a model meets data without noise exactly."""
    if any(loss > 0 for loss in losses):
        ax.set_yscale("log")
