"""Forecasting: a learned order against order 1, an LSTM and a naive forecast; nothing is measured where no file is."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

from neuralfde_experiments.data.series import SERIES
from neuralfde_experiments.forecast_models import MODELS
from neuralfde_experiments.forecasting import NAIVE, errors, paired

from .markdown import measured, table
from .record import Row, known

QUESTION, PART = "forecasting", "five sets"
LEARNED, ONE, LSTM = MODELS
NAMES = {"etth1": "ETTh1", "etth2": "ETTh2", "exchange": "exchange rates", "fulda": "Fulda", "demand": "demand"}
ABSENT = "Not measured yet."


def results() -> Row | None:
    """The run, if there is one."""
    return next((r for r in known(QUESTION) if r["part"] == PART), None)


def forecasts(kind: str) -> str:
    """Means over the seeds by set and horizon, the least in bold, and the paired differences."""
    found = results()
    if found is None:
        return ABSENT
    lines = []
    for (name, horizon), own in errors(found["rows"], kind).items():
        means = {m: statistics.fmean(own[m].values()) for m in (*MODELS, NAIVE) if m in own}
        least = min(means.values()) if means.keys() == {*MODELS, NAIVE} else None
        shown = {m: f"**{x:.4f}**" if x == least else f"{x:.4f}" for m, x in means.items()}
        gaps = [_gap(paired(own, other)) for other in (ONE, LSTM)]
        seeds = min(len(own.get(m, ())) for m in MODELS)
        lines.append([NAMES[name], horizon, *(shown.get(m, "") for m in (*MODELS, NAIVE)), *gaps, seeds])
    head = ["set", "steps", "learned β", "β = 1", "LSTM", "naive", "learned − β = 1", "learned − LSTM", "seeds"]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}{_elsewhere(found['rows'])}"


def _elsewhere(rows: list[Row]) -> str:
    """How many trainings were made on another machine than the others."""
    count = Counter(r["hardware"] for r in rows if "hardware" in r)
    return "".join(f" *{n} of the {len(rows)} on {where}.*" for where, n in count.items())


def _gap(found: tuple[float, float] | None) -> str:
    return "" if found is None or math.isnan(found[1]) else f"{found[0]:+.4f} ± {found[1]:.4f}".replace("-", "−")


def verdicts(other: str) -> str:
    """Of how many sets and horizons the paired difference is beyond two standard errors, and to which side."""
    found = results()
    if found is None:
        return ABSENT
    every = [paired(own, other) for own in errors(found["rows"]).values()]
    gaps = [g for g in every if g is not None and not math.isnan(g[1])]
    better, worse = (sum(sign * g < -2 * e for g, e in gaps) for sign in (1, -1))
    return f"{better} of {len(gaps)} better, {worse} worse, {len(gaps) - better - worse} within two standard errors"


def naive_wins() -> str:
    """Where no trained model is below the naive forecast."""
    found = results()
    if found is None:
        return ABSENT
    lost = []
    for (name, horizon), own in errors(found["rows"]).items():
        means = {m: statistics.fmean(own[m].values()) for m in own}
        if means.keys() == {*MODELS, NAIVE} and means[NAIVE] == min(means.values()):
            lost.append(f"{NAMES[name]} at {horizon}")
    return ", ".join(lost) or "nowhere"


def setup() -> str:
    """For each set: how many numbers each model has, the naive season, and the orders that were learned."""
    found = results()
    if found is None:
        return ABSENT
    lines = []
    for name in SERIES:
        rows = [r for r in found["rows"] if r["set"] == name]
        sizes = [next((f"{r['parameters']:,}" for r in rows if r["model"] == m), "") for m in MODELS]
        learned = [r for r in rows if r["model"] == LEARNED]
        orders = [f"{statistics.fmean(r['order'] for r in learned):.2f}", _range(learned)] if learned else ["", ""]
        seasons = dict.fromkeys(r["season"] for r in sorted(rows, key=lambda r: r["horizon"]) if r["model"] == NAIVE)
        lines.append([NAMES[name], *sizes, ", ".join(map(str, seasons)), *orders])
    head = ["set", "parameters: learned β", "β = 1", "LSTM", "naive repeats, steps", "mean learned β", "from … to"]
    return table(head, lines, right=1)


def _range(rows: list[Row]) -> str:
    return f"{min(r['orders'][0] for r in rows):.2f} … {max(r['orders'][1] for r in rows):.2f}"


def figure() -> Any:
    """Paired differences in per cent of the other error, with two standard errors."""
    from matplotlib.figure import Figure

    found = results()
    assert found is not None
    every = errors(found["rows"])
    picture = Figure(figsize=(9.0, 3.4))
    axes = picture.subplots(1, len(NAMES))
    for axis, (name, title) in zip(axes, NAMES.items(), strict=True):
        for k, (other, label) in enumerate(((ONE, "against β = 1"), (LSTM, "against the LSTM"))):
            points = []
            for j, own in enumerate(own for (s, _), own in every.items() if s == name):
                gap = paired(own, other)
                if gap is not None and not math.isnan(gap[1]):
                    scale = 100 / statistics.fmean(own[other].values())
                    points.append((j + 0.2 * (k - 0.5), gap[0] * scale, 2 * gap[1] * scale))
            if points:
                x, y, e = zip(*points, strict=True)
                axis.errorbar(x, y, yerr=e, fmt="os"[k], ms=4, lw=1.2, color=f"C{k}", label=label)
        ahead = [h for s, h in every if s == name]
        axis.set_xticks(range(len(ahead)), [str(h) for h in ahead])
        axis.axhline(0, color="#7d838d", lw=0.8)
        axis.tick_params(labelsize=8)
        axis.set_title(title)
    axes[0].set_ylabel("difference of squared errors, %")
    picture.supxlabel("steps ahead", fontsize=10)
    handles = next((a.get_legend_handles_labels() for a in axes if a.get_legend_handles_labels()[1]), ([], []))
    picture.legend(*handles, loc="lower right", ncols=2, fontsize=9, frameon=False)
    picture.tight_layout()
    return picture


PLACES = {
    "forecasting": lambda: forecasts("mse"),
    "forecasting-absolute": lambda: forecasts("mae"),
    "forecasting-setup": setup,
    "forecasting-against-one": lambda: verdicts(ONE),
    "forecasting-against-lstm": lambda: verdicts(LSTM),
    "forecasting-naive": naive_wins,
}
FIGURES = {"forecasting.png": (QUESTION, figure)}
