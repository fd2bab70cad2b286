"""Every graph figure on one GPU, within a budget of minutes: cost first, then accuracy, then a search on validation.

    python benchmarks/graphs_gpu.py --data DATA --out results.json --minutes 9
    python benchmarks/graphs_gpu.py --data DATA --out more.json --known results.json --minutes 9 --parts tune,nodes

``--parts`` is any of ``arxiv``, ``products``, ``largest``, ``nodes``, ``learned`` and ``tune``, run in that order.
Results are written after every row. ``--known`` takes rows of an earlier call as done: its trials seed the search and
its finished accuracies are not trained again. Whatever is chosen is chosen by validation accuracy alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from neuralfde.experiments import graph_cost
from neuralfde.experiments.graph_settings import Settings, candidates, settings_for
from neuralfde.experiments.graph_training import graph_of, side_by_side, train_splits
from neuralfde.experiments.graphs import PAPER_ACCURACY
from neuralfde.experiments.runtime import Report

DATASETS = ("cora", "citeseer", "photo", "computers", "pubmed", "coauthor-cs", "coauthor-physics")
SPLITS = 10
CHOOSE_ON = 3
ORDERS = (0.6, 0.8, 1.0)
Row = dict[str, Any]


class Out(Report):
    """Rows in a file that is whole after every one of them, a clock, and what an earlier call found."""

    def __init__(self, path: Path, minutes: float, known: Path | None) -> None:
        super().__init__()
        self.path, self.deadline = path, time.monotonic() + 60 * minutes
        self.old: dict[str, Row] = {}
        if known is not None and known.exists():
            self.old = {r["case"]: r for r in json.loads(known.read_text())["rows"] if "failed" not in r}
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        self.head = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}

    def left(self) -> float:
        """Seconds until the budget is spent."""
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
        brief = {k: v for k, v in row.items() if k not in ("settings", "splits")}
        print(f"[{self.left():6.0f} s left]", json.dumps(brief, default=str), flush=True)


def cost(out: Out, parts: set[str], scale: float) -> None:
    """The cost tables; a configuration that fails is a row that says so."""
    jobs = []
    if "arxiv" in parts:
        jobs.append(graph_cost.Config(graph="arxiv", scale=scale))
    if "products" in parts or "largest" in parts:
        batches = "10000,20000,80000" if "products" in parts else ""
        largest = "direct,exact" if "largest" in parts else ""
        jobs.append(graph_cost.Config(graph="products", scale=scale, batches=batches, largest=largest, cap_gib=24.0))
    for config in jobs:
        if out.left() > 60:
            attempt(out, f"cost of {config.graph}", lambda c=config: {"rows": len(graph_cost.run(c, out))})


def attempt(out: Out, key: str, compute: Callable[[], Row]) -> Row | None:
    """A row, or a row that says what went wrong."""
    try:
        row = out.case(key, compute)
        return None if "failed" in row else row
    except Exception as error:
        torch.cuda.empty_cache()
        failed = f"{type(error).__name__}: {error}"[:300]
        out.case(f"{key} (failed)", lambda: {"failed": failed})
        return None


def trained(args: argparse.Namespace, dataset: str, variant: str, s: Settings, seeds: range, learn: bool) -> Row:
    """Train on the splits ``seeds`` and summarise."""
    began = time.monotonic()
    s = replace(s, epochs=min(s.epochs, args.epochs))
    options = {"variant": variant, "learn_order": learn, "device": args.device, "root": args.data, "evaluate_every": 4}
    fits = side_by_side(graph_of(dataset, args.data, args.device), s, variant, args.device)
    size = 1 if learn else min(len(seeds), fits)
    rows: list[Row] = []
    for k in range(0, len(seeds), size):
        rows += train_splits(dataset, s, list(seeds)[k : k + size], **options)
    found = {k: statistics.fmean(r[k] for r in rows) for k in ("val", "test", "order", "epoch")}
    deviation = statistics.stdev(r["test"] for r in rows) if len(rows) > 1 else 0.0
    row = {"dataset": dataset, "variant": variant, **{k: round(v, 3) for k, v in found.items()}}
    row |= {"deviation": round(deviation, 2), "count": len(rows), "paper": PAPER_ACCURACY[dataset][variant == "nl"][0]}
    return row | {"seconds": round(time.monotonic() - began, 1), "settings": asdict(s), "splits": rows}


class Search:
    """The best settings of one graph and variant so far, by mean validation accuracy over the first splits."""

    def __init__(self, args: argparse.Namespace, out: Out, dataset: str, variant: str) -> None:
        self.args, self.out, self.dataset, self.variant = args, out, dataset, variant
        self.name, self.trial, self.slowest = f"{dataset} {variant}", 0, 5.0
        self.best, self.val = settings_for(dataset, "tuned"), -1.0
        if variant == "nl":
            self.best = replace(self.best, heads=min(self.best.heads, 4))
        for key, row in out.old.items():
            if key.startswith(f"{self.name} trial"):
                self.trial += 1
                self.judge(row)

    def judge(self, row: Row) -> None:
        """Keep the settings of a row if its validation accuracy is the best."""
        if row["val"] > self.val:
            self.val, self.best = row["val"], Settings(**row["settings"])

    def attempt(self, s: Settings) -> None:
        """Train one candidate, if it is likely to end in time."""
        if self.out.left() < 1.5 * self.slowest:
            return
        key, seeds, began = f"{self.name} trial {self.trial}", range(CHOOSE_ON), time.monotonic()
        self.trial += 1
        row = attempt(self.out, key, lambda: trained(self.args, self.dataset, self.variant, s, seeds, False))
        self.slowest = max(self.slowest, time.monotonic() - began)
        if row is not None:
            self.judge(row)

    def orders(self) -> None:
        """Choose the order."""
        start = self.best
        if self.val < 0:
            for order in (start.order, *ORDERS):
                self.attempt(replace(start, order=order))

    def neighbour(self) -> None:
        """One more candidate near the best."""
        self.attempt(candidates(self.best, 1, seed=1000 + self.trial)[-1])

    def final(self, learn: bool = False, count: int = SPLITS) -> None:
        """All splits with the best settings; done once for the same settings."""
        s = replace(self.best, order=min(self.best.order, 0.95)) if learn else self.best
        picked = " ".join(str(v) for v in asdict(s).values())
        key = f"{self.name} {'learned' if learn else 'final'} {count} splits: {picked}"
        if self.out.left() > 2.5 * self.slowest and all(r["case"] != key for r in self.out.rows):
            attempt(self.out, key, lambda: trained(self.args, self.dataset, self.variant, s, range(count), learn))


def accuracy(out: Out, parts: set[str], args: argparse.Namespace) -> None:
    """Orders and accuracies of all graphs, then learned orders, then the search in turns, then what it changed."""
    searches = [Search(args, out, d, v) for d in args.datasets.split(",") for v in args.variants.split(",")]
    if "nodes" in parts:
        for search in searches:
            search.orders()
            search.final()
    if "learned" in parts:
        for search in searches:
            search.final(learn=True, count=3)
    while "tune" in parts:
        again = 3 * sum(s.slowest for s in searches) + 20  # what training the finals once more may take
        if out.left() < again:
            break
        before = out.left()
        for search in searches:
            search.neighbour()
        if before - out.left() < 0.01:
            break
    if "tune" in parts:
        for search in searches:
            search.final()


def table(rows: list[Row]) -> str:
    """Cost ratios to direct, and the latest accuracy of each graph and variant."""
    lines = ["", f"{'case':34}{'infer s':>9}{'train s':>9}{'MiB':>9}{'time/direct':>12}{'memory/direct':>14}"]
    direct = {k: r for r in rows for k in [_case(r)] if r.get("adjoint") == "direct" and "training_s" in r}
    for r in (r for r in rows if "training_s" in r):
        base = direct.get(_case(r), r)
        ratios = (r["training_s"] / base["training_s"], r["training_mib"] / base["training_mib"])
        lines.append(
            f"{r['case'][:33]:34}{r['inference_s']:9.3f}{r['training_s']:9.3f}{r['training_mib']:9.0f}"
            f"{ratios[0]:12.2f}{ratios[1]:14.2f}"
        )
    lines += [f"{r['case']}: {r['largest']} nodes" for r in rows if "largest" in r]
    lines.append(f"{'graph':28}{'val':>7}{'test':>8}{'±':>6}{'paper':>7}{'order':>7}{'splits':>8}")
    last = {
        (r["dataset"], r["variant"], "learned" in r["case"]): r
        for r in rows
        if "trial" not in r["case"] and "test" in r
    }
    for (dataset, variant, learned), r in last.items():
        name = f"{dataset} {variant}{' (learned)' if learned else ''}"
        lines.append(
            f"{name:28}{r['val']:7.2f}{r['test']:8.2f}{r['deviation']:6.2f}{r['paper']:7.1f}{r['order']:7.2f}{r['count']:8d}"
        )
    return "\n".join(lines)


def _case(row: Row) -> tuple[Any, ...]:
    return row.get("source"), row.get("graph"), row.get("variant"), row.get("nodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the graphs")
    parser.add_argument("--out", type=Path, required=True, help="results, written after every row")
    parser.add_argument("--known", type=Path, help="results of an earlier call")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", default="arxiv,products,largest,nodes,learned,tune")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--variants", default="l,nl")
    parser.add_argument("--scale", type=float, default=1.0, help="of the synthetic graphs")
    parser.add_argument("--epochs", type=int, default=150, help="most epochs of a training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    out, parts = Out(args.out, args.minutes, args.known), set(args.parts.split(","))
    cost(out, parts, args.scale)
    accuracy(out, parts, args)
    print(table(out.rows))


if __name__ == "__main__":
    main()
