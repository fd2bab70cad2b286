"""Does the order matter? The same settings with order 1, with order 0.5 and with the order learned, on one graph.

Settings are drawn once and tried with each kind of order on three splits, of Airport on two; when the clock ends this,
only settings that were tried with every kind count, so that each has had the same search. The first of them may take
longer, for without any nothing is chosen and FROND's are reported. The best of each kind by mean validation accuracy
(or area under the ROC curve) is trained on the ten splits reported. The graphs with ten splits of their own have no
others: there three of the same splits choose, by their validation nodes.

Airport is small enough for a CPU. Of its features four are numbers, and one of them, with 187 values, nearly names the
country, by which the classes are cut: FROND's settings are tried with the features as they are and with random waves in
their place, all others with waves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from graph_jobs import Job, Row, mean, summary
from graph_space import STAGES

from neuralfde_experiments.graph_settings import FROND, Settings, reported_seeds

KINDS = {"1": 1.0, "0.5": 0.5, "learned": 0.8}
"""The order, or where learning it starts."""
CHOOSE = (100, 101, 102)
GROUPS, EACH = 12, 4
"""Most groups of settings of a graph, and how many are trained side by side: they differ in nothing but ``OWN``."""
FEW = 2
"""Splits that choose, and settings side by side, of Airport, whose trainings are stopped by themselves on a CPU."""
OWN = ("lr", "weight_decay", "input_dropout", "dropout")
LATER = 0.4
"""Share of the time of the reported trainings that the first group may take if the clock has ended the search."""
LENGTHS = {"explore": (300, 100), "final": (500, 100)}
"""Most epochs, and epochs without a better validation accuracy."""
SHORT = (120, 40)
"""The same for Airport's search: with waves, accuracy grows fast."""
LARGE = {"tolokers": {"hidden": 64, "t": 4.0}, "minesweeper": {"hidden": 128, "t": 8.0}, "actor": {"hidden": 128}}
"""What settings on a large graph have at most."""
SPACE: dict[str, tuple[object, ...]] = {
    "hidden": (64, 128, 256, 512),
    "time": ((1.0, 0.25), (2.0, 0.5), (4.0, 1.0), (8.0, 1.0), (16.0, 1.0)),
    "lr": (0.005, 0.01, 0.02, 0.05, 0.1),
    "weight_decay": (0.0, 1e-5, 1e-4, 1e-3),
    "input_dropout": (0.0, 0.0, 0.2, 0.5),
    "dropout": (0.0, 0.0, 0.2, 0.5),
    "heads": (1, 4, 8),
    "attention": ("scaled_dot", "cosine", "exp_kernel"),
    "attention_width": (16, 64),
    "normalise": ("softmax", "squareplus"),
    "over": ("target", "source", "both"),
    "start": ("random", "average"),
    "source": (True, False),
    "batch_norm": (True, False),
    "optimiser": ("adam", "adamax"),
}
AIRPORT: dict[str, tuple[object, ...]] = {
    "hidden": (64, 128),
    "time": ((1.0, 0.25), (2.0, 0.5), (4.0, 1.0)),
    "lr": (0.01, 0.02, 0.05),
    "weight_decay": (1e-4, 1e-3, 3e-3),
    "input_dropout": (0.0, 0.2),
    "dropout": (0.0, 0.2, 0.5),
    "heads": (1, 4),
    "source": (True, True, False),
    "waves": (3.0, 10.0, 30.0),
}


def drawn(dataset: str) -> list[tuple[Settings, ...]]:
    """FROND's settings first, then others; the same at every call."""
    draw, first, groups = random.Random(dataset), FROND[dataset], list[tuple[Settings, ...]]()
    space, most, side = SPACE, LARGE.get(dataset, {}), EACH
    if is_airport(dataset):
        space, side = SPACE | AIRPORT, FEW
        groups = [(replace(first, waves=waves),) for waves in (0.0, 10.0)]
    while len(groups) < GROUPS:
        if groups:
            shape = {k: draw.choice(values) for k, values in space.items() if k not in OWN}
            t, step = shape.pop("time")  # type: ignore[misc]
            first = replace(first, **shape, t=t, step=step)  # type: ignore[arg-type]
            first = replace(first, **{k: min(v, getattr(first, k)) for k, v in most.items()})
        others = [replace(first, **{k: draw.choice(space[k]) for k in OWN}) for _ in range(side)]  # type: ignore[arg-type]
        groups.append(tuple(dict.fromkeys([first] * (not groups) + others))[:side])
    return groups


def is_airport(dataset: str) -> bool:
    """Whether this is Airport, with either kind of split."""
    return dataset.startswith("airport")


class OrderCase:
    """The search of one graph; with ``apart`` each split reported is a job of its own; as :class:`graph_space.Case`."""

    def __init__(self, dataset: str, ends: dict[str, float], apart: bool = False) -> None:
        self.dataset, self.ends, self.apart = dataset, ends, apart
        self.name, self.stage = f"{dataset} order", "explore"
        seeds = CHOOSE[:FEW] if is_airport(dataset) else CHOOSE
        self.pending = [self.job("explore", kind, group, seeds) for group in drawn(dataset) for kind in KINDS]
        later = ends["explore"] + LATER * (ends["final"] - ends["explore"])
        self.pending[: len(KINDS)] = [replace(job, until=later) for job in self.pending[: len(KINDS)]]
        self.found: dict[str, dict[Settings, float]] = {kind: {} for kind in KINDS}
        self.reported: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        self.running, self.spent, self.given = 0, 0.0, 0

    def job(self, stage: str, kind: str, group: Sequence[Settings], seeds: tuple[int, ...]) -> Job:
        """A training of these settings with this kind of order."""
        epochs, patience = SHORT if is_airport(self.dataset) and stage == "explore" else LENGTHS[stage]
        each = tuple(replace(s, order=KINDS[kind], epochs=epochs, patience=patience) for s in group)
        return Job(f"{self.name} {stage} {kind}", self.dataset, "l", stage, kind, each, seeds, self.ends[stage])

    def turn(self) -> tuple[float, ...]:
        """Who is served first: who is least far, and of these who had least time."""
        return STAGES.index(self.stage), self.running, self.spent

    def next(self) -> Job | None:
        """What to train next, if anything."""
        if self.stage == "explore":
            self.pending = [job for job in self.pending if time.time() < job.until]
        if self.stage == "explore" and not self.pending:
            if self.running:
                return None
            self.stage = "final"
            for kind, s in self.chosen().items():
                seeds = reported_seeds(self.dataset)
                parts = [(seed,) for seed in seeds] if self.apart else [seeds]
                self.pending += [self.job("final", kind, [s], part) for part in parts]
        if self.stage == "final" and time.time() > self.ends["final"] - 2:
            self.pending.clear()  # what begins now would say nothing
        if self.stage == "final" and not self.pending and not self.running:
            self.stage = "done"
        return self.pending.pop(0) if self.pending else None

    def chosen(self) -> dict[str, Settings]:
        """The best settings of each kind, of those tried with every kind; FROND's where the clock left none."""
        common = set.intersection(*(set(found) for found in self.found.values()))
        if not common:
            return dict.fromkeys(KINDS, drawn(self.dataset)[0][0])
        tried = {kind: [s for s in found if s in common] for kind, found in self.found.items()}
        return {kind: max(tried[kind], key=lambda s: found[s]) for kind, found in self.found.items()}

    def take(self, job: Job, answer: Row) -> Row:
        """Note what a job found; the row to write."""
        self.running -= 1
        self.spent += answer["seconds"]
        row = {"case": job.case, "dataset": job.dataset, "variant": "l", "track": job.track}
        row |= {k: answer[k] for k in ("seconds", "notes", "failed") if k in answer}
        if "failed" in answer:
            return row
        if job.stage == "final":
            ended = self.reported[job.track]
            ended += [r | {"cut": time.time() > job.until} for r in answer["rows"]]
            whole = len(ended) == len(reported_seeds(self.dataset))
            return row | (summary(job, ended) if whole else {"of": job.seeds})
        if time.time() > job.until:
            return row | {"failed": "cut short, does not count"}
        tried = []
        for k, s in enumerate(job.settings):
            mine = answer["rows"][k * len(job.seeds) : (k + 1) * len(job.seeds)]
            found = {name: round(mean([r[name] for r in mine]), 3) for name in ("val", "order", "epoch")}
            self.found[job.track][replace(s, order=0.0)] = found["val"]
            tried.append({name: getattr(s, name) for name in OWN} | found)
        top = max(range(len(tried)), key=lambda k: tried[k]["val"])
        row |= {"val": tried[top]["val"], "settings": asdict(job.settings[top])}
        return row | {"seeds": job.seeds, "tried": tried}
