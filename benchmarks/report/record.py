"""The result files: one JSON a question, in it the runs, in them the rows.

Every file of ``results/`` has the same shape, and every row is a line of its own::

    {"question": "...", "runs": [{"part": "...", "date": "...", "hardware": "...", "torch": "...", ..., "rows": [...]}]}

The parts of a question have names; a part that is measured again replaces the one of that name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from neuralfde.cli.measuring import machine

from .questions import QUESTIONS

RESULTS = Path(__file__).parents[1] / "results"
Row = dict[str, Any]


def runs(question: str) -> list[Row]:
    """All runs of a question."""
    return json.loads((RESULTS / f"{question}.json").read_text())["runs"]  # type: ignore[no-any-return]


def known(question: str) -> list[Row]:
    """The same, or none where nothing was measured yet."""
    return runs(question) if (RESULTS / f"{question}.json").exists() else []


def run(question: str, part: str) -> Row:
    """The run of one part."""
    return next(r for r in runs(question) if r["part"] == part)


def rows(question: str, part: str) -> list[Row]:
    """The rows of one part."""
    return run(question, part)["rows"]  # type: ignore[no-any-return]


def asked(doc: str | None, parts: Iterable[str] = (), alone: Sequence[str] = ()) -> list[str]:
    """The parts that the command line asks for; where it asks for none, all but those that run only ``alone``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = list(parts)
    if known:
        parser.add_argument("parts", nargs="*", help=f"of {', '.join(known)}")
    found: list[str] = getattr(parser.parse_args(), "parts", [])
    wrong = [name for name in found if name.partition("=")[0] not in known]
    if wrong:
        parser.error(f"no part {', '.join(wrong)}; there are {', '.join(known)}")
    return found or [name for name in known if name not in alone]


def put(question: str, part: str, rows: Sequence[Row], **about: Any) -> None:
    """Write a run, in the place of the one of that name; ``about`` is its date, hardware, versions and settings."""
    path = RESULTS / f"{question}.json"
    found = known(question)
    new = {"part": part, **about, "rows": list(rows)}
    at = next((k for k, r in enumerate(found) if r["part"] == part), len(found))
    found[at : at + 1] = [new]
    path.parent.mkdir(parents=True, exist_ok=True)
    part_of = path.with_suffix(".part")
    part_of.write_text(text(QUESTIONS[question].asks, found))
    part_of.replace(path)


def text(asks: str, found: Sequence[Row]) -> str:
    """The file: a line for each row, so that a difference between two versions can be read."""
    parts = []
    for each in found:
        head = "".join(f"   {_json(k)}: {_json(v)},\n" for k, v in each.items() if k != "rows")
        lines = ",\n".join(f"    {_json(row)}" for row in each["rows"])
        parts.append(f'  {{\n{head}   "rows": [\n{lines}\n   ]\n  }}')
    return f'{{\n "question": {_json(asks)},\n "runs": [\n' + ",\n".join(parts) + "\n ]\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def here() -> Row:
    """Date, hardware and versions of a run on this machine's CPU."""
    found = machine(torch.device("cpu"))
    return {"date": found["date"], "hardware": found["device"], "torch": found["torch"], "python": found["python"]}
