"""Every graph figure on one GPU, within a budget of minutes, the most valuable first.

    python benchmarks/graphs_gpu.py --data DATA --out results.json --minutes 7
    python benchmarks/graphs_gpu.py --data DATA --out more.json --known results.json --minutes 7 --parts tune,nodes

``--parts`` is any of ``profile``, ``arxiv``, ``products``, ``nodes``, ``largest``, ``learned`` and ``tune``, run in the
order given. Results are written after every row, and a part that has used up its share of the time begins nothing new.
``--known`` takes rows of an earlier call as done: its trials seed the search and its finished accuracies are not
trained again. Whatever is chosen is chosen by validation accuracy alone, on splits other than the ten reported.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from neuralfde.experiments import graph_cost
from neuralfde.experiments.graph_settings import SPACE, Settings, candidates, settings_for
from neuralfde.experiments.graph_training import OWN, graph_of, side_by_side, train_splits
from neuralfde.experiments.graphs import PAPER_ACCURACY
from neuralfde.experiments.runtime import Report

DATASETS = ("citeseer", "cora", "photo", "computers", "pubmed", "coauthor-cs", "coauthor-physics")
REPORTED = range(10)
JUDGES = range(100, 104)
"""Splits whose validation accuracy chooses; none of them is reported."""
ORDERS = (0.6, 0.8, 0.9, 1.0)
SHARES = {"profile": 15.0, "arxiv": 60.0, "products": 60.0, "nodes": 300.0, "largest": 60.0, "learned": 240.0}
"""Seconds after which a part begins nothing new; a search has all that is left."""
Row = dict[str, Any]


class Out(Report):
    """Rows in a file that is whole after every one of them, a clock, and what an earlier call found."""

    def __init__(self, path: Path, minutes: float, known: Path | None) -> None:
        super().__init__()
        self.path, self.end = path, time.monotonic() + 60 * minutes
        self.deadline = self.end
        self.old: dict[str, Row] = {}
        if known is not None and known.exists():
            self.old = {r["case"]: r for r in json.loads(known.read_text())["rows"] if "failed" not in r}
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        self.head = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}

    def begin(self, part: str) -> None:
        """Start the clock of a part."""
        self.deadline = min(self.end, time.monotonic() + SHARES.get(part, float("inf")))
        print(f"== {part}: {self.left():.0f} s", flush=True)

    def left(self) -> float:
        """Seconds until the part's share is spent."""
        return self.deadline - time.monotonic()

    def known(self, key: str) -> Row | None:
        """A row of the earlier call."""
        return self.old.get(key)

    def case(self, key: str, compute: Callable[[], Row]) -> Row:
        """As :class:`Report`, but nothing new begins after the budget is spent."""
        if self.left() <= 0 and self.known(key) is None:
            return {"case": key, "failed": "no time left"}
        return super().case(key, compute)

    def row(self, row: Row) -> None:
        """Write everything so far, and show this one."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1, default=str))
        part.replace(self.path)
        brief = {k: v for k, v in row.items() if k not in ("settings", "splits", "table", "tried")}
        print(f"[{self.end - time.monotonic():6.0f} s left]", json.dumps(brief, default=str), flush=True)


def attempt(out: Out, key: str, compute: Callable[[], Row]) -> Row | None:
    """A row, or a row that says what went wrong."""
    try:
        row = out.case(key, compute)
        return None if "failed" in row else row
    except Exception as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        failed = f"{type(error).__name__}: {error}"[:300]
        out.case(f"{key} (failed)", lambda: {"failed": failed})
        return None


def cost(out: Out, args: argparse.Namespace, part: str) -> None:
    """One of the cost tables; a configuration that fails is a row that says so."""
    common = {"scale": args.scale, "device": args.device}
    if part == "arxiv":
        config = graph_cost.Config(graph="arxiv", **common)
    elif part == "products":
        config = graph_cost.Config(graph="products", **common)
    else:
        largest = "direct,exact,exact+recompute"
        config = graph_cost.Config(graph="products", batches="", largest=largest, cap_gib=args.cap_gib, **common)
    attempt(out, f"cost: {part}", lambda: {"rows": len(graph_cost.run(config, out))})


def profile(args: argparse.Namespace) -> Row:
    """Where the time of a training step of ten small models goes."""
    s = replace(settings_for("cora", "tuned"), epochs=4)
    options: dict[str, Any] = {"device": args.device, "root": args.data, "evaluate_every": 4}
    train_splits("cora", s, list(REPORTED), **options)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if args.device.startswith("cuda") else []
    began = time.monotonic()
    with torch.profiler.profile(activities=kinds) as found:
        train_splits("cora", s, list(REPORTED), **options)
    by = "self_cuda_time_total" if len(kinds) > 1 else "self_cpu_time_total"
    table = found.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=60)
    return {"epochs": s.epochs, "seconds": round(time.monotonic() - began, 2), "table": table.splitlines()}


class Trainer:
    """Trains splits of one graph side by side and summarises them."""

    def __init__(self, args: argparse.Namespace, dataset: str, variant: str) -> None:
        self.args, self.dataset, self.variant = args, dataset, variant

    def rows(self, each: Sequence[Settings], seeds: Sequence[int], learn: bool = False) -> list[Row]:
        """One row for each seed and its settings, as many at once as fit."""
        args = self.args
        most = {"epochs": min(each[0].epochs, args.epochs), "patience": min(each[0].patience, args.patience)}
        each = [replace(s, **most) for s in each]
        options: dict[str, Any] = {"variant": self.variant, "learn_order": learn, "device": args.device}
        options |= {"root": args.data, "evaluate_every": 4}
        size = side_by_side(graph_of(self.dataset, args.data, args.device), each[0], self.variant, args.device)
        found: list[Row] = []
        for k in range(0, len(seeds), size):
            part = slice(k, k + size)
            found += train_splits(self.dataset, each[k], seeds[part], each=each[part], **options)
        return found

    def summary(self, s: Settings, rows: list[Row], began: float) -> Row:
        """Means over rows."""
        found = {k: statistics.fmean(r[k] for r in rows) for k in ("val", "test", "order", "epoch")}
        deviation = statistics.stdev(r["test"] for r in rows) if len(rows) > 1 else 0.0
        row = {"dataset": self.dataset, "variant": self.variant, **{k: round(v, 3) for k, v in found.items()}}
        paper = PAPER_ACCURACY[self.dataset][self.variant == "nl"][0]
        row |= {"deviation": round(deviation, 2), "count": len(rows), "paper": paper}
        return row | {"seconds": round(time.monotonic() - began, 1), "settings": asdict(s), "splits": rows}

    def trained(self, s: Settings, seeds: Sequence[int], learn: bool = False) -> Row:
        """Train all splits with one order."""
        began = time.monotonic()
        return self.summary(s, self.rows([s] * len(seeds), seeds, learn), began)

    def trials(self, trials: Sequence[Settings]) -> Row:
        """Train all trials on all judging splits at once; the row is that of the best by validation accuracy."""
        began = time.monotonic()
        rows = self.rows([s for s in trials for _ in JUDGES], list(JUDGES) * len(trials))
        apart = [rows[k * len(JUDGES) : (k + 1) * len(JUDGES)] for k in range(len(trials))]
        means = [statistics.fmean(r["val"] for r in part) for part in apart]
        best = max(range(len(trials)), key=lambda k: means[k])
        tried = [{k: getattr(s, k) for k in OWN} | {"val": round(m, 3)} for s, m in zip(trials, means, strict=True)]
        return untested(self.summary(trials[best], apart[best], began)) | {"tried": tried}


def untested(row: Row) -> Row:
    """The row of a trial: without any test accuracy, so that nobody can choose by it."""
    hidden = ("test", "deviation", "paper")
    splits = [{k: v for k, v in split.items() if k not in hidden} for split in row["splits"]]
    return {k: v for k, v in row.items() if k not in hidden} | {"splits": splits}


class Search:
    """The best settings of one graph and variant so far, by mean validation accuracy over the judging splits."""

    def __init__(self, args: argparse.Namespace, out: Out, dataset: str, variant: str) -> None:
        self.trainer, self.out = Trainer(args, dataset, variant), out
        self.name, self.trial, self.slowest = f"{dataset} {variant}", 0, 5.0
        self.best, self.val, self.adopted = settings_for(dataset, "tuned"), -1.0, False
        if variant == "nl" and self.best.heads > 4:
            self.best = replace(self.best, heads=4)
        for key, row in out.old.items():
            if key.startswith(f"{self.name} trial"):
                self.trial += 1
                self.judge(row)

    def judge(self, row: Row) -> None:
        """Keep the settings of a row if its validation accuracy is the best."""
        if row["val"] > self.val:
            self.val, self.best = row["val"], Settings(**row["settings"])

    def attempt(self, trials: Sequence[Settings]) -> bool:
        """Train candidates side by side, which must differ in nothing but :data:`OWN`, if that may end in time."""
        if self.out.left() < 2.5 * self.slowest:  # the reported splits are still to be trained
            return False
        key, began = f"{self.name} trial {self.trial}", time.monotonic()
        self.trial += 1
        row = attempt(self.out, key, lambda: self.trainer.trials(trials))
        self.slowest = max(self.slowest, time.monotonic() - began)
        if row is not None:
            self.judge(row)
        return row is not None

    def orders(self) -> None:
        """Choose the order, where nothing was chosen yet."""
        if self.val < 0:
            self.attempt([replace(self.best, order=o) for o in ORDERS])

    def adopt(self, *others: Search) -> None:
        """Begin from what was chosen for another variant, where nothing was chosen for this one."""
        for other in others:
            if self.val < 0 <= other.val:
                self.best = replace(other.best, heads=min(other.best.heads, 4))
                self.adopted, self.slowest = True, max(self.slowest, other.slowest)

    def published(self) -> None:
        """The settings FROND ships and those of the paper's table, each with several orders."""
        for table in () if self.adopted else ("published", "paper"):
            s = settings_for(self.trainer.dataset, table, epochs=self.best.epochs, patience=self.best.patience)
            s = replace(s, heads=min(s.heads, 4)) if self.trainer.variant == "nl" else s
            self.attempt([replace(s, order=o) for o in ORDERS])

    def neighbours(self) -> bool:
        """Several candidates near the best, of one shape: every other time the best's own."""
        draw = random.Random(1000 + self.trial)
        shape = candidates(self.best, 1, seed=1000 + self.trial, changes=2)[-1] if self.trial % 2 else self.best
        own = {k: SPACE[k] for k in OWN}
        trials = [replace(shape, **{k: getattr(self.best, k) for k in OWN})]
        for _ in range(self.trainer.args.beside - 1):
            trials.append(replace(trials[0], **{k: draw.choice(own[k]) for k in draw.sample(sorted(own), 2)}))
        return self.attempt(trials)

    def final(self, learn: bool = False) -> None:
        """All reported splits with the best settings; done once for the same settings."""
        s = replace(self.best, order=min(self.best.order, 0.95)) if learn else self.best
        picked = " ".join(str(v) for v in asdict(s).values())
        key = f"{self.name} {'learned' if learn else 'final'} {len(REPORTED)} splits: {picked}"
        if self.out.left() > 5 and all(r["case"] != key for r in self.out.rows):
            began = time.monotonic()
            attempt(self.out, key, lambda: self.trainer.trained(s, list(REPORTED), learn))
            self.slowest = max(self.slowest, time.monotonic() - began)


def accuracy(out: Out, args: argparse.Namespace, part: str, searches: list[Search]) -> None:
    """Accuracies of all graphs, those with learned orders, or a search in turns and what it changed."""
    if part == "nodes":
        first: dict[str, Search] = {}
        for search in searches:
            if search.trainer.dataset in first:  # an order is chosen once for a graph
                search.adopt(first[search.trainer.dataset])
            else:
                first[search.trainer.dataset] = search
                search.orders()
            search.final()
    elif part == "learned":
        for search in searches:
            search.final(learn=True)
    else:
        for search in searches:
            search.adopt(*(s for s in searches if s.trainer.dataset == search.trainer.dataset))
            stop = out.left() * args.search
            if search.adopted:  # something to report, whatever the search has time for
                search.final()
            search.orders()
            search.published()
            while out.left() > stop + 1.5 * search.slowest and search.neighbours():
                pass
            search.final()


def table(rows: list[Row]) -> str:
    """Cost ratios to direct, and the latest accuracy of each graph and variant."""
    lines = ["", f"{'case':36}{'infer s':>9}{'train s':>9}{'MiB':>9}{'time/direct':>12}{'memory/direct':>14}"]
    direct = {k: r for r in rows for k in [_case(r)] if r.get("adjoint") == "direct" and "training_s" in r}
    for r in (r for r in rows if "training_s" in r):
        base = direct.get(_case(r), r)
        ratios = (r["training_s"] / base["training_s"], r["training_mib"] / base["training_mib"])
        lines.append(
            f"{r['case'][:35]:36}{r['inference_s']:9.3f}{r['training_s']:9.3f}{r['training_mib']:9.0f}"
            f"{ratios[0]:12.2f}{ratios[1]:14.2f}"
        )
    lines += [f"{r['case']}: {r['largest']} nodes within {r['cap_gib']} GiB" for r in rows if "largest" in r]
    lines.append(f"{'graph':32}{'val':>7}{'test':>8}{'±':>6}{'paper':>7}{'order':>7}{'epoch':>7}{'splits':>8}")
    last = {
        (r["dataset"], r["variant"], "learned" in r["case"]): r
        for r in rows
        if "trial" not in r["case"] and "test" in r
    }
    for (dataset, variant, learned), r in last.items():
        name = f"{dataset} {variant}{' (learned)' if learned else ''}"
        lines.append(
            f"{name:32}{r['val']:7.2f}{r['test']:8.2f}{r['deviation']:6.2f}{r['paper']:7.1f}{r['order']:7.2f}"
            f"{r['epoch']:7.0f}{r['count']:8d}"
        )
    return "\n".join(lines)


def _case(row: Row) -> tuple[Any, ...]:
    return row.get("source"), row.get("graph"), row.get("variant"), row.get("nodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the graphs")
    parser.add_argument("--out", type=Path, required=True, help="results, written after every row")
    parser.add_argument("--known", type=Path, help="results of an earlier call")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--parts", default="arxiv,nodes,products,learned,largest,tune")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--variants", default="l,nl")
    parser.add_argument("--scale", type=float, default=1.0, help="of the synthetic graphs")
    parser.add_argument("--cap-gib", type=float, default=8.0, help="memory allowed when looking for the largest batch")
    parser.add_argument("--epochs", type=int, default=300, help="most epochs of a training")
    parser.add_argument("--patience", type=int, default=100, help="most epochs without a better validation accuracy")
    parser.add_argument("--search", type=float, default=0.6, help="share of the time left that each search leaves over")
    parser.add_argument("--beside", type=int, default=8, help="candidates trained side by side in a search")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    out, parts = Out(args.out, args.minutes, args.known), args.parts.split(",")
    searches = [Search(args, out, d, v) for v in args.variants.split(",") for d in args.datasets.split(",")]
    products: Future[Any] | None = None
    with ThreadPoolExecutor(1) as background:
        if {"products", "largest"} & set(parts):  # drawn meanwhile: its tens of millions of edges take the CPU a while
            products = background.submit(graph_cost.whole_graph, "products", args.scale, 0)
        for part in parts:
            if out.end - time.monotonic() < 5:
                break
            if part in ("products", "largest") and products is not None:
                products.result()
            out.begin(part)
            if part == "profile":
                attempt(out, "profile", lambda: profile(args))
            elif part in ("arxiv", "products", "largest"):
                cost(out, args, part)
            else:
                accuracy(out, args, part, searches)
    print(table(out.rows))


if __name__ == "__main__":
    main()
