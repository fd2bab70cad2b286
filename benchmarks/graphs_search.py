"""Accuracies of F-GRAND on all graphs: a search by validation accuracy, then the reported splits, then learned orders.

    python benchmarks/graphs_search.py --data DATA --out OUT/search.json --minutes 8

Several processes train on one device. Each graph and variant goes through four stages, time shared equally:

    explore   FROND's settings, ours, the paper's, and others drawn at random or near the best, on two splits
    final     the best three with the first kind of loss on FROND's ten splits: all first choices, then all second ones
    other     the same with the other kind
    learned   the first with the order learned

Of the three the one with the best mean validation accuracy is reported. A case such as ``airport:order`` asks whether
the order matters, see ``graph_orders.py``.

With ``--known`` the settings that earlier searches tried count as tried. The splits of the first stage are none of
those reported, and their test accuracies are not even written down. There are two kinds of loss: ``plain``, and
``agree``, which also asks two draws of dropout to agree. Every stage has a deadline at which its trainings end with
what they have, and results are written after every job. Kernels of small graphs wait behind those of large ones: search
Airport, Cora and CiteSeer in a call of their own, before or after, not beside.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from graph_jobs import Row
from graph_orders import OrderCase
from graph_space import DATASETS, ENDS, FINALISTS, STAGES, TRACKS, Case
from graph_workers import Workers, share_the_gpu, stop_sharing

from neuralfde.cli.experiment import write_json
from neuralfde_experiments.data.order_graphs import ORDER_GRAPHS
from neuralfde_experiments.graphs import PAPER_ACCURACY, PAPER_DIRECT


class Results:
    """Rows in a file that is whole after every one of them."""

    def __init__(self, path: Path, head: Row) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.head, self.rows, self.began = path, head, list[Row](), time.time()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.head["minutes"] = round((time.time() - self.began) / 60, 2)
        write_json(self.path, {**self.head, "rows": self.rows}, indent=1)
        brief = {k: v for k, v in row.items() if k not in ("settings", "splits", "tried", "dataset", "variant")}
        print(f"[{time.time() - self.began:5.0f} s]", json.dumps(brief), flush=True)


def tried(found: Row) -> list[Row]:
    """What a file of this script, or the result file made of all of them, says of settings tried."""
    rows = found["rows"] if "rows" in found else [row for run in found["runs"] for row in run["rows"]]
    flat = ("explore", "judge")  # in the result file each setting is a row
    return [r | {"tried": [{"val": r["val"]}]} if r.get("stage") in flat else r for r in rows]


def cases_of(args: argparse.Namespace, began: float) -> list[Case | OrderCase]:
    """All searches; the two variants of a graph know each other."""
    shares = ENDS | {"explore": args.explore}
    ends = {stage: began + 60 * args.minutes * share for stage, share in shares.items()}
    known = [row for path in args.known for row in tried(json.loads(path.read_text()))]
    how: Row = {
        "width": args.width,
        "finalists": args.finalists,
        "tracks": tuple(args.tracks.split(",")),
        "apart": args.device == "cpu",
    }
    how |= {"explored": tuple(args.explored.split(",")), "stages": tuple(args.stages.split(","))}
    orders = {f"{d}:order": OrderCase(d, ends, apart=args.device == "cpu") for d in ORDER_GRAPHS}
    changes = [dict(map(one_change, change.split(","))) for change in args.changes]
    every = {f"{d}:{v}": Case(d, v, ends, changes=[*changes], **how) for d in DATASETS for v in ("l", "nl")}
    for name, one in every.items():
        one.rival = next(c for c in every.values() if c.dataset == one.dataset and c is not one)
        for row in known:
            if f"{row['dataset']}:{row['variant']}" == name:
                one.know(row)
    for name in args.settled.split(",") if args.settled else ():
        every[name].stage = "final"  # with nothing left to do in it
    both: dict[str, Case | OrderCase] = {**every, **orders}
    return [both[name] for name in args.cases.split(",") if name] or list(both.values())


def one_change(text: str) -> tuple[str, Any]:
    """A name and a value of what ``--changes`` says."""
    name, value = text.split("=")
    return name, json.loads(value)


def search(args: argparse.Namespace, workers: Workers, out: Results, began: float) -> None:
    """Hand out jobs, to the search that has had the least time, until all are done or the time is over."""
    cases = cases_of(args, began)
    by_name = {c.name: c for c in cases}
    end = began + 60 * args.minutes
    while time.time() < end and any(c.stage != "done" for c in cases):
        while workers.idle:
            for case in sorted(cases, key=lambda c: c.turn()):
                job = case.next()
                if job is not None:
                    case.running += 1
                    case.given += 1
                    workers.give(job)
                    break
            else:
                break
        for job, answer in workers.answers(min(1.0, max(0.0, end - time.time()))):
            if job is None:
                out.head |= answer
            else:
                out.add(by_name[job.case.rsplit(" ", 2)[0]].take(job, answer))


def table(rows: list[Row]) -> str:
    """The accuracies of the reported splits."""
    lines = [
        "",
        f"{'graph':30}{'track':8}{'val':>7}{'test':>8}{'±':>6}{'direct':>7}{'adjoint':>8}{'order':>7}{'epoch':>7}{'tried':>7}",
    ]
    done = [r for r in rows if "test" in r]
    for r in sorted(done, key=lambda r: (r["dataset"], r["variant"], r["track"], "learned" in r["case"])):
        name = f"{r['dataset']} {r['variant']}{' (learned)' if 'learned' in r['case'] else ''}"
        own = [t for t in rows if "tried" in t and (t["dataset"], t["variant"]) == (r["dataset"], r["variant"])]
        tried = sum(len(t["tried"]) for t in own if "explore" in t["case"] and t["track"] == r["track"])
        nl = r["variant"] == "nl"
        theirs = (
            (PAPER_DIRECT[r["dataset"]][nl], PAPER_ACCURACY[r["dataset"]][nl][0])
            if nl or r["dataset"] in DATASETS
            else (0.0, 0.0)
        )
        lines.append(
            f"{name:30}{r['track']:8}{r['val']:7.2f}{r['test']:8.2f}{r['deviation']:6.2f}{theirs[0]:7.1f}{theirs[1]:8.1f}"
            f"{r['order']:7.2f}{r['epoch']:7.0f}{tried:7d}{' cut' if r['cut'] else ''}"
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
    parser.add_argument("--finalists", type=int, default=FINALISTS, help="settings trained on the reported splits")
    parser.add_argument("--cases", default="", help="such as cora:l,citeseer:nl; default: all graphs and variants")
    parser.add_argument("--settled", default="", help="cases of which only the order is still to be learned")
    parser.add_argument("--tracks", default=",".join(TRACKS), help="kinds of loss, in the order they are reported")
    parser.add_argument("--explored", default=",".join(TRACKS), help="kinds of loss whose settings are searched")
    parser.add_argument("--stages", default=",".join(STAGES), help="stages to go through")
    parser.add_argument("--explore", type=float, default=ENDS["explore"], help="share of the time for the first stage")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="results of earlier searches to start from")
    parser.add_argument("--changes", nargs="*", default=[], help="to try with the best, such as average=0.9,rows=true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction, default=True, help="try NVIDIA's MPS")
    args = parser.parse_args()
    began = time.time()
    os.environ["OMP_NUM_THREADS"] = "1"
    given = "CUDA_MPS_PIPE_DIRECTORY" in os.environ  # by whoever starts several of these side by side
    shared = args.device != "cpu" and args.mps and (given or share_the_gpu())
    print(f"MPS: {shared}", flush=True)
    head = {"workers": args.workers, "mps": shared}
    out = Results(args.out, head)
    workers = Workers(args)
    try:
        search(args, workers, out, began)
    finally:
        workers.end()
        if shared and not given:
            stop_sharing()
        print(table(out.rows), flush=True)


if __name__ == "__main__":
    main()
