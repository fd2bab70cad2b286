"""Cost on large graphs, beside the paper's; and what our kernels for graphs save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import paper
from .markdown import measured, table
from .record import Row, known, run

VARIANTS = ("l", "nl")
BATCH = 20000
"""Nodes of the products batches that goals speak of."""
#: graph, what it is called, figure, and for each variant the paper's figure and the goal
GOALS = (
    ("arxiv", "training memory against direct, arxiv", "training_mib", ((0.65, 0.4), (0.5, 0.25))),
    ("products", f"training memory against direct, products, {BATCH} nodes", "training_mib",
     ((0.83, 0.5), (0.65, 0.35))),
    ("arxiv", "training memory, MiB, arxiv", "training_mib", ((5570, 1500), (9086, 2500))),
    ("arxiv", "training time against direct, arxiv", "training_s", ((0.91, 0.9), (0.97, 0.95))),
    ("products", "largest batch against direct", "largest", ((2, 4), (2, 4))),
)  # fmt: skip
AT_ONCE = {"l": (0.95, 0.5), "nl": (1.0, 0.5)}
"""Goals for training time and memory against direct in one setting on arxiv."""
COMPARED = ("training_s", "training_mib", "largest")
HEAD = ["nodes", "variant", "method", "inference, s", "training, s", "/ direct", "training, MiB", "/ direct"]


def costs() -> list[Row]:
    """Our rows, each with its ``direct`` as ``base``: captured steps are compared with captured steps."""
    every = [r for run in known("graphs-cost") for r in run["rows"]]
    found = [r for r in every if "training_s" in r or r.get("largest")]
    base = {method(r): {k: r[k] for k in COMPARED if k in r} for r in found}
    like = {True: "direct+replay", False: "direct"}
    return [
        {"base": base[*_place(r), like["replay" in r["adjoint"]]], **r} for r in sorted(found, key=_place)
    ]  # an earlier row has its own


def method(row: Row) -> tuple[Any, ...]:
    """Where and how a row was measured."""
    return *_place(row), row["adjoint"]


def _place(row: Row) -> tuple[Any, ...]:
    return row["graph"], row.get("nodes", 0), row["variant"]


def ratio(row: Row, key: str) -> float:
    return float(row[key] / row["base"][key])


def training(graph: str) -> str:
    """Seconds and MiB of inference and of a training step, ours and the paper's."""
    found, lines = [r for r in costs() if r["graph"] == f"synthetic-{graph}" and "training_s" in r], []
    for r in found:
        cells = [
            f"{r['nodes']:,}",
            r["variant"],
            f"`{r['adjoint']}`{' *' * bool(r.get('earlier'))}",
            f"{r['inference_s']:.4f}",
            f"{r['training_s']:.4f}",
        ]
        cells.append(f"{ratio(r, 'training_s'):.2f}")
        cells += [f"{r['training_mib']:.0f}", f"{ratio(r, 'training_mib'):.2f}"] if r["training_mib"] else ["", ""]
        lines.append(cells)
    sizes = dict.fromkeys(f"{r['edges']:,} edges between {r['nodes']:,} nodes" for r in found)
    old = (
        " * Measured with another version of the package, relative to `direct` of that version."
        if any("earlier" in r for r in found)
        else ""
    )
    return f"{table(HEAD, lines + of_paper(graph), right=3)}\n\nThere are {', '.join(sizes)}.{old} {where(graph)}"


def of_paper(graph: str) -> list[list[str]]:
    lines = []
    for (name, variant, method), (infer, _, train, mib) in paper.GRAPH_COST.items():
        if name == graph:
            _, _, seconds, most = paper.GRAPH_COST[graph, variant, "direct"]
            cells = ["**the paper's**", variant, f"`{method}`", f"{infer:.3f}", f"{train:.3f}"]
            lines.append([*cells, f"{train / seconds:.2f}", f"{mib:.0f}", f"{mib / most:.2f}"])
    return lines


def largest() -> str:
    """The largest products batch of each method, and how many times direct's it is."""
    found = [r for r in costs() if r.get("largest")]
    lines = [[r["variant"], f"`{r['adjoint']}`", r["largest"], f"{ratio(r, 'largest'):.1f}"] for r in found]
    cap = f"Within {max(r['cap_gib'] for r in found):g} GiB, to a twentieth."
    return f"{table(['variant', 'method', 'nodes', 'times direct'], lines, right=2)}\n\n{cap} {where('products')}"


def best(graph: str, key: str, variant: str, absolute: bool = False) -> tuple[float, str]:
    """The best figure of our exact adjoints and which of them has it; ``absolute``: not against direct."""
    found = [r for r in costs() if "exact" in r["adjoint"] and r["variant"] == variant and r.get(key)]
    found = [r for r in found if r["graph"] == f"synthetic-{graph}"]
    found = [r for r in found if graph == "arxiv" or key == "largest" or r.get("nodes") == BATCH]
    found = [r for r in found if "earlier" not in r] or found
    figures = [(r[key] if absolute else ratio(r, key), r["adjoint"]) for r in found]
    return max(figures) if key == "largest" else min(figures)


def goals() -> str:
    """The best figure of our adjoints beside the paper's and the goal."""
    lines = []
    for graph, name, key, each in GOALS:
        for variant, (theirs, goal) in zip(VARIANTS, each, strict=True):
            figure, method = best(graph, key, variant, absolute="MiB" in name)
            met = figure >= goal if key == "largest" else figure <= goal
            shown = f"{figure:.2f}" if figure < 10 else f"{figure:.0f}"
            asked = f"{'≥' if key == 'largest' else '≤'} {goal:g}"
            verdict = "reached" if met else "**missed**"
            lines.append([f"{name}, {variant}", f"{theirs:g}", asked, f"{shown} (`{method}`)", verdict])
    for variant, theirs_both in zip(VARIANTS, ("0.91 and 0.65", "0.97 and 0.5"), strict=True):
        (time, memory, method), most = at_once(variant), AT_ONCE[variant]
        met = time <= most[0] and memory <= most[1]
        asked = "≤ {:g} and ≤ {:g}".format(*most)
        cells = [asked, f"{time:.2f} and {memory:.2f} (`{method}`)", "reached" if met else "**missed**"]
        lines.append([f"training time and memory against direct in one setting, arxiv, {variant}", theirs_both, *cells])
    return table(["figure", "**the paper's**", "goal", "ours", ""], lines)


def at_once(variant: str) -> tuple[float, float, str]:
    """Time and memory against direct of the setting on arxiv that is nearest to both goals, and its name."""
    found = [r for r in costs() if "exact" in r["adjoint"] and r["variant"] == variant and r.get("training_mib")]
    found = [r for r in found if r["graph"] == "synthetic-arxiv"]
    found, most = [r for r in found if "earlier" not in r] or found, AT_ONCE[variant]
    each = [(ratio(r, "training_s"), ratio(r, "training_mib"), r["adjoint"]) for r in found]
    return min(each, key=lambda e: max(e[0] / most[0], e[1] / most[1]))


def both_at_once() -> str:
    """Time and memory in one setting, of each variant, in words."""
    found = {variant: at_once(variant) for variant in VARIANTS}
    return " and ".join(f"{t:.2f} and {m:.2f} for `{v}` (`{name}`)" for v, (t, m, name) in found.items())


def where(graph: str) -> str:
    return measured(run("graphs-cost", graph))


def kernels(tile: int = 4096) -> str:
    """Training steps by our kernels and by the sparse library; ``tile`` is the size that the package uses."""
    found = run("graphs-kernels", "arxiv")
    steps = [r for r in found["rows"] if "training_s" in r]
    parts = [r for r in found["rows"] if "operation" in r and r["tile"] in (0, tile)]
    lines = []
    for (variant, method), (ours, library) in _pairs(steps, "variant", "adjoint").items():
        lines.append(
            [
                f"training step, `{variant}`, `{method}`",
                *_saved(1000 * ours["training_s"], 1000 * library["training_s"]),
            ]
        )
    for (name,), (ours, library) in _pairs(parts, "operation").items():
        for way in ("forward", "backward"):
            lines.append([f"{name} alone, {way}", *_saved(ours[f"{way}_ms"], library[f"{way}_ms"])])
    head = ["", "our kernels, ms", "sparse library, ms", "ours / library"]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}"


def _pairs(found: Sequence[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows with the same names, that of our kernels first."""
    names = dict.fromkeys(tuple(r[k] for k in keys) for r in found)
    return {
        n: sorted((r for r in found if tuple(r[k] for k in keys) == n), key=lambda r: not r["kernels"]) for n in names
    }


def _saved(ours: float, library: float) -> list[str]:
    return [f"{ours:.2f}", f"{library:.2f}", f"{ours / library:.2f}"]


PLACES = {
    "graphs-cost-goals": goals,
    "graphs-cost-at-once": both_at_once,
    "graphs-cost-arxiv": lambda: training("arxiv"),
    "graphs-cost-products": lambda: training("products"),
    "graphs-cost-largest": largest,
    "graphs-kernels": kernels,
}
