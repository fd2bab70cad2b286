"""Accuracies on graphs: what validation chose of all that was tried, beside the paper's."""

from __future__ import annotations

from collections import Counter

from neuralfde_experiments.graph_settings import reported_seeds

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
    """Every setting tried and every training on the reported splits.

    An ``averaged`` run trained with an error: attention stayed at an average over neighbours. It counts as tried.
    """
    return [r | {"averaged": run.get("averaged", False)} for run in runs("graphs-accuracy") for r in run["rows"]]


def agreement(row: Row) -> float:
    """The weight of agreement between two draws of dropout in the loss; 0: the plain loss."""
    return float(row["settings"].get("consistency", 0.0))


def frond(row: Row) -> bool:
    """Whether a training follows FROND's protocol; earlier ones had other splits and looked every second epoch."""
    return tuple(s["seed"] for s in row["splits"]) == reported_seeds(row["dataset"])


def best(rows: list[Row], *stages: str, loss: str = "any") -> dict[Key, Row]:
    """The training of each graph and variant that validation prefers, of those on ten reported splits.

    One by FROND's protocol goes before all others; ``loss`` is ``"plain"``, ``"agreement"`` or ``"any"``.
    """
    found: dict[Key, Row] = {}
    for r in rows:
        ours = loss in ("any", "agreement" if agreement(r) else "plain")
        if r["stage"] in stages and len(r["splits"]) == 10 and not (r["averaged"] or too_short(r)) and ours:
            key = r["dataset"], r["variant"]
            found[key] = max(found.get(key, r), r, key=lambda r: (frond(r), r["val"]))
    return found


def chosen(loss: str = "any") -> dict[Key, Row]:
    """Of any loss: that of the higher validation accuracy, of the best with each."""
    if loss != "any":
        return best(trainings(), "final", "other", loss=loss)
    plain, agree = chosen("plain"), chosen("agreement")
    both = {key: [found[key] for found in (plain, agree) if key in found] for key in CASES}
    return {key: max(rows, key=lambda r: r["val"]) for key, rows in both.items() if rows}


def too_short(row: Row) -> bool:
    """Whether the clock ended a training so early that its accuracy says nothing."""
    return bool(row.get("cut")) and max(s["epoch"] for s in row["splits"]) <= SHORT


def shown(row: Row) -> str:
    """Mean and deviation, with a mark where the clock ended the training or the protocol was an earlier one."""
    marks = f"{'†' if row.get('cut') else ''}{'' if frond(row) else '§'}"
    return f"{row['test']:.1f}\u00a0±\u00a0{row['deviation']:.1f}{' ' * bool(marks)}{marks}"


def loss(row: Row) -> str:
    return f"agreement, {agreement(row):g}" if agreement(row) else "plain"


def theirs(row: Row, direct: bool = False) -> float:
    """The paper's mean with its adjoint, or of the same model with direct differentiation, which is exact as ours."""
    nl = row["variant"] == "nl"
    return paper.GRAPH_DIRECT[row["dataset"]][nl] if direct else paper.GRAPH_ACCURACY[row["dataset"]][nl][0]


def ahead(row: Row, direct: bool = False) -> float:
    """How far a mean is from the paper's at the paper's precision, one decimal."""
    return round(round(row["test"], 1) - theirs(row, direct), 1)


def reached(found: dict[Key, Row], direct: bool = False) -> str:
    return f"{sum(ahead(r, direct) >= 0 for r in found.values())} of {len(found)}"


def tried(loss: str = "any") -> Counter[Key]:
    """How many settings were tried for each graph and variant, with a kind of loss or with any."""
    found = [r for r in trainings() if r["stage"] in ("trial", "explore")]
    ours = [r for r in found if loss in ("any", "agreement" if agreement(r) else "plain")]
    return Counter((r["dataset"], r["variant"]) for r in ours)


def accuracy() -> str:
    """Test accuracies of the trainings that validation prefers with each kind of loss, beside both of the paper's."""
    found = {loss: (chosen(loss), tried(loss)) for loss in ("plain", "agreement")}
    lines = []
    for key in CASES:
        plain, agree = ([*both(best.get(key)), counts[key]] for best, counts in found.values())
        published = paper.GRAPH_ACCURACY[key[0]][key[1] == "nl"]
        direct, adjoint = paper.GRAPH_DIRECT[key[0]][key[1] == "nl"], "{:.1f}\u00a0±\u00a0{:.1f}".format(*published)
        lines.append([*key, *plain, f"{direct:.1f}", adjoint, *agree])
    head = ["graph", "variant", "plain loss, test %", "β", "settings tried"]
    head += ["**the paper's**, direct", "**the paper's**, its adjoint"]
    return f"{table([*head, 'with agreement, test %', 'β', 'settings tried'], lines)}\n\n{where()}"


def both(row: Row | None) -> tuple[str, str]:
    """Accuracy and order, where there is such a training."""
    return ("none", "") if row is None else (shown(row), f"{row['order']:g}")


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
    """How many accuracies are at or above the paper's."""
    good = [r for r in chosen().values() if ahead(r) >= 0]
    own = sum(agreement(r) > 0 for r in good)
    share = "all" if own == len(good) else str(own)
    return f"{reached(chosen())} are at or above those of the paper's adjoint, {share} of them with another loss"


def below(loss: str = "any", direct: bool = False) -> str:
    """Which accuracies fall short, and by how many points."""
    found = chosen(loss)
    apart = {key: ahead(found[key], direct) for key in CASES if key in found}
    short = [f"{d} {v} by {-apart[d, v]:.1f}" for d, v in apart if apart[d, v] < 0]
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
    "graphs-plain-below": lambda: below("plain", direct=True),
    "graphs-plain": lambda: reached(chosen("plain")),
    "graphs-plain-direct": lambda: reached(chosen("plain"), direct=True),
    "graphs-searched": searched,
    "graphs-left-out": left_out,
}
