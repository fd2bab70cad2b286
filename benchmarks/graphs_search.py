"""Accuracies of F-GRAND on all graphs: a search by validation accuracy, then the reported splits, then learned orders.

    python benchmarks/graphs_search.py --data DATA --out results.json --minutes 8

Several processes train on one GPU. Each graph and variant goes through five stages, the device's time shared equally:

    explore   settings drawn at random or near the best, on two splits
    judge     the best few on four more splits
    final     the best by mean validation accuracy, on the ten splits reported
    learned   the same with the order learned
    other     the best of the other kind of loss, on the ten splits reported

The splits of the first two stages are none of those reported, and their test accuracies are not even written down.
There are two kinds of loss: ``plain``, and ``agree``, which also asks two draws of dropout to agree. Every stage has
a deadline at which its trainings end with what they have, and results are written after every job.
"""

from __future__ import annotations

import argparse
import json
import logging.handlers
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from neuralfde.experiments.graph_settings import Settings, settings_for
from neuralfde.experiments.graphs import PAPER_ACCURACY

DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "computers", "photo", "coauthor-physics")
REPORTED = tuple(range(10))
EXPLORE, JUDGE = (100, 101), (102, 103, 104, 105)
TRACKS = ("plain", "agree")
ENDS = {"explore": 0.44, "judge": 0.62, "final": 0.97, "learned": 0.97, "other": 0.97}
"""Share of the time at which each stage is over."""
STAGES = (*ENDS, "done")
LENGTHS = {"explore": (150, 40), "judge": (250, 60), "final": (300, 80), "learned": (200, 60), "other": (300, 80)}
"""Most epochs, and epochs without a better validation accuracy."""
BEST = 2
"""Settings of each track that are judged."""
JOB_SECONDS = 12.0
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
    "attention": ("scaled_dot", "cosine", "exp_kernel"),
    "attention_width": (16, 32, 64),
    "normalise": ("softmax", "squareplus"),
    "over": ("target", "source", "both"),
    "start": ("random", "average"),
    "source": (True, True, False),
    "optimiser": ("adam", "adamax", "rmsprop"),
    "rows": (False, True),
}
#: what each has for itself
OWN: dict[str, tuple[Any, ...]] = {
    "order": (0.6, 0.75, 0.85, 0.95, 1.0),
    "lr": (0.003, 0.005, 0.01, 0.02),
    "weight_decay": (1.0, 3.0, 10.0, 30.0, 100.0),  # in thousandths; a tenth of it where features add up to 1
    "attention_decay": (None, 0.0, 1e-3),
    "input_dropout": (0.2, 0.4, 0.5, 0.6, 0.7, 0.8),
    "dropout": (0.0, 0.2, 0.4, 0.6, 0.75),
    "consistency": (0.5, 1.0, 2.0, 4.0),
}
#: what FROND ships for GRAND (its best_params, its README for Cora's l), times rounded to whole steps. Sampled
#: ("hard") attention, batch normalisation and Pearson scores are not here; coauthor-physics is not there, its
#: values are the defaults of their command line
PUBLISHED: dict[str, Settings] = {
    "cora": Settings(
        256, 40.0, 1.0, 0.01, 0.01, 0.6, 0.2, 8, "scaled_dot", 128, "squareplus", "source", "average",
        optimiser="adamax", epochs=400, patience=100, order=0.85,
    ),
    "citeseer": Settings(
        80, 8.0, 1.0, 0.00864, 0.1, 0.68, 0.749, 8, "exp_kernel", 32, "squareplus", "source", "average",
        epochs=250, patience=100,
    ),
    "pubmed": Settings(
        128, 13.0, 1.0, 0.0147, 0.00182, 0.5, 0.072, 1, "cosine", 16, "squareplus", "target", "average",
        optimiser="adamax", epochs=600, patience=100,
    ),
    "coauthor-cs": Settings(
        16, 3.0, 1.0, 0.000934, 0.00474, 0.5275, 0.686, 4, "scaled_dot", 8, "squareplus", "source", "average",
        source=False, optimiser="rmsprop", epochs=250, patience=100,
    ),
    "computers": Settings(
        128, 3.0, 1.0, 0.00353, 0.00767, 0.597, 0.087, 4, "scaled_dot", 64, "softmax", "target", "average",
        source=False, patience=100,
    ),
    "photo": Settings(
        64, 4.0, 1.0, 0.00556, 0.00471, 0.429, 0.465, 4, "cosine", 64, "softmax", "target", "average",
        source=False, patience=100,
    ),
    "coauthor-physics": Settings(
        64, 3.0, 1.0, 0.01, 1e-4, 0.2, 0.4, 4, "scaled_dot", 64, "softmax", "target", "average",
        source=False, patience=100,
    ),
}  # fmt: skip
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


def shape_of(s: Settings) -> Settings:
    """The settings with everything that trainings side by side may differ in set to the same."""
    same = dict.fromkeys(OWN, 0.0)
    return replace(s, **same | {"consistency": float(s.consistency > 0)})  # type: ignore[arg-type]


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else -1.0


@dataclass
class Case:
    """The search of one graph and variant."""

    dataset: str
    variant: str
    ends: dict[str, float]
    rival: Case | None = None
    stage: str = "explore"
    found: dict[Settings, dict[int, float]] = field(default_factory=dict)
    pending: list[Job] = field(default_factory=list)
    running: int = 0
    spent: float = 0.0
    last: float = 0.0
    width: int = 6
    jobs: int = 0

    def __post_init__(self) -> None:
        self.name = f"{self.dataset} {self.variant}"
        self.random = random.Random(self.name)

    def next(self) -> Job | None:
        """What to train next, if anything."""
        if self.stage == "explore":
            if time.time() + 0.7 * self.last < self.ends["explore"]:
                return self.explore()
            if self.running:
                return None
            self.advance()
        if self.stage == "judge" and time.time() > self.ends["judge"] - 2:
            self.pending.clear()
        while not self.pending and not self.running and self.stage != "done":
            self.advance()
        return self.pending.pop(0) if self.pending else None

    def advance(self) -> None:
        """Go to the next stage and see what there is to do in it."""
        self.stage = STAGES[STAGES.index(self.stage) + 1]
        if self.stage == "judge":
            for track in TRACKS:
                alike: dict[Settings, list[Settings]] = {}
                for s in self.best(track)[:BEST]:
                    alike.setdefault(shape_of(s), []).append(s)
                self.pending += [self.job("judge", track, group, JUDGE) for group in alike.values()]
        elif self.stage != "done":
            tracks = self.tracks()
            for track in tracks[1:] if self.stage == "other" else tracks[:1]:
                s = self.best(track)[0]
                s = replace(s, order=min(s.order, 0.95)) if self.stage == "learned" else s
                self.pending = [self.job(self.stage, track, [s], REPORTED)]

    def tracks(self) -> list[str]:
        """The tracks with something to show, the one of the best validation accuracy first."""
        some = [t for t in TRACKS if self.best(t)]
        return sorted(some, key=lambda t: -mean(list(self.found[self.best(t)[0]].values())))

    def best(self, track: str) -> list[Settings]:
        """Settings of a track by mean validation accuracy; those on more splits go before all others."""
        mine = [s for s in self.found if (s.consistency > 0) == (track == "agree")]
        return sorted(mine, key=lambda s: (-len(self.found[s]), -mean(list(self.found[s].values()))))

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
            self.width = max(2, min(16, round(self.width * JOB_SECONDS / max(answer["seconds"], 3.0))))
        rows, splits = answer["rows"], len(job.seeds)
        apart = [rows[k * splits : (k + 1) * splits] for k in range(len(job.settings))]
        if job.seeds == REPORTED:
            return row | summary(job, apart[0]) | {"cut": time.time() > job.until}
        if job.stage == "judge" and time.time() > job.until:
            return row | {"failed": "cut short, does not count"}
        for s, part in zip(job.settings, apart, strict=True):
            plain = replace(s, epochs=0, patience=0)
            self.found.setdefault(plain, {}).update({r["seed"]: r["val"] for r in part})
        tried = [
            {k: getattr(s, k) for k in OWN}
            | {"val": round(mean([r["val"] for r in part]), 3), "epoch": part[0]["epoch"]}
            for s, part in zip(job.settings, apart, strict=True)
        ]
        top = max(range(len(tried)), key=lambda k: tried[k]["val"])
        return row | {"val": tried[top]["val"], "settings": asdict(job.settings[top]), "seeds": splits, "tried": tried}

    def explore(self) -> Job:
        """Some settings of one shape: known ones first, then random ones and neighbours of the best."""
        turn, draw = self.jobs // 2, self.random
        track = TRACKS[self.jobs % 2]
        best = self.best(track)
        if not best and self.rival is not None:
            best = self.rival.best(track)
        if turn == 0:
            shape = start = self.fit(settings_for(self.dataset, "tuned", self.variant))
        elif turn == 1:
            shape = start = self.fit(PUBLISHED[self.dataset])
        else:
            others = self.rival.best(track)[:1] if self.rival is not None else []
            start = self.fit(draw.choice((best[:3] + others) or [settings_for(self.dataset, "tuned", self.variant)]))
            shape = self.drawn(start, draw.choice((0, 1, 2, len(SHAPE))))
        each = [self.own(start, shape, track, 0 if shape != start else 2)]
        while len(each) < self.width:
            each.append(self.own(start, shape, track, draw.choice((1, 2, 3, len(OWN)))))
        unique = [replace(s, epochs=0, patience=0) for s in dict.fromkeys(each)]
        return self.job("explore", track, unique, EXPLORE)

    def fit(self, s: Settings) -> Settings:
        """Settings that this variant can afford: few heads where attention is computed at every step."""
        heads = min(s.heads, 2 if self.variant == "nl" and self.dataset not in ("cora", "citeseer") else 4)
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
        picked = {k: draw.choice(OWN[k]) for k in draw.sample(sorted(OWN), changes)}
        picked["weight_decay"] = picked["weight_decay"] * scale if "weight_decay" in picked else was
        agree = picked.get("consistency", start.consistency or draw.choice(OWN["consistency"]))
        return replace(shape, **picked | {"consistency": agree if track == "agree" else 0.0})


def summary(job: Job, rows: list[Row]) -> Row:
    """Means over the reported splits."""
    found = {k: round(mean([r[k] for r in rows]), 3) for k in ("val", "test", "order", "epoch")}
    deviation = statistics.stdev(r["test"] for r in rows) if len(rows) > 1 else 0.0
    paper = PAPER_ACCURACY[job.dataset][job.variant == "nl"][0]
    row = {**found, "deviation": round(deviation, 2), "count": len(rows), "paper": paper}
    return row | {"settings": asdict(job.settings[0]), "splits": rows}


def train(job: Job, data: str, device: str, workers: int) -> list[Row]:
    """Do a job: one row for each of the settings and each split."""
    from neuralfde.experiments.graph_training import graph_of, side_by_side, train_splits

    each = [s for s in job.settings for _ in job.seeds]
    seeds = list(job.seeds) * len(job.settings)
    graph = graph_of(job.dataset, data, device, each[0].rows)
    size = len(each) if device == "cpu" else max(1, side_by_side(graph, each[0], job.variant, device) * 2 // workers)
    found: list[Row] = []
    for k in range(0, len(each), size):
        part = slice(k, k + size)
        options: dict[str, Any] = {"variant": job.variant, "learn_order": job.stage == "learned", "device": device}
        options |= {"root": data, "evaluate_every": 2, "until": job.until}
        found += train_splits(job.dataset, each[k], seeds[part], each=each[part], **options)
    return found


def work(pipe: Connection, data: str, device: str, workers: int) -> None:
    """A worker: takes jobs until there are none; a job that fails says so."""
    import torch

    torch.set_num_threads(1)
    cuda, notes = device != "cpu", logging.handlers.BufferingHandler(1000)
    logging.getLogger("neuralfde").addHandler(notes)
    pipe.send({"device": torch.cuda.get_device_name() if cuda else "cpu", "torch": torch.__version__})
    while (job := pipe.recv()) is not None:
        began = time.time()
        try:
            answer: Row = {"rows": train(job, data, device, workers)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
        if notes.buffer:
            answer["notes"] = sorted({r.getMessage()[:300] for r in notes.buffer})
            notes.flush()
        if cuda:
            torch.cuda.empty_cache()
        pipe.send(answer | {"seconds": round(time.time() - began, 2)})


class Workers:
    """Processes that train; one that dies is replaced."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.context = args, get_context("spawn")
        self.idle: list[Connection] = []
        self.processes: dict[Connection, Any] = {}
        self.busy: dict[Connection, Job | None] = {}
        for _ in range(args.workers):
            self.start()

    def start(self) -> None:
        mine, its = self.context.Pipe()
        a = self.args
        process = self.context.Process(target=work, args=(its, a.data, a.device, a.workers), daemon=True)
        process.start()
        its.close()
        self.processes[mine], self.busy[mine] = process, None

    def give(self, job: Job) -> None:
        pipe = self.idle.pop()
        pipe.send(job)
        self.busy[pipe] = job

    def answers(self, seconds: float) -> Iterator[tuple[Job | None, Row]]:
        """What has come in within so many seconds: of a job, or of a worker that has just begun."""
        for pipe in wait(list(self.busy), seconds):
            assert isinstance(pipe, Connection)
            job = self.busy.pop(pipe)
            try:
                answer = pipe.recv()
                self.idle.append(pipe)
            except (EOFError, OSError):
                answer = {"failed": "its process ended", "seconds": 5.0}
                self.processes.pop(pipe)
                self.start()
            yield job, answer

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()


class Results:
    """Rows in a file that is whole after every one of them."""

    def __init__(self, path: Path, head: Row) -> None:
        self.path, self.head, self.rows, self.began = path, head, list[Row](), time.time()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1, default=str))
        part.replace(self.path)
        brief = {k: v for k, v in row.items() if k not in ("settings", "splits", "tried", "dataset", "variant")}
        print(f"[{time.time() - self.began:5.0f} s]", json.dumps(brief), flush=True)


def share_the_gpu() -> bool:
    """Start NVIDIA's service by which processes compute at once and not in turns, where it works."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    folder = tempfile.mkdtemp()
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    try:
        subprocess.run([control, "-d"], check=True, timeout=10, capture_output=True)
        probe = "import torch; torch.ones(8, device='cuda').sum().item()"
        subprocess.run([sys.executable, "-c", probe], check=True, timeout=40, capture_output=True)
        return True
    except (subprocess.SubprocessError, OSError):
        stop_sharing()
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
        return False


def stop_sharing() -> None:
    with tempfile.TemporaryFile() as quiet:
        subprocess.run(
            ["nvidia-cuda-mps-control"], input=b"quit\n", timeout=20, stdout=quiet, stderr=quiet, check=False
        )


def cases_of(args: argparse.Namespace, began: float) -> list[Case]:
    """All searches; the two variants of a graph know each other."""
    ends = {stage: began + 60 * args.minutes * share for stage, share in ENDS.items()}
    pairs = [(d, v) for d in args.datasets.split(",") for v in args.variants.split(",")]
    cases = [Case(d, v, ends, width=args.width) for d, v in pairs]
    for one in cases:
        one.rival = next((c for c in cases if c.dataset == one.dataset and c is not one), None)
    return cases


def search(args: argparse.Namespace, workers: Workers, out: Results, began: float) -> None:
    """Hand out jobs, to the search that has had the least time, until all are done or the time is over."""
    cases = cases_of(args, began)
    by_name = {c.name: c for c in cases}
    end = began + 60 * args.minutes
    while time.time() < end and any(c.stage != "done" for c in cases):
        while workers.idle:
            for case in sorted(cases, key=lambda c: (STAGES.index(c.stage), c.running, c.spent)):
                job = case.next()
                if job is not None:
                    case.running += 1
                    workers.give(job)
                    break
            else:
                break
        for job, answer in workers.answers(min(1.0, max(0.0, end - time.time()))):
            if job is None:
                out.head |= answer
            else:
                out.add(by_name[f"{job.dataset} {job.variant}"].take(job, answer))


def table(rows: list[Row]) -> str:
    """The accuracies of the reported splits."""
    lines = [
        "",
        f"{'graph':30}{'track':8}{'val':>7}{'test':>8}{'±':>6}{'paper':>7}{'order':>7}{'epoch':>7}{'tried':>7}",
    ]
    done = [r for r in rows if "test" in r]
    for r in sorted(done, key=lambda r: (r["dataset"], r["variant"], "learned" in r["case"])):
        name = f"{r['dataset']} {r['variant']}{' (learned)' if 'learned' in r['case'] else ''}"
        own = [t for t in rows if "tried" in t and (t["dataset"], t["variant"]) == (r["dataset"], r["variant"])]
        tried = sum(len(t["tried"]) for t in own if "explore" in t["case"] and t["track"] == r["track"])
        lines.append(
            f"{name:30}{r['track']:8}{r['val']:7.2f}{r['test']:8.2f}{r['deviation']:6.2f}{r['paper']:7.1f}"
            f"{r['order']:7.2f}{r['epoch']:7.0f}{tried:7d}"
        )
    failed = [r for r in rows if "failed" in r]
    return "\n".join([*lines, f"{len(rows)} jobs, {len(failed)} failed", *sorted({r["failed"][:150] for r in failed})])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the graphs")
    parser.add_argument("--out", type=Path, required=True, help="results, written after every job")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--width", type=int, default=6, help="settings side by side in the first jobs")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--variants", default="l,nl")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction, default=True, help="try NVIDIA's MPS")
    args = parser.parse_args()
    began = time.time()
    os.environ["OMP_NUM_THREADS"] = "1"
    shared = args.device != "cpu" and args.mps and share_the_gpu()
    print(f"MPS: {shared}", flush=True)
    head = {"python": sys.version.split()[0], "workers": args.workers, "mps": shared, "minutes": args.minutes}
    out = Results(args.out, head)
    workers = Workers(args)
    try:
        search(args, workers, out, began)
    finally:
        workers.end()
        if shared:
            stop_sharing()
        print(table(out.rows), flush=True)


if __name__ == "__main__":
    main()
