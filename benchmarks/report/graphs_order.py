"""Does the order matter on a graph? Order 1, order 0.5 and the order learned, each with the same search."""

from __future__ import annotations

import math
import statistics

from neuralfde_experiments.data.order_graphs import ORDER_GRAPHS

from .markdown import measured, table
from .record import Row, known

KINDS = ("1", "0.5", "learned")
#: F-GRAND-l of FROND's paper at order 1 and 0.5, its own split
PUBLISHED = {"airport-overlapping": {"1": "80.5", "0.5": "98.1\u00a0±\u00a00.2"}}
NOTHING = "*Not measured yet.*"


def rows() -> list[Row]:
    return [r for run in known("graphs-order") for r in run["rows"]]


def reported(found: list[Row], dataset: str) -> dict[str, Row]:
    """The training on ten splits of each kind of order; of several, that which validation prefers."""
    best: dict[str, Row] = {}
    for r in found:
        if r["stage"] == "final" and r["dataset"] == dataset:
            best[r["kind"]] = max(best.get(r["kind"], r), r, key=lambda r: r["val"])
    return best


def searched(dataset: str) -> int:
    """Settings tried with every kind of order, in the searches that came to a training on ten splits."""
    count = 0
    for run in known("graphs-order"):
        own = [r for r in run["rows"] if r["dataset"] == dataset]
        if any(r["stage"] == "final" for r in own):
            tried: dict[str, set[str]] = {kind: set() for kind in KINDS}
            for r in own:
                if r["stage"] == "explore":
                    tried[r["kind"]].add(str({k: v for k, v in sorted(r["settings"].items()) if k != "order"}))
            count += len(set.intersection(*tried.values()))
    return count


def difference(one: Row, other: Row) -> str:
    """How far the first is ahead on the same splits, with the standard error of the mean."""
    theirs = {s["seed"]: s["test"] for s in other["splits"]}
    apart = [s["test"] - theirs[s["seed"]] for s in one["splits"]]
    return f"{statistics.fmean(apart):+.1f}\u00a0±\u00a0{statistics.stdev(apart) / math.sqrt(len(apart)):.1f}"


def shown(row: Row | None, published: str | None) -> str:
    if row is None:
        return "none"
    own = f"{row['test']:.1f}\u00a0±\u00a0{row['deviation']:.1f}{' †' if row.get('cut') else ''}"
    return own if published is None else f"{own} (published: {published})"


def orders() -> str:
    """The table, or a word that there is none yet."""
    found = rows()
    lines = []
    for dataset, about in ORDER_GRAPHS.items():
        best = reported(found, dataset)
        if not best:
            continue
        cells = [shown(best.get(kind), PUBLISHED.get(dataset, {}).get(kind)) for kind in KINDS]
        ends = [s["order"] for s in best["learned"]["splits"]] if "learned" in best else []
        gain = difference(best["learned"], best["1"]) if {"learned", "1"} <= best.keys() else "none"
        span = f"{min(ends):.2f}\u00a0…\u00a0{max(ends):.2f}" if ends else "none"
        lines.append([dataset, "ROC AUC" if about.auc else "accuracy", *cells, span, gain, searched(dataset)])
    if not lines:
        return NOTHING
    head = ["graph", "test %", "order 1", "order 0.5", "order learned", "β at the end", "learned - order 1"]
    return f"{table([*head, 'settings each'], lines)}\n\n{measured(*known('graphs-order'))}"


PLACES = {"graphs-order": orders}
