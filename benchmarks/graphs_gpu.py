"""Cost of F-GRAND on large graphs, on one GPU within a budget of minutes; accuracies: ``graphs_search.py``.

    python benchmarks/graphs_gpu.py --out results.json --minutes 3

``--parts`` is any of ``arxiv``, ``products`` and ``largest``, run in the order given. Results are written after every
row, and a part that has used up its share of the time begins nothing new.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from neuralfde.experiments import graph_cost
from neuralfde.experiments.runtime import Report

SHARES = {"arxiv": 60.0, "products": 60.0, "largest": 60.0}
"""Seconds after which a part begins nothing new."""
Row = dict[str, Any]


class Out(Report):
    """Rows in a file that is whole after every one of them, and a clock."""

    def __init__(self, path: Path, minutes: float) -> None:
        super().__init__()
        self.path, self.end = path, time.monotonic() + 60 * minutes
        self.deadline = self.end
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        self.head = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}

    def begin(self, part: str) -> None:
        """Start the clock of a part."""
        self.deadline = min(self.end, time.monotonic() + SHARES.get(part, float("inf")))
        print(f"== {part}: {self.left():.0f} s", flush=True)

    def left(self) -> float:
        """Seconds until the part's share is spent."""
        return self.deadline - time.monotonic()

    def case(self, key: str, compute: Callable[[], Row]) -> Row:
        """As :class:`Report`, but nothing new begins after the budget is spent."""
        if self.left() <= 0:
            return {"case": key, "failed": "no time left"}
        return super().case(key, compute)

    def row(self, row: Row) -> None:
        """Write everything so far, and show this one."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1, default=str))
        part.replace(self.path)
        brief = {k: v for k, v in row.items() if k != "settings"}
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
    return "\n".join(lines)


def _case(row: Row) -> tuple[Any, ...]:
    return row.get("source"), row.get("graph"), row.get("variant"), row.get("nodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results, written after every row")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--parts", default="arxiv,products,largest")
    parser.add_argument("--scale", type=float, default=1.0, help="of the synthetic graphs")
    parser.add_argument("--cap-gib", type=float, default=8.0, help="memory allowed when looking for the largest batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    out = Out(args.out, args.minutes)
    for part in args.parts.split(","):
        if part != "arxiv":
            graph_cost.whole_graph("products", args.scale, 0)
        out.begin(part)
        cost(out, args, part)
    print(table(out.rows))


if __name__ == "__main__":
    main()
