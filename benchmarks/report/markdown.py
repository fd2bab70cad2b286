"""Tables and sentences that all questions share."""

from __future__ import annotations

from collections.abc import Sequence

from neuralfde_experiments.tables import markdown

from .questions import QUESTIONS
from .record import Row, known


def table(head: Sequence[str], rows: Sequence[Sequence[object]], right: int | None = None) -> str:
    """A Markdown table; columns from ``right`` on are numbers, aligned to the right."""
    return markdown(head, rows, numbers=0 if right is None else len(head) - right)


def measured(*each: Row) -> str:
    """Where and when runs were made."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for r in each:
        machines, dates = found.setdefault(r["torch"], ({}, {}))
        machines[r["hardware"]], dates[r["date"]] = None, None
    told = [f"{' and '.join(m)}, torch {torch}, {' and '.join(sorted(d))}" for torch, (m, d) in found.items()]
    return f"*Measured on {'; '.join(told)}.*"


def questions() -> str:
    """All questions: what is asked, what answers it, and where that is told."""
    lines = []
    for name, q in QUESTIONS.items():
        machines = dict.fromkeys(r["hardware"] for r in known(name))
        file, page = f"[{name}.json](results/{name}.json)", q.page.split("#")[0].rpartition("/")[2].removesuffix(".md")
        lines.append([q.asks, q.command, file, f"[{page}](../docs/{q.page})", "; ".join(machines)])
    return table(["question", "command", "result", "page", "measured on"], lines)


PLACES = {"questions": questions}
