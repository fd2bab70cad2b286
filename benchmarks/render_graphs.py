"""Figures of the graphs as tables: ``python benchmarks/render_graphs.py`` writes ``results/graphs-h200.md``.

Times come from the last run of cost, memory from the one before it and from the count of buffers. Accuracies come from
all runs: of the trainings on the ten reported splits the one with the best mean validation accuracy counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neuralfde.experiments.graphs import PAPER_ACCURACY

RESULTS = Path(__file__).parent / "results"
PAGE = RESULTS / "graphs-h200.md"
#: In the first run attention stayed at its start, an average, and orders were chosen on three reported splits.
RUNS = {
    "first": "graphs-h200-first",
    "second": "graphs-h200",
    "CPU": "graphs-cpu",
    "search": "graphs-search-h200",
    "short search": "graphs-search-h200-short",
}
TIMES, MEMORY, COUNT, EARLY = "graphs-cost-h200", "graphs-h200", "graph-memory", "graphs-tuning"
#: In the order of the paper's table.
DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "computers", "photo", "coauthor-physics")
VARIANTS = ("l", "nl")
SHORT = 40
"""A training that the clock ended is left out if its best epochs are all among so many."""
Row = dict[str, Any]
#: graph, figure, and for each variant the paper's figure and the goal
RATIOS = (
    ("arxiv", "training_mib", ((0.65, 0.4), (0.5, 0.25))),
    ("products", "training_mib", ((0.83, 0.5), (0.65, 0.35))),
)
MIB = ((5570, 1500), (9086, 2500))
SECONDS = ((0.91, 0.9), (0.97, 0.95))
BATCH = (2, 4)


def read(name: str) -> Row:
    return json.loads((RESULTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


# Cost


def measured(rows: list[Row], graph: str, variant: str, nodes: int | None = None) -> dict[str, Row]:
    """Our rows of one graph and variant by method."""
    return {
        r["adjoint"]: r
        for r in rows
        if (r.get("source"), r.get("graph"), r.get("variant")) == ("measured", f"synthetic-{graph}", variant)
        and "training_s" in r
        and (nodes is None or r["nodes"] == nodes)
    }


def like(method: str) -> str:
    """What a method is compared with: captured steps with captured steps."""
    return "direct+replay" if "replay" in method else "direct"


def times(rows: list[Row]) -> str:
    """Seconds of inference and of a training step, the paper's among them."""
    lines = []
    for graph in ("arxiv", "products"):
        for variant in VARIANTS:
            found = measured(rows, graph, variant)
            for method, r in found.items():
                lines.append(
                    [f"{r['graph']}, {r['nodes']} nodes", variant, f"`{method}`", *_seconds(r, found[like(method)])]
                )
            papers = [
                r for r in rows if (r.get("source"), r["graph"], r["variant"]) == ("paper", f"ogbn-{graph}", variant)
            ]
            direct = next((r for r in papers if r["adjoint"] == "direct"), None)
            for r in papers if direct else []:
                lines.append([f"**the paper's**, ogbn-{graph}", variant, f"`{r['adjoint']}`", *_seconds(r, direct)])
    return table(["graph", "variant", "method", "inference, s", "training step, s", "training / direct"], lines)


def _seconds(row: Row, base: Row | None) -> list[str]:
    assert base is not None
    ratio = f"{row['training_s'] / base['training_s']:.2f}"
    return [f"{row['inference_s']:.4f}", f"{row['training_s']:.4f}", ratio]


def memory(rows: list[Row]) -> str:
    """Peak memory of a training step, of the code before."""
    sizes = sorted({(r["graph"], r["nodes"], r["edges"]) for r in rows if "nodes" in r})
    lines = []
    for graph, nodes, edges in sizes:
        for variant in VARIANTS:
            found = measured(rows, graph.removeprefix("synthetic-"), variant, nodes)
            for method, r in found.items():
                ratio = f"{r['training_mib'] / found['direct']['training_mib']:.2f}"
                size = f"{graph}, {nodes} nodes, {edges} edges"
                lines.append([size, variant, f"`{method}`", f"{r['training_mib']:.0f}", ratio])
    return table(["graph", "variant", "method", "training, MiB", "memory / direct"], lines)


def counts(rows: list[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """Counted MiB of each method, by graph and variant."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for r in rows:
        found.setdefault((r["graph"], r["variant"]), {})[r["adjoint"]] = r["mib at full size"]
    return found


def counted(rows: list[Row]) -> str:
    """What the count of buffers says of the code of today."""
    found = counts(rows)
    lines = []
    for variant in VARIANTS:
        for method in found["arxiv", variant]:
            cells = [variant, f"`{method}`"]
            for graph in ("arxiv", "products"):
                mib = found[graph, variant]
                cells += [f"{mib[method]:.0f}", f"{mib[method] / mib['direct']:.2f}"]
            lines.append(cells)
    head = [
        "variant",
        "method",
        "arxiv, counted MiB",
        "of `direct`",
        "products, 20000 nodes, counted MiB",
        "of `direct`",
    ]
    return table(head, lines)


def largest(rows: list[Row]) -> str:
    """The largest products batch of each method, and how many times direct's it is."""
    found = [r for r in rows if r.get("largest")]
    direct = {r["variant"]: r["largest"] for r in found if r["adjoint"] == "direct"}
    lines = [
        [r["variant"], f"`{r['adjoint']}`", str(r["largest"]), f"{r['largest'] / direct[r['variant']]:.1f}"]
        for r in found
    ]
    return table(["variant", "method", "nodes", "times direct"], lines)


def goals(clock: list[Row], before: list[Row], count: list[Row]) -> str:
    """The best figure of our adjoints beside the paper's and the goal; memory as of the code before, and as counted."""
    lines, now = [], counts(count)
    for graph, key, each in RATIOS:
        for variant, (paper, goal) in zip(VARIANTS, each, strict=True):
            found = measured(before, graph, variant, 20000 if graph == "products" else None)
            ours = {m: r[key] / found["direct"][key] for m, r in found.items() if "exact" in m}
            mib = now[graph, variant]
            today = {m: v / mib["direct"] for m, v in mib.items() if "exact" in m}
            batch = ", 20000 nodes" if graph == "products" else ""
            name = f"training memory against direct, {graph}{batch}, {variant}"
            lines.append([name, *_goal(ours, paper, goal, today)])
    for variant, (paper, goal) in zip(VARIANTS, MIB, strict=True):
        ours = {m: r["training_mib"] for m, r in measured(before, "arxiv", variant).items() if "exact" in m}
        today = {m: v for m, v in now["arxiv", variant].items() if "exact" in m}
        lines.append([f"training memory, MiB, arxiv, {variant}", *_goal(ours, paper, goal, today)])
    for variant, (paper, goal) in zip(VARIANTS, SECONDS, strict=True):
        found = measured(clock, "arxiv", variant)
        ours = {m: r["training_s"] / found[like(m)]["training_s"] for m, r in found.items() if "exact" in m}
        lines.append([f"training time against direct, arxiv, {variant}", *_goal(ours, paper, goal)])
    for variant in VARIANTS:
        sizes = {r["adjoint"]: r["largest"] for r in before if r.get("largest") and r["variant"] == variant}
        ratios = {m: sizes["direct"] / n for m, n in sizes.items() if m != "direct"}
        best = min(ratios, key=lambda m: ratios[m])
        verdict = _verdict(1 / ratios[best] >= BATCH[1], again=False)
        cells = [f"{BATCH[0]}", f"≥ {BATCH[1]}", f"{1 / ratios[best]:.1f} (`{best}`)", "", verdict]
        lines.append([f"largest batch against direct, {variant}", *cells])
    return table(["figure", "**the paper's**", "goal", "measured", "counted, code of today", ""], lines)


def _goal(ours: dict[str, float], paper: float, goal: float, today: dict[str, float] | None = None) -> list[str]:
    """The paper's, the goal, the least of ours and of what is counted, and whether the goal is reached."""
    shown = ", ".join(f"{v} (`{m}`)" for m, v in _least(ours))
    count = "" if today is None else ", ".join(f"{v} (`{m}`)" for m, v in _least(today))
    least = min(ours.values())
    return [f"{paper:g}", f"≤ {goal:g}", shown, count, _verdict(least <= goal, again=today is None)]


def _least(figures: dict[str, float]) -> list[tuple[str, str]]:
    """The least, and where it is by approximate gradients the least by exact ones beside it."""
    exact = {m: v for m, v in figures.items() if "half" not in m}
    best = dict.fromkeys(min(part, key=lambda m: part[m]) for part in (exact, figures))
    return [(m, f"{figures[m]:.2f}" if figures[m] < 10 else f"{figures[m]:.0f}") for m in best]


def _verdict(reached: bool, again: bool) -> str:
    return ("reached" if reached else "**missed**") + ("" if again else ", not measured anew")


# Accuracy


def agreement(row: Row) -> float:
    """The weight of agreement between two draws of dropout in the loss; 0: the plain loss."""
    return float(row["settings"].get("consistency", 0.0))


def best(rows: list[Row], kinds: tuple[str, ...], plain: bool = False) -> dict[tuple[str, str], Row]:
    """The training of each graph and variant that validation prefers, of those on the reported splits."""
    found: dict[tuple[str, str], Row] = {}
    for r in rows:
        if r["case"].split()[2] in kinds and r.get("count") == 10 and not too_short(r) and not (plain and agreement(r)):
            key = r["dataset"], r["variant"]
            found[key] = max(found.get(key, r), r, key=lambda r: r["val"])
    return found


def too_short(row: Row) -> bool:
    """Whether the clock ended a training so early that its accuracy says nothing."""
    return bool(row.get("cut")) and max(s["epoch"] for s in row["splits"]) <= SHORT


def shown(row: Row) -> str:
    """Mean and deviation, with a mark where the clock ended the training."""
    return f"{row['test']:.1f} ± {row['deviation']:.1f}{' †' if row.get('cut') else ''}"


def loss(row: Row) -> str:
    return f"agreement, {agreement(row):g}" if agreement(row) else "plain"


def ahead(row: Row) -> float:
    """How far a mean is from the paper's at the paper's precision, one decimal."""
    return round(round(row["test"], 1) - PAPER_ACCURACY[row["dataset"]][row["variant"] == "nl"][0], 1)


def reached(found: dict[tuple[str, str], Row]) -> str:
    return f"{sum(ahead(r) >= 0 for r in found.values())} of {len(found)}"


def accuracy(rows: list[Row], tried: dict[tuple[str, str], dict[str, int]]) -> str:
    """Test accuracies of the trainings that validation prefers, and of the best with the plain loss."""
    chosen, plain = (best(rows, ("final", "other"), p) for p in (False, True))
    lines = []
    for key in ((d, v) for d in DATASETS for v in VARIANTS):
        r, paper = chosen.get(key), "{:.1f} ± {:.1f}".format(*PAPER_ACCURACY[key[0]][key[1] == "nl"])
        if r is None:
            lines.append([*key, "not run to its end", paper, *[""] * 4, str(sum(tried[key].values())), ""])
            continue
        other = "the same" if plain.get(key) is r else shown(plain[key]) if key in plain else "none"
        cells = [shown(r), paper, f"{ahead(r):+.1f}", f"{r['val']:.1f}", loss(r), other]
        lines.append([*key, *cells, str(sum(tried[key].values())), f"{r['order']:g}, {r['run']}"])
    head = ["graph", "variant", "ours, test %", "**the paper's**, %", "ours - paper", "ours, validation %", "loss"]
    return table([*head, "best with plain loss, test %", "settings tried", "β, run"], lines)


def learned(rows: list[Row]) -> str:
    """Test accuracies with the order learned, beside those with the order chosen."""
    chosen, own = best(rows, ("final", "other")), best(rows, ("learned",))
    lines = []
    for key in ((d, v) for d in DATASETS for v in VARIANTS):
        if key in own:
            r, ends = own[key], [s["order"] for s in own[key]["splits"]]
            beside = [shown(chosen[key]), loss(chosen[key])] if key in chosen else ["", ""]
            lines.append([*key, shown(r), loss(r), f"{min(ends):.2f} … {max(ends):.2f}", *beside])
    return table(["graph", "variant", "β learned, test %", "loss", "β at the end", "β chosen, test %", "loss"], lines)


def trials(rows: list[Row], early: list[Row]) -> dict[tuple[str, str], dict[str, int]]:
    """How many settings were tried for each graph and variant in each run."""
    found: dict[tuple[str, str], dict[str, int]] = {(d, v): {} for d in DATASETS for v in VARIANTS}
    for r in [*rows, *(r | {"case": " trial", "run": "before, CPU"} for r in early)]:
        if r["case"].split(" ")[-2:-1] != ["judge"] and ("tried" in r or " trial" in r["case"]):
            own = found[r["dataset"], r["variant"]]
            own[r["run"]] = own.get(r["run"], 0) + (len(r["tried"]) if "tried" in r else 1)
    return found


def tried_table(tried: dict[tuple[str, str], dict[str, int]]) -> str:
    runs = [run for run in ("before, CPU", *RUNS) if any(run in own for own in tried.values())]
    lines = [[*key, *(str(own.get(run, "")) for run in runs)] for key, own in tried.items()]
    return table(["graph", "variant", *runs], lines)


def searches(files: dict[str, Row]) -> str:
    """How long each search was, and on what."""
    found = []
    for run, data in files.items():
        if data.get("workers"):
            how = f"{data['workers']} processes{' under MPS' if data['mps'] else ''} on {data['device']}"
            beside = f", beside {data['beside']}" if "beside" in data else ""
            found.append(f"{run}: {data['minutes']:g} min, {how}{beside}")
    return f"The searches: {'; '.join(found)}."


def page() -> str:
    """All tables, and what they leave out."""
    files = {run: read(name) for run, name in RUNS.items()}
    rows = [r | {"run": run} for run, data in files.items() for r in data["rows"] if "dataset" in r]
    clock, before, count = (read(name)["rows"] for name in (TIMES, MEMORY, COUNT))
    tried, done = trials(rows, read(EARLY)["rows"]), best(rows, ("final", "other"))
    plain = best(rows, ("final", "other"), plain=True)
    cut = [f"{' '.join(r['case'].split()[:3])} ({r['run']})" for r in rows if "test" in r and too_short(r)]
    unlearned = [f"{d} {v}" for d, v in tried if (d, v) not in best(rows, ("learned",))]
    cap = max(r.get("cap_gib", 0) for r in before)
    first = next(iter(measured(clock, "arxiv", "l").values()))
    parts = [
        f"Ours: {read(TIMES)['device']}, torch {read(TIMES)['torch']}.",
        "**Time.** T = 10, h = 1, nothing else on the GPU. Our graphs are synthetic: one of the size of ogbn-arxiv, "
        "and one batch of one of the size of ogbn-products. The paper's figures are for the real graphs on an RTX "
        "A5000, and for ogbn-products they are a pass over all of it: compare ratios, not seconds. Variant `l` "
        "computes attention once, `nl` at every evaluation. `loop` is autograd through a plain loop over time. After "
        "a `+`: `replay` is a captured CUDA graph, compared with `direct+replay`; `blocks` sums several steps of the "
        "past at once; `half` keeps rows of the past in bfloat16, so its gradient is approximate; `attention` keeps "
        "attention for the backward pass; `recompute` solves parts again in the backward pass. The run ended before "
        "the other methods for batches with `nl`.",
        times(clock),
        "**Memory, as measured before the code became leaner.** Today's `direct` keeps about two rows a step less, "
        "and `nl` less too, so these ratios are not today's. The run of the times measured memory as well, but each "
        "captured step left some behind that later rows counted as theirs: those figures are left out.",
        memory(before),
        "**Memory of today's code, counted and not measured**: buffers alive at the peak of a training step (`python "
        "benchmarks/graph_memory.py`), without workspaces of libraries. The one row of today's code that was "
        f"measured on an empty device, arxiv `l` `{first['adjoint']}`, took {first['training_mib']:.0f} MiB.",
        counted(count),
        f"**Largest products batch** within {cap:g} GiB, to a fifth, by the code before.",
        largest(before),
        "**Goals of cost**, each with the best of our adjoints for it by exact gradients, and by approximate ones "
        "(`half`) where those are better. Verdicts go by what was measured: memory and batches by the code before, "
        "time by today's.",
        goals(clock, before, count),
        "**Accuracy.** Mean and standard deviation over ten random splits, adjoint `exact`. Settings are ours, not "
        "the paper's, chosen by validation accuracy on splits other than those reported (in the first run on three "
        "of them). Of all trainings on the ten splits the one with the best mean validation accuracy is shown; test "
        "accuracy chose nothing. **The loss is not always the paper's**: with agreement two draws of dropout are "
        "also asked to agree on all nodes ([Feng et al., 2020](https://arxiv.org/abs/2005.11079)), with the weight "
        "given; the best training with the plain loss stands beside it. Compared at the paper's precision, one "
        f"decimal, {reached(done)} means are at or above the paper's, with the plain loss alone {reached(plain)}. "
        "In the first run attention stayed at its start, an average over neighbours, which the code of today mends.",
        accuracy(rows, tried),
        f"† ended by the clock and not by its patience. {searches(files)} Trainings that the clock ended within "
        f"{SHORT} epochs are left out: {', '.join(cut)} (`learned`: with the order learned; `other`: with the other "
        "kind of loss).",
        "**Order learned** on each split, from the chosen one (at most 0.95).",
        learned(rows),
        f"Not run, or ended by the clock too early: {', '.join(unlearned)}.",
        "**How many settings were tried**, judged by validation alone. Settings and accuracies of every trial and "
        "split are in the files beside this page.",
        tried_table(tried),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
