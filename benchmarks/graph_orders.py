"""Does the order matter? The same settings with order 1, with order 0.5 and with the order learned, on one graph.

Settings are drawn once and tried with each kind of order on three splits; when the clock ends this, only settings that
were tried with every kind count, so that each has had the same search. The best of each kind by mean validation
accuracy (or area under the ROC curve) is trained on the ten splits reported. The graphs with ten splits of their own
have no others: there three of the same splits choose, by their validation nodes.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, replace

from graph_space import Job, Row, mean, summary

from neuralfde_experiments.graph_settings import FROND, Settings, reported_seeds

KINDS = {"1": 1.0, "0.5": 0.5, "learned": 0.8}
"""The order, or where learning it starts."""
CHOOSE = (100, 101, 102)
COUNT = 40
"""Most settings of a graph."""
LENGTHS = {"explore": (300, 100), "final": (500, 100)}
"""Most epochs, and epochs without a better validation accuracy."""
LONG = {"explore": (800, 200), "final": (2000, 300)}
"""The same for Airport, whose accuracy still grows after FROND's 500 epochs: classes are cut by one feature finely."""
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
    "hidden": (128, 256, 512),
    "lr": (0.02, 0.05, 0.1),
    "weight_decay": (0.0, 1e-5, 1e-4),
    "input_dropout": (0.0,),
    "dropout": (0.0, 0.0, 0.2),
}
"""There 187 values of one feature tell the classes apart: none may be dropped, and the cuts are fine."""


def drawn(dataset: str) -> list[Settings]:
    """FROND's settings first, then others; the same at every call."""
    draw, found = random.Random(dataset), [FROND[dataset]]
    space = SPACE | AIRPORT if dataset.startswith("airport") else SPACE
    while len(found) < COUNT:
        picked = {k: draw.choice(values) for k, values in space.items()}
        t, step = picked.pop("time")  # type: ignore[misc]
        trial = replace(FROND[dataset], **picked, t=t, step=step)  # type: ignore[arg-type]
        most = LARGE.get(dataset, {})
        found.append(replace(trial, **{k: min(v, getattr(trial, k)) for k, v in most.items()}))
    return list(dict.fromkeys(found))


class OrderCase:
    """The search of one graph; with ``apart`` each split reported is a job of its own; as :class:`graph_space.Case`."""

    def __init__(self, dataset: str, ends: dict[str, float], apart: bool = False) -> None:
        self.dataset, self.ends, self.apart = dataset, ends, apart
        self.name, self.stage = f"{dataset} order", "explore"
        self.pending = [self.job("explore", kind, s, CHOOSE) for s in drawn(dataset) for kind in KINDS]
        self.found: dict[str, dict[Settings, float]] = {kind: {} for kind in KINDS}
        self.reported: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        self.running, self.spent, self.jobs = 0, 0.0, 0

    def job(self, stage: str, kind: str, s: Settings, seeds: tuple[int, ...]) -> Job:
        """A training of these settings with this kind of order."""
        epochs, patience = (LONG if self.dataset.startswith("airport") else LENGTHS)[stage]
        s = replace(s, order=KINDS[kind], epochs=epochs, patience=patience)
        return Job(f"{self.name} {stage} {kind}", self.dataset, "l", stage, kind, (s,), seeds, self.ends[stage])

    def next(self) -> Job | None:
        """What to train next, if anything."""
        if self.stage == "explore" and (time.time() > self.ends["explore"] or not self.pending):
            self.pending = []
            if self.running:
                return None
            self.stage = "final"
            for kind, s in self.chosen().items():
                seeds = reported_seeds(self.dataset)
                parts = [(seed,) for seed in seeds] if self.apart else [seeds]
                self.pending += [self.job("final", kind, s, part) for part in parts]
        if self.stage == "final" and time.time() > self.ends["final"] - 2:
            self.pending.clear()  # what begins now would say nothing
        if self.stage == "final" and not self.pending and not self.running:
            self.stage = "done"
        return self.pending.pop(0) if self.pending else None

    def chosen(self) -> dict[str, Settings]:
        """The best settings of each kind, of those tried with every kind."""
        common = set.intersection(*(set(found) for found in self.found.values()))
        if not common:
            return {}
        return {kind: max(common, key=lambda s: found[s]) for kind, found in self.found.items()}

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
        (s,), val = job.settings, round(mean([r["val"] for r in answer["rows"]]), 3)
        self.found[job.track][replace(s, order=0.0)] = val
        tried = {
            "val": val,
            "epoch": answer["rows"][0]["epoch"],
            "order": round(mean([r["order"] for r in answer["rows"]]), 3),
        }
        return row | {"val": val, "settings": asdict(s), "seeds": job.seeds, "tried": [tried]}
