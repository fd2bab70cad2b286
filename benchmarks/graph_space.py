"""What the search of ``graphs_search.py`` tries: settings, and how one graph and variant goes through the stages."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from graph_jobs import Job, Row, mean, summary

from neuralfde.models.message_passing import SCORES
from neuralfde_experiments.graph_settings import FROND, PAPER, Settings, reported_seeds, settings_for

DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "computers", "photo", "coauthor-physics")
EXPLORE, JUDGED = (100, 101), (102, 103, 104, 105)
"""Splits that choose; earlier searches judged on the second kind too."""
TRACKS = ("plain", "agree")
ENDS = {"explore": 0.33, "final": 0.97, "other": 0.97, "learned": 0.97}
"""Share of the time at which each stage is over, unless told otherwise."""
STAGES = (*ENDS, "done")
LENGTHS = {"explore": (200, 50), "final": (400, 100), "other": (400, 100), "learned": (400, 100)}
"""Most epochs, and epochs without a better validation accuracy; those of the last three are FROND's."""
FINALISTS = 3
"""Settings of each track that are trained on the reported splits, whose validation nodes choose among them."""
LARGE = ("computers", "coauthor-physics")
"""Graphs that begin with half as many settings side by side."""
ON_A_CPU = {"t": 16.0, "hidden": 128}
"""What settings of variant nl have at most where there is no GPU; variant l has no steps there."""
JOB_SECONDS = 25.0
"""How long a job of the first stage should take: the number of settings in it follows."""
TIMES = {
    "cora": ((8, 1), (16, 1), (32, 1)),
    "citeseer": ((4, 1), (8, 1), (16, 1)),
    "pubmed": ((6, 1), (12, 1), (20, 1)),
    "coauthor-cs": ((2, 1), (4, 1), (8, 1)),
    "computers": ((2, 0.5), (3, 0.5), (4, 1), (6, 1)),
    "photo": ((3, 0.5), (4, 1), (6, 1)),
    "coauthor-physics": ((2, 0.5), (4, 1), (8, 1)),
}
#: what trainings side by side share
SHAPE: dict[str, tuple[Any, ...]] = {
    "hidden": (64, 128),
    "heads": (1, 2, 4),
    "attention": SCORES,
    "attention_width": (16, 32, 64),
    "normalise": ("softmax", "squareplus"),
    "over": ("target", "source", "both"),
    "start": ("random", "average"),
    "loops": (True, True, False),
    "source": (True, "held", False),
    "steady": (False, True),
    "optimiser": ("adam", "adamax", "rmsprop"),
    "rows": (False, True),
    "idf": (False, False, True),
    "components": (0, 128, 256),
    "batch_norm": (False, False, True),
    "average": (0.0, 0.9, 0.97, 0.99),
}
NUMBERS = ("hidden", "t", "lr", "weight_decay", "input_dropout", "dropout")
"""What the paper's table has beside the step, which is made a whole one here."""
#: what each has for itself
OWN: dict[str, tuple[Any, ...]] = {
    "order": (0.6, 0.75, 0.85, 0.95, 1.0),
    "lr": (0.003, 0.005, 0.01, 0.02),
    "weight_decay": (1.0, 3.0, 10.0, 30.0, 100.0),  # in thousandths; a tenth of it where features add up to 1
    "attention_decay": (None, 0.0, 1e-3),
    "input_dropout": (0.4, 0.5, 0.6, 0.7, 0.8),
    "node_dropout": (0.0, 0.2, 0.4, 0.5),
    "dropout": (0.0, 0.2, 0.4, 0.6, 0.75),
    "consistency": (0.5, 1.0, 2.0, 4.0),
}


@dataclass
class Case:
    """The search of one graph and variant; with ``apart`` each split is a job of its own after the first stage."""

    dataset: str
    variant: str
    ends: dict[str, float]
    rival: Case | None = None
    tracks: tuple[str, ...] = TRACKS
    explored: tuple[str, ...] = TRACKS
    stages: tuple[str, ...] = STAGES
    changes: list[dict[str, Any]] = field(default_factory=list)
    apart: bool = False
    stage: str = "explore"
    found: dict[Settings, dict[int, float]] = field(default_factory=dict)
    done: set[Settings] = field(default_factory=set)
    pending: list[Job] = field(default_factory=list)
    running: int = 0
    spent: float = 0.0
    last: float = 0.0
    reported: dict[tuple[str, Settings], list[Row]] = field(default_factory=dict)
    width: int = 6
    finalists: int = FINALISTS
    jobs: int = 0
    given: int = 0
    seeded: dict[str, list[Settings]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = f"{self.dataset} {self.variant}"
        self.random = random.Random(self.name)
        self.seeds = reported_seeds(self.dataset)
        self.asked = len(self.changes)
        self.width = self.width // 2 if self.dataset in LARGE else self.width

    def next(self) -> Job | None:
        """What to train next, if anything."""
        if self.stage == "explore":
            if time.time() + 0.7 * self.last < self.ends["explore"]:
                return self.explore()
            if self.running:
                return None
            self.advance()
        if self.stage in self.ends and time.time() > self.ends[self.stage] - 2:
            self.pending.clear()  # what begins now would say nothing
        while not self.pending and not self.running and self.stage != "done":
            self.advance()
        return self.pending.pop(0) if self.pending else None

    def turn(self) -> tuple[float, ...]:
        """Who is served first: in a search who had least time, later all first choices, and of these the longest."""
        searching = self.stage == "explore"
        return STAGES.index(self.stage), *((self.running, self.spent) if searching else (self.given, -self.spent))

    def advance(self) -> None:
        """Go to the next stage and see what there is to do in it."""
        self.stage = STAGES[STAGES.index(self.stage) + 1]
        if self.stage not in self.stages:
            return
        self.given = 0
        if self.stage != "done":
            tracks = [t for t in self.tracks if self.of(t)]
            for track in tracks[1:] if self.stage == "other" else tracks[:1]:
                if self.stage == "learned":
                    first = self.of(track)[0]
                    chosen = [replace(first, order=min(first.order, 0.95))]
                else:
                    new = [s for s in self.of(track) if s not in self.done and (not self.apart or s == self.fit(s))]
                    chosen = new[: self.finalists]
                for s in chosen:
                    self.pending += self.jobs_of(self.stage, track, s)

    def of(self, track: str) -> list[Settings]:
        """The settings found for a track, best first on the splits of the first stage."""
        mine = [s for s in self.found if (s.consistency > 0) == (track == "agree")]
        return sorted(mine, key=lambda s: -mean([v for seed, v in self.found[s].items() if seed in EXPLORE]))

    def know(self, row: Row) -> None:
        """Take in a row that an earlier search wrote; of each setting it has the mean over its splits.

        Settings that were trained on the reported splits, by today's protocol, are not trained there again.
        """
        if tuple(s["seed"] for s in row.get("splits", ())) == self.seeds and not row.get("cut"):
            self.done.add(replace(Settings(**row["settings"]), epochs=0, patience=0))
        seeds = row.get("seeds", ())
        seeds = {2: EXPLORE, 4: JUDGED}[seeds] if isinstance(seeds, int) else seeds  # older files count them
        for own in row.get("tried", ()):
            names = {k: own[k] for k in OWN if k in own}
            s = replace(Settings(**row["settings"]), **names, epochs=0, patience=0)
            self.found.setdefault(s, {}).update(dict.fromkeys(seeds, own["val"]))
        self.random.seed(f"{self.name} {len(self.found)}")  # and draw others than that search did

    def jobs_of(self, stage: str, track: str, s: Settings) -> list[Job]:
        """The reported splits in one job, or in one each."""
        parts = [(seed,) for seed in self.seeds] if self.apart else [self.seeds]
        return [self.job(stage, track, [s], part) for part in parts]

    def job(self, stage: str, track: str, settings: Sequence[Settings], seeds: Sequence[int]) -> Job:
        """A job with the stage's length and deadline."""
        epochs, patience = LENGTHS[stage]
        each = tuple(replace(s, epochs=epochs, patience=patience) for s in settings)
        self.jobs += 1
        case = f"{self.name} {stage} {self.jobs}"
        return Job(case, self.dataset, self.variant, stage, track, each, tuple(seeds), self.ends[stage])

    def take(self, job: Job, answer: Row) -> Row:
        """Note what a job found; the row to write."""
        self.running -= 1
        self.spent += answer["seconds"]
        self.last = answer["seconds"]
        row = {"case": job.case, "dataset": job.dataset, "variant": job.variant, "track": job.track}
        row |= {k: answer[k] for k in ("seconds", "notes") if k in answer}
        if "failed" in answer:
            self.width = max(1, self.width // 2)
            return row | {"failed": answer["failed"]}
        if job.stage == "explore":
            self.width = max(1, min(16, round(self.width * JOB_SECONDS / max(answer["seconds"], 3.0))))
        rows, splits = answer["rows"], len(job.seeds)
        apart = [rows[k * splits : (k + 1) * splits] for k in range(len(job.settings))]
        if set(job.seeds) <= set(self.seeds):
            ended = self.reported.setdefault((job.stage, job.settings[0]), [])
            ended += [r | {"cut": time.time() > job.until} for r in rows]
            return row | (summary(job, ended) if len(ended) == len(self.seeds) else {"of": job.seeds})
        for s, part in zip(job.settings, apart, strict=True):
            plain = replace(s, epochs=0, patience=0)
            self.found.setdefault(plain, {}).update({r["seed"]: r["val"] for r in part})
        tried = [
            {k: getattr(s, k) for k in OWN}
            | {"val": round(mean([r["val"] for r in part]), 3), "epoch": part[0]["epoch"]}
            for s, part in zip(job.settings, apart, strict=True)
        ]
        top = max(range(len(tried)), key=lambda k: tried[k]["val"])
        row |= {"val": tried[top]["val"], "settings": asdict(job.settings[top])}
        return row | {"seeds": job.seeds, "tried": tried}

    def explore(self) -> Job:
        """Some settings of one shape, drawn near where the search stands."""
        turn, track = self.jobs // len(self.explored), self.explored[self.jobs % len(self.explored)]
        (start, shape), draw = self.next_shape(turn, track), self.random
        each = [self.own(start, shape, track, 2 if shape == start and start in self.found else 0)]
        while len(each) < self.width:
            each.append(self.own(start, shape, track, draw.choice((1, 2, 3, 4))))
        unique = [replace(s, epochs=0, patience=0) for s in dict.fromkeys(each)]
        return self.job("explore", track, unique, EXPLORE)

    def next_shape(self, turn: int, track: str) -> tuple[Settings, Settings]:
        """Settings and a shape near them: the best with each of the changes asked for, known settings, then others."""
        mine, others = self.of(track), self.rival.of(track)[:1] if self.rival is not None else []
        new = self.seeds_of(track)
        if mine and self.changes:
            start, change = self.begin(mine[0]), self.changes.pop(0)
            shape = replace(start, **change)
            return shape if "weight_decay" in change else start, shape
        first = [*new[:2], *mine[:1], *new[2:], *others][turn - self.asked + len(self.changes) :]
        if first:
            start = self.begin(first[0])
            return start, start
        start = self.begin(self.random.choice((mine[:3] + others) or new))
        return start, self.drawn(start, self.random.choice((0, 1, 2, len(SHAPE))))

    def begin(self, s: Settings) -> Settings:
        """Settings as a search takes them up: what this variant can afford of them, for as long as the stage says."""
        return replace(self.fit(s), epochs=0, patience=0)

    def seeds_of(self, track: str) -> list[Settings]:
        """FROND's settings, ours, and FROND's with the paper's numbers: those that no earlier search had."""
        if track not in self.seeded:
            frond, paper = FROND[self.dataset], PAPER[self.dataset]
            both = ("l", "nl") if self.variant == "l" else ("nl", "l")
            ours = [settings_for(self.dataset, "tuned", v) for v in both]
            numbers = replace(frond, **{k: getattr(paper, k) for k in NUMBERS}, step=max(1.0, paper.step))
            plain = (self.begin(s) for s in (frond, *ours, numbers))
            self.seeded[track] = [s for s in plain if self.own(s, s, track, 0) not in self.found]
        return self.seeded[track]

    def fit(self, s: Settings) -> Settings:
        """Settings that this variant can afford: few heads where attention is computed at every step."""
        if self.apart and self.variant == "nl":
            s = replace(s, **{k: min(v, getattr(s, k)) for k, v in ON_A_CPU.items()})  # type: ignore[arg-type]
        if self.dataset in ("cora", "citeseer"):  # small enough for all of FROND's
            return replace(s, attention_width=s.attention_width or 64)
        heads = min(s.heads, 2 if self.variant == "nl" else 4)
        return replace(s, heads=heads, attention_width=min(s.attention_width or 64, 64), hidden=min(s.hidden, 128))

    def drawn(self, start: Settings, changes: int) -> Settings:
        """Another shape."""
        draw = self.random
        picked = {k: draw.choice(SHAPE[k]) for k in draw.sample(sorted(SHAPE), changes)}
        if changes and draw.random() < 0.5:
            picked["t"], picked["step"] = (float(v) for v in draw.choice(TIMES[self.dataset]))
        return self.fit(replace(start, **picked))

    def own(self, start: Settings, shape: Settings, track: str, changes: int) -> Settings:
        """``shape`` with so many of the own settings drawn anew; a decay goes with the size of the features."""
        draw = self.random
        scale = 1e-4 if shape.rows else 1e-3
        was = start.weight_decay * scale / (1e-4 if start.rows else 1e-3)
        names = sorted(OWN) if track == "agree" else sorted(OWN.keys() - {"consistency"})
        picked = {k: draw.choice(OWN[k]) for k in draw.sample(names, changes)}
        picked["weight_decay"] = picked["weight_decay"] * scale if "weight_decay" in picked else was
        agree = picked.get("consistency", start.consistency or draw.choice(OWN["consistency"]))
        return replace(shape, **picked | {"consistency": agree if track == "agree" else 0.0})
