"""Figures of the graphs as tables: ``python benchmarks/render_graphs.py [results.json]`` writes the .md beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from neuralfde.experiments.graphs import PAPER_ACCURACY

RESULTS = Path(__file__).parent / "results" / "graphs-h200.json"
#: In the order of the paper's table.
DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "computers", "photo", "coauthor-physics")
VARIANTS = ("l", "nl")
Row = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def cost(rows: list[Row]) -> str:
    """Seconds and memory, beside the ratio to direct differentiation of the same source, graph and variant."""
    found = [r for r in rows if "training_s" in r and "failed" not in r]
    direct = {_same(r): r for r in found if r["adjoint"] == "direct"}
    lines = []
    for r in sorted(found, key=lambda r: (_order(r), r["variant"], r["source"])):
        base = direct[_same(r)]
        whose = "**the paper's figure**" if r["source"] == "paper" else "ours, synthetic graph"
        size = f"{r['nodes']} nodes, {r['edges']} edges" if "nodes" in r else ""
        lines.append(
            [
                r["graph"],
                size,
                whose,
                r["variant"],
                r["adjoint"],
                f"{r['inference_s']:.4f}",
                f"{r['training_s']:.4f}",
                f"{r['training_mib']:.0f}",
                f"{r['training_s'] / base['training_s']:.2f}",
                f"{r['training_mib'] / base['training_mib']:.2f}",
            ]
        )
    head = ["graph", "size", "source", "variant", "adjoint", "inference, s", "training step, s", "training, MiB"]
    return table([*head, "time / direct", "memory / direct"], lines)


def accuracy(rows: list[Row]) -> tuple[str, list[str], list[Row]]:
    """Test accuracies of the last finished training of each graph and variant, those that are missing, and the rows."""
    done = {(r["dataset"], r["variant"]): r for r in rows if " final " in r["case"] and "test" in r}
    lines, missing = [], []
    for dataset in DATASETS:
        for k, variant in enumerate(VARIANTS):
            paper, spread = PAPER_ACCURACY[dataset][k]
            r = done.get((dataset, variant))
            if r is None:
                missing.append(f"{dataset} {variant}")
                continue
            ours = f"{r['test']:.1f} ± {r['deviation']:.1f}"
            off = f"{r['test'] - paper:+.1f}"
            theirs, count, order = f"{paper:.1f} ± {spread:.1f}", str(r["count"]), f"{r['order']:g}"
            lines.append([dataset, variant, ours, theirs, off, count, order])
    head = ["graph", "variant", "ours, test %", "**the paper's figure**, %", "ours - paper"]
    return table([*head, "our splits", "our order β"], lines), missing, list(done.values())


def learned(rows: list[Row]) -> str:
    """Test accuracies with the order learned, beside those with the order chosen."""
    chosen, own = (
        {(r["dataset"], r["variant"]): r for r in rows if f" {k} " in r["case"]} for k in ("final", "learned")
    )
    lines = []
    for dataset in DATASETS:
        for variant in VARIANTS:
            r, base = own.get((dataset, variant)), chosen.get((dataset, variant))
            if r is not None and "test" in r:
                beside = f"{base['test']:.1f} ± {base['deviation']:.1f}" if base else ""
                ends = [s["order"] for s in r["splits"]]
                span = f"{min(ends):.2f} … {max(ends):.2f}"
                lines.append([dataset, variant, f"{r['test']:.1f} ± {r['deviation']:.1f}", span, beside])
    return table(["graph", "variant", "β learned, test %", "β at the end", "β chosen, test %"], lines) if lines else ""


def largest(rows: list[Row]) -> str:
    """The largest products batch of each method, and how many times direct's it is."""
    found = [r for r in rows if r.get("largest")]
    direct = {r["variant"]: r["largest"] for r in found if r["adjoint"] == "direct"}
    lines = [
        [r["variant"], r["adjoint"], str(r["largest"]), f"{r['largest'] / direct.get(r['variant'], r['largest']):.1f}"]
        for r in found
    ]
    return table(["variant", "method", "nodes", "times direct"], lines) if lines else ""


def page(found: dict[str, Any]) -> str:
    """All tables, and what they leave out."""
    shown, missing, done = accuracy(found["rows"])
    below = sum(r["test"] < r["paper"] for r in done)
    epochs = max(r["settings"]["epochs"] for r in done)
    parts = [
        f"Ours: {found['device']}, torch {found['torch']}.",
        "**Cost.** T = 10, h = 1; our graphs are synthetic, of the size of ogbn-arxiv or sampled from one of the size "
        "of ogbn-products. The paper's figures are for the real graph on an RTX A5000, in MB: compare ratios, not "
        "seconds. "
        "Variant `l` computes attention once, `nl` at every evaluation.",
        cost(found["rows"]),
        *_titled(largest(found["rows"]), "**Largest products batch** within a memory cap, to a fifth."),
        f"**Accuracy.** Mean and standard deviation over random splits, adjoint `exact`, at most {epochs} epochs. "
        "Settings are ours, not the paper's; they and the order were chosen by validation accuracy on other splits. "
        f"{below} of {len(done)} means are below the paper's.",
        shown,
        *_titled(learned(found["rows"]), "**Order learned** on each split, from the chosen one (at most 0.95)."),
    ]
    if missing:
        parts.append(f"Not finished: {', '.join(missing)}.")
    failed = [r["case"].removesuffix(" (failed)") for r in found["rows"] if "failed" in r]
    if failed:
        parts.append(f"Ended early: {', '.join(failed)}; what it had measured until then is above.")
    return "\n\n".join(parts) + "\n"


def _titled(shown: str, title: str) -> list[str]:
    return [title, shown] if shown else []


def _same(row: Row) -> tuple[Any, ...]:
    return row["source"], row["graph"], row["variant"], row.get("nodes")


def _order(row: Row) -> tuple[bool, int]:
    return "products" in row["graph"], row.get("nodes", 0) if "products" in row["graph"] else 0


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    path.with_suffix(".md").write_text(page(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
