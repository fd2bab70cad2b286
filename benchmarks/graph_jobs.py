"""Jobs of ``graphs_search.py``, and what is told of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neuralfde_experiments.graph_settings import Settings

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Trainings side by side: each of the settings, all of one shape, on each of the splits."""

    case: str
    dataset: str
    variant: str
    stage: str
    track: str
    settings: tuple[Settings, ...]
    seeds: tuple[int, ...]
    until: float


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else -1.0


def summary(job: Job, rows: list[Row]) -> Row:
    """Means over the reported splits, and whether the clock ended any of them."""
    rows = sorted(rows, key=lambda r: r["seed"])
    found = {k: round(mean([r[k] for r in rows]), 3) for k in ("val", "test", "order", "epoch")}
    row = {**found, "deviation": round(statistics.pstdev(r["test"] for r in rows), 2), "count": len(rows)}
    return row | {"settings": asdict(job.settings[0]), "splits": rows, "cut": any(r["cut"] for r in rows)}
