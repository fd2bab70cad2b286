"""Cost of F-GRAND on large graphs, on one GPU within a budget of minutes; accuracies: ``graphs_search.py``.

    python benchmarks/graphs_gpu.py --out DIR --minutes 2.4

``--parts`` is any of ``arxiv``, ``profile``, ``products``, ``largest`` and ``replay``, run in the order given. Memory
is measured on a device that holds nothing else, and each row says what was there before it (``kept_mib``); ``replay``,
the times of captured steps of both graphs, comes last because such steps hold memory. The file ``graphs-cost.json`` in
``DIR`` is written after every row, and a part that has used up its share of the time begins nothing new. Drawing the
graph of the size of ogbn-products takes the processor most of a minute; ``--prepare FILE`` does it beforehand and ends,
and ``--products FILE`` takes it from there.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from neuralfde.cli.experiment import Report, Row, write_json
from neuralfde.cli.measuring import machine
from neuralfde.models.message_passing import Graph
from neuralfde_experiments import graph_cost
from neuralfde_experiments.data.graphs import data_class

SHARES = {"arxiv": 40.0, "profile": 10.0, "products": 22.0, "largest": 66.0}
"""Seconds after which a part begins nothing new; the last has what is left."""
RESERVE = 12.0
"""Seconds before the end at which nothing new begins."""
FIRST = 5
"""Methods of each variant that are measured before the others."""
METHODS = {
    "l": "direct,exact+powers,exact,exact+recompute,exact+blocks+states,paper,loop,exact+columns+host,direct+replay,"
    "exact+powers+replay,exact+blocks+states+replay",
    "nl": "direct,exact+attention,exact,exact+recompute+host,exact+blocks+queries+states,paper,loop,exact+recompute,"
    "direct+replay,exact+attention+replay,exact+blocks+queries+states+replay",
}
BATCHES = {
    "l": "direct,exact,exact+columns+host,exact+recompute,paper,direct+replay,exact+blocks+states+replay",
    "nl": "direct,exact,exact+recompute+host,exact+recompute,paper,direct+replay,exact+blocks+queries+states+replay",
}
TABLES = {"arxiv": METHODS, "products": BATCHES}
LARGEST = (
    ("l", "direct"), ("l", "exact+recompute"), ("nl", "direct"), ("nl", "exact+recompute+host"),
    ("l", "exact+columns+host"), ("nl", "exact+recompute"), ("nl", "exact"), ("l", "exact"),
)  # fmt: skip


class Out(Report):
    """Rows in a file that is whole after every one of them, and a clock."""

    def __init__(self, path: Path, minutes: float) -> None:
        super().__init__()
        self.path, self.end = path, time.monotonic() + 60 * minutes - RESERVE
        self.deadline = self.end
        self.head = machine()

    def begin(self, part: str) -> None:
        """Start the clock of a part."""
        self.deadline = min(self.end, time.monotonic() + SHARES.get(part, float("inf")))
        print(f"== {part}: {self.left():.0f} s", flush=True)

    def left(self) -> float:
        """Seconds until the part's share is spent."""
        return self.deadline - time.monotonic()

    def case(self, key: str, compute: Callable[[], Row]) -> Row:
        """As :class:`Report`, but nothing new begins when the time is spent, and what goes wrong is a row too."""
        known = next((r for r in self.rows if r["case"] == key), None)
        if known is not None or self.left() <= 0:
            return known or {"case": key, "failed": "no time left"}
        try:
            return super().case(key, compute)
        except Exception as error:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            failed = f"{type(error).__name__}: {error}"[:300]
            return super().case(key, lambda: {"failed": failed})

    def row(self, row: Row) -> None:
        """Write everything so far, and show this one."""
        write_json(self.path, {**self.head, "rows": self.rows}, indent=1)
        brief = {k: v for k, v in row.items() if k != "settings"}
        print(f"[{self.end - time.monotonic():6.0f} s left]", json.dumps(brief, default=str), flush=True)


def cost(out: Out, args: argparse.Namespace, part: str) -> None:
    """One of the cost tables; a configuration that fails is a row that says so."""
    common = {"scale": args.scale, "device": args.device, "repeats": args.repeats, "seed": args.seed}
    if part == "largest":
        steady_allocation(args.device)
        for variant, adjoint in LARGEST:
            more = {"variants": variant, "batches": "", "largest": adjoint, "cap_gib": args.cap_gib, "columns": 8}
            graph_cost.run(graph_cost.Config(graph="products", **more, **common), out)
        return
    for graph in args.graphs.split(",") if part == "replay" else (part,):
        for batch in args.batches.split(",") if graph == "products" else ("",):
            for some, (variant, adjoints) in itertools.product(
                (slice(FIRST), slice(FIRST, None)), TABLES[graph].items()
            ):
                every = [a for a in adjoints.split(",") if ("replay" in a) == (part == "replay")]
                if chosen := ",".join(every[some]):
                    more = {"graph": graph, "variants": variant, "adjoints": chosen, "batches": batch}
                    graph_cost.run(graph_cost.Config(**more, **common), out)


def steady_allocation(device: str) -> None:
    """Let the allocator grow its pieces, so that gaps between them do not decide what fits; where it can."""
    if device == "cpu":
        return
    try:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.empty(2**24, device=device).fill_(1)
    except Exception as error:
        print("expandable segments:", error)
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def profile(out: Out, args: argparse.Namespace) -> None:
    """Where the time of a training step goes, kernel by kernel."""
    config = graph_cost.Config(scale=args.scale, device=args.device, seed=args.seed)
    data = graph_cost.whole_graph("arxiv", args.scale, args.seed)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if args.device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    x, y, mask = (v.to(args.device) for v in (data.x, data.y, data.train_mask.nonzero()[:, 0]))
    graph = Graph.from_edge_index(data.edge_index.to(args.device), int(data.num_nodes))
    for variant, adjoint in (
        ("l", "direct"),
        ("l", "exact+powers"),
        ("nl", "direct"),
        ("nl", "exact+attention"),
    ):

        def compute(variant: str = variant, adjoint: str = adjoint) -> Row:
            model = graph_cost.model_of(config, data, variant, adjoint).to(args.device).train()
            for _ in range(2):
                F.cross_entropy(model(x, graph)[mask], y[mask]).backward()
            with torch.profiler.profile(activities=activities) as found:
                F.cross_entropy(model(x, graph)[mask], y[mask]).backward()
                if args.device != "cpu":
                    torch.cuda.synchronize()
            events = [e for e in found.key_averages() if e.self_device_time_total or args.device == "cpu"]
            cost_of = operator.attrgetter(f"self_{'cpu' if args.device == 'cpu' else 'device'}_time_total")
            top = sorted(events, key=cost_of, reverse=True)[:14]
            kernels = {e.key[:90]: [round(cost_of(e) / 1000, 3), e.count] for e in top}
            return {"variant": variant, "kernels": kernels, "ms": round(sum(map(cost_of, events)) / 1000, 2)}

        out.case(f"profile {variant} {adjoint}", compute)


def table(rows: list[Row]) -> str:
    """Costs, and their ratios to direct; times of replayed steps are compared with each other."""
    lines = ["", f"{'case':44}{'infer s':>9}{'train s':>9}{'MiB':>9}{'time/direct':>12}{'memory/direct':>14}"]
    found = {(_case(r), r["adjoint"]): r for r in rows if r.get("source") == "measured" and "training_s" in r}
    for (case, adjoint), r in found.items():
        base = found.get((case, "direct+replay" if "replay" in adjoint else "direct"), r)
        line = f"{r['case'][:43]:44}{r['inference_s']:9.4f}{r['training_s']:9.4f}{r['training_mib'] or 0:9.0f}"
        line += f"{r['training_s'] / base['training_s']:12.2f}"
        line += f"{r['training_mib'] / base['training_mib']:14.2f}" if r["training_mib"] else ""
        lines.append(line + (f"  {r['kept_mib']} MiB were there before" if r["kept_mib"] > 0.1 else ""))
    for r in (r for r in rows if "largest" in r):
        lines.append(f"{r['case']}: {r['largest']} nodes, {r['edges']} edges within {r['cap_gib']} GiB")
    for r in (r for r in rows if "kernels" in r):
        lines += [f"{r['case']}: {r['ms']} ms", *[f"  {t:9.3f} ms {n:5d} {k}" for k, (t, n) in r["kernels"].items()]]
    return "\n".join([*lines, *[f"{r['case']}: {r['failed'][:150]}" for r in rows if "failed" in r]])


def _case(row: Row) -> tuple[Any, ...]:
    return row["graph"], row["variant"], row["nodes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the results, written after every row")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--parts", default="arxiv,products,largest,replay")
    parser.add_argument("--graphs", default="arxiv,products", help="of which captured steps are timed")
    parser.add_argument("--batches", default="20000,10000,80000", help="nodes of a sampled subgraph")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the synthetic graphs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cap-gib", type=float, default=4.0, help="memory allowed when looking for the largest batch")
    parser.add_argument("--prepare", type=Path, help="draw the products graph into this file and end")
    parser.add_argument("--products", type=Path, help="a file that --prepare has made")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.prepare is not None:
        whole = graph_cost.whole_graph("products", args.scale, args.seed)
        torch.save(whole.to_dict(), args.prepare)
        return
    gc.freeze()  # memory is given back before every measurement, which need not look through what was imported
    args.out.mkdir(parents=True, exist_ok=True)
    out = Out(args.out / "graphs-cost.json", args.minutes)
    for part in args.parts.split(","):
        if part in ("products", "largest") or (part == "replay" and "products" in args.graphs):
            drawn(args.products, args.scale, args.seed)
        out.begin(part)
        try:
            profile(out, args) if part == "profile" else cost(out, args, part)
        except Exception as error:
            print(f"{part}: {type(error).__name__}: {error}", flush=True)
    print(table(out.rows))


def drawn(products: Path | None, scale: float, seed: int) -> None:
    """Have the graph of the size of ogbn-products at hand, from a file where there is one."""
    began = time.monotonic()
    if products is not None and products.exists():
        whole = data_class().from_dict(torch.load(products, mmap=True, weights_only=True))
        generated = graph_cost.whole_graph
        graph_cost.whole_graph = lambda graph, *how: whole if graph == "products" else generated(graph, *how)
    else:
        graph_cost.whole_graph("products", scale, seed)
    print(f"products: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
