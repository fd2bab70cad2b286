"""The paper's experiments in one table: what it says, what was measured here, and whether that falls short."""

from __future__ import annotations

from . import graphs_accuracy, graphs_cost, images_accuracy, paper
from .markdown import table
from .record import Row, rows


def summary() -> str:
    """A row for each experiment of the paper."""
    lines = [_lotka_volterra(), *_graph_cost(), _graph_accuracy(), *_image_errors(), *_image_memory()]
    lines.append(["accuracy on ogbn-arxiv and ogbn-products", "2 means each", "not measured", "**missing**"])
    return table(["experiment", "**the paper**", "here", "verdict"], lines)


def _lotka_volterra() -> list[str]:
    true, found = paper.LOTKA_VOLTERRA
    theirs = max(abs(a - b) / b for a, b in zip(found, true, strict=True))
    ours = next(r for r in rows("discovery", "clean") if r["adjoint"] == "exact")["worst_error"]
    what = "[Lotka–Volterra](#lotkavolterra), worst error of a parameter"
    return [what, f"{100 * theirs:.0f} %", f"{100 * ours:.1g} %", "better, in a run of the same kind"]


def _graph_cost() -> list[list[str]]:
    lines = []
    for key, place, name in (("training_mib", 3, "memory"), ("training_s", 2, "time")):
        pairs = []
        for variant in graphs_cost.VARIANTS:
            adjoint, direct = (paper.GRAPH_COST["arxiv", variant, m][place] for m in ("paper", "direct"))
            pairs.append((round(adjoint / direct, 2), round(graphs_cost.best("arxiv", key, variant)[0], 2)))
        what = f"[graph of the size of ogbn-arxiv](#cost-on-large-graphs), training {name} / direct, `l` and `nl`"
        short = [v for v, (theirs, ours) in zip(graphs_cost.VARIANTS, pairs, strict=True) if ours > theirs]
        verdict = f"**worse** for {' and '.join(f'`{v}`' for v in short)}" if short else "better"
        told = (
            f"{verdict}; time and memory in one setting: {graphs_cost.both_at_once()}"
            if key == "training_s"
            else verdict
        )
        lines.append([what, *(" and ".join(f"{pair[k]:.2f}" for pair in pairs) for k in (0, 1)), told])
    return lines


def _graph_accuracy() -> list[str]:
    found, plain = graphs_accuracy.chosen(), graphs_accuracy.chosen("plain")
    theirs = f"{len(graphs_accuracy.CASES)} means"
    above, alike = graphs_accuracy.reached(found), graphs_accuracy.reached(plain)
    ours = f"{above} at or above, with another loss; {alike} with the paper's"
    both = ((found, "with another loss"), (plain, "with the paper's loss"))
    verdict = "; ".join(f"{'better' if _all_above(means) else '**worse**'} {how}" for means, how in both)
    return ["[accuracy on seven small graphs](#accuracy-on-graphs)", theirs, ours, verdict]


def _all_above(means: dict[graphs_accuracy.Key, Row]) -> bool:
    return all(graphs_accuracy.ahead(row) >= 0 for row in means.values())


def _image_errors() -> list[list[str]]:
    verdict = {"mnist": "better, with another loss", "fashion-mnist": "better"}
    return [
        [f"[{name}](#accuracy-on-images), test error", f"{min(paper.IMAGE_ERROR[s]):.2f} %",
         f"{images_accuracy.mean_error(s)} %", verdict[s]]
        for s, name in images_accuracy.NAMES.items()
    ]  # fmt: skip


def _image_memory() -> list[list[str]]:
    lines = []
    for s, name in images_accuracy.NAMES.items():
        found: dict[tuple[str, int], Row] = {(r["variant"], r["T"]): r for r in rows("images-cost", s)}
        t = max(t for v, t in found if v == "exact" and "train_mib" in found[v, t])
        share = [found[v, t]["train_mib"] / found["direct", t]["train_mib"] for v in ("exact", "exact-constant")]
        memory = paper.IMAGE_MEMORY[s]
        theirs = f"{memory['adjoint'][t] / memory['direct'][t]:.2f}"
        what = f"[{name}](#cost-over-the-horizon), T = {t}, training memory / direct"
        lines.append([what, theirs, f"{share[0]:.2f}; {share[1]:.2f} in constant memory", "better"])
    return lines


PLACES = {"summary": summary}
