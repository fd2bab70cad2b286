"""Accuracies on graphs: what validation chose of all that was tried, beside the paper's."""

from __future__ import annotations

from collections import Counter

from . import paper
from .markdown import measured, table
from .record import Row, runs

#: In the order of the paper's table.
DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs", "computers", "photo", "coauthor-physics")
CASES = [(d, v) for d in DATASETS for v in ("l", "nl")]
SHORT = 40
"""A training that the clock ended is left out if its best epochs are all among so many."""
Key = tuple[str, str]


def trainings() -> list[Row]:
    """Every setting tried and every training on the reported splits; ``averaged``: see the page."""
    return [r | {"averaged": run.get("averaged", False)} for run in runs("graphs-accuracy") for r in run["rows"]]


def agreement(row: Row) -> float:
    """The weight of agreement between two draws of dropout in the loss; 0: the plain loss."""
    return float(row["settings"].get("consistency", 0.0))


def best(rows: list[Row], *stages: str, plain: bool = False) -> dict[Key, Row]:
    """The training of each graph and variant that validation prefers, of those on the reported splits."""
    found: dict[Key, Row] = {}
    for r in rows:
        if r["stage"] in stages and len(r["splits"]) == 10 and not too_short(r) and not (plain and agreement(r)):
            key = r["dataset"], r["variant"]
            found[key] = max(found.get(key, r), r, key=lambda r: r["val"])
    return found


def chosen(plain: bool = False) -> dict[Key, Row]:
    return best(trainings(), "final", "other", plain=plain)


def too_short(row: Row) -> bool:
    """Whether the clock ended a training so early that its accuracy says nothing."""
    return bool(row.get("cut")) and max(s["epoch"] for s in row["splits"]) <= SHORT


def shown(row: Row) -> str:
    """Mean and deviation, with a mark where the clock ended the training or attention was an average."""
    marks = f"{'†' if row.get('cut') else ''}{'‡' if row['averaged'] else ''}"
    return f"{row['test']:.1f}\u00a0±\u00a0{row['deviation']:.1f}{' ' * bool(marks)}{marks}"


def loss(row: Row) -> str:
    return f"agreement, {agreement(row):g}" if agreement(row) else "plain"


def ahead(row: Row) -> float:
    """How far a mean is from the paper's at the paper's precision, one decimal."""
    return round(round(row["test"], 1) - paper.GRAPH_ACCURACY[row["dataset"]][row["variant"] == "nl"][0], 1)


def reached(found: dict[Key, Row]) -> str:
    return f"{sum(ahead(r) >= 0 for r in found.values())} of {len(found)}"


def tried() -> Counter[Key]:
    """How many settings were tried for each graph and variant."""
    return Counter((r["dataset"], r["variant"]) for r in trainings() if r["stage"] in ("trial", "explore"))


def accuracy() -> str:
    """Test accuracies of the trainings that validation prefers, and of the best with the plain loss."""
    ours, plain, counts, lines = chosen(), chosen(plain=True), tried(), []
    for key in CASES:
        r, theirs = ours[key], "{:.1f}\u00a0±\u00a0{:.1f}".format(*paper.GRAPH_ACCURACY[key[0]][key[1] == "nl"])
        other = "the same" if plain.get(key) == r else shown(plain[key]) if key in plain else "none"
        cells = [shown(r), theirs, f"{ahead(r):+.1f}", f"{r['val']:.1f}", loss(r), other, f"{r['order']:g}"]
        lines.append([*key, *cells, counts[key]])
    head = ["graph", "variant", "ours, test %", "**the paper's**, %", "ours - paper", "ours, validation %", "loss"]
    return f"{table([*head, 'best with the plain loss, test %', 'β', 'settings tried'], lines)}\n\n{where()}"


def learned() -> str:
    """Test accuracies with the order learned, beside those with the order chosen."""
    ours, own, lines = chosen(), best(trainings(), "learned"), []
    for key in (key for key in CASES if key in own):
        r, ends = own[key], [s["order"] for s in own[key]["splits"]]
        cells = [shown(r), loss(r), f"{min(ends):.2f}\u00a0…\u00a0{max(ends):.2f}", shown(ours[key]), loss(ours[key])]
        lines.append([*key, *cells])
    head = ["graph", "variant", "β learned, test %", "loss", "β at the end", "β chosen, test %", "loss"]
    return f"{table(head, lines)}\n\n{where()}"


def where() -> str:
    return measured(*runs("graphs-accuracy"))


def above() -> str:
    """How many accuracies are at or above the paper's, and how many of these by a loss of our own."""
    good = [r for r in chosen().values() if ahead(r) >= 0]
    own = sum(agreement(r) > 0 for r in good)
    share = "all" if own == len(good) else str(own)
    return f"{reached(chosen())} accuracies are at or above the paper's, {share} of them with another loss"


def below() -> str:
    """Which accuracies fall short, and by how much."""
    found = chosen()
    short = [f"{d} {v} by {-ahead(found[d, v]):.1f}" for d, v in CASES if ahead(found[d, v]) < 0]
    return " and ".join([", ".join(short[:-1]), short[-1]] if len(short) > 1 else short) or "none"


def searched() -> str:
    """How much was tried, in how many searches."""
    found = [r for r in runs("graphs-accuracy") if "minutes" in r]
    minutes = sum(r["minutes"] for r in found)
    return f"{sum(tried().values())} settings, most of them in {len(found)} searches of together {minutes:.0f} minutes"


def left_out() -> str:
    return str(sum(too_short(r) for r in trainings() if "test" in r))


PLACES = {
    "graphs-accuracy": accuracy,
    "graphs-learned": learned,
    "graphs-above": above,
    "graphs-below": below,
    "graphs-plain": lambda: reached(chosen(plain=True)),
    "graphs-searched": searched,
    "graphs-left-out": left_out,
}
