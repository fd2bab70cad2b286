"""Does the order matter on a graph? Order 1, order 0.5 and the order learned, each with the same search."""

from __future__ import annotations

import itertools
import math
import statistics

from neuralfde_experiments.data.order_graphs import ORDER_GRAPHS

from .markdown import measured, table
from .record import Row, known

KINDS = ("1", "0.5", "learned")
#: F-GRAND-l of FROND's paper at order 1 and 0.5, its own split
PUBLISHED = {"airport-overlapping": {"1": "80.5", "0.5": "98.1\u00a0±\u00a00.2"}}
SPLITS = {"airport": "splits that share no node", "airport-overlapping": "the published split"}
NOTHING = "*Not measured yet.*"


def rows() -> list[Row]:
    return [r for run in known("graphs-order") for r in run["rows"]]


def waves(row: Row) -> bool:
    """Whether numbers among the features were turned into random waves."""
    return bool(row["settings"].get("waves"))


def reported(found: list[Row], dataset: str, in_waves: bool) -> dict[str, Row]:
    """The training on ten splits of each kind of order; of several, that which validation prefers."""
    best: dict[str, Row] = {}
    for r in found:
        if r["stage"] == "final" and r["dataset"] == dataset and waves(r) == in_waves:
            best[r["kind"]] = max(best.get(r["kind"], r), r, key=lambda r: r["val"])
    return best


def searched(dataset: str, in_waves: bool) -> int:
    """Settings tried with every kind of order, in the searches that came to a training on ten splits."""
    count = 0
    for run in known("graphs-order"):
        own = [r for r in run["rows"] if r["dataset"] == dataset and waves(r) == in_waves]
        if any(r["stage"] == "final" for r in own):
            tried: dict[str, set[str]] = {kind: set() for kind in KINDS}
            for r in own:
                if r["stage"] == "explore":
                    tried[r["kind"]].add(str({k: v for k, v in sorted(r["settings"].items()) if k != "order"}))
            count += len(set.intersection(*tried.values()))
    return count


def ahead(one: Row, other: Row) -> tuple[float, float]:
    """How far the first is ahead on the same splits, and the standard error of the mean."""
    theirs = {s["seed"]: s["test"] for s in other["splits"]}
    apart = [s["test"] - theirs[s["seed"]] for s in one["splits"]]
    return statistics.fmean(apart), statistics.stdev(apart) / math.sqrt(len(apart))


def difference(one: Row, other: Row) -> str:
    return "{:+.1f}\u00a0±\u00a0{:.1f}".format(*ahead(one, other))


def shown(row: Row | None, published: str | None) -> str:
    if row is None:
        return "none"
    own = f"{row['test']:.1f}\u00a0±\u00a0{row['deviation']:.1f}{' †' if row.get('cut') else ''}"
    return own if published is None else f"{own} (published: {published})"


def orders() -> str:
    """The table, or a word that there is none yet."""
    found = rows()
    lines = []
    for dataset, in_waves in itertools.product(ORDER_GRAPHS, (False, True)):
        best = reported(found, dataset, in_waves)
        if not best:
            continue
        cells = [shown(best.get(kind), PUBLISHED.get(dataset, {}).get(kind)) for kind in KINDS]
        ends = [s["order"] for s in best["learned"]["splits"]] if "learned" in best else []
        gains = [difference(best[k], best["1"]) if {k, "1"} <= best.keys() else "none" for k in KINDS[1:]]
        span = f"{min(ends):.2f}\u00a0…\u00a0{max(ends):.2f}" if ends else "none"
        kind = ["waves" if in_waves else "as they are", "ROC AUC" if ORDER_GRAPHS[dataset].auc else "accuracy"]
        lines.append([dataset, *kind, *cells, span, *gains, searched(dataset, in_waves)])
    if not lines:
        return NOTHING
    head = ["graph", "features", "test %", "order 1", "order 0.5", "order learned", "β at the end"]
    head += ["0.5 - order 1", "learned - order 1", "settings each"]
    return f"{table(head, lines)}\n\n{measured(*known('graphs-order'))}"


def features_alone() -> str:
    """Validation accuracies on Airport, order 1, with its features as they are and as waves, and all else the same."""
    return " and ".join(f"{_pair(name)} ({text})" for name, text in SPLITS.items())


def _pair(dataset: str) -> str:
    """The two accuracies of settings that were tried with order 1 in one run, with waves and without."""
    for run in known("graphs-order"):
        tried: dict[str, dict[float, float]] = {}
        for r in run["rows"]:
            if (r["dataset"], r["stage"], r["kind"]) == (dataset, "explore", "1"):
                rest = str({k: v for k, v in sorted(r["settings"].items()) if k != "waves"})
                tried.setdefault(rest, {})[r["settings"].get("waves", 0.0)] = r["val"]
        both = [found for found in tried.values() if 0.0 in found and len(found) > 1]
        if both:
            without = both[0].pop(0.0)
            return f"from {without:.1f} to {max(both[0].values()):.1f} %"
    return "not measured"


PLACES = {"graphs-order": orders, "graphs-order-features": features_alone}
