"""Put measured figures where people read them: ``python benchmarks/readme.py`` after a benchmark has run.

Pages hold places for them, ``<!-- name:start -->...<!-- name:end -->``, within a line or on lines of their own; what
stands between is replaced by what the function of that name reads from ``results/``. ``--check`` only says which pages
are stale.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
PLACE = re.compile(r"<!-- (?P<name>[\w-]+):start -->(?P<old>.*?)<!-- (?P=name):end -->", re.S)


def rows(name: str, start: str = "") -> list[list[str]]:
    """Cells of the table rows of a results file whose first cell starts like this."""
    lines = (RESULTS / f"{name}.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row[0].startswith(start)]


def core() -> str:
    """The table of the core, with the machine it was measured on."""
    machine = json.loads((RESULTS / "core.json").read_text())["machine"]
    threads = machine.get("threads", machine["cores"])  # results of earlier versions have no "threads"
    where = f"{machine['cpu']}, {threads} threads, torch {machine['torch']}, {machine['date']}"
    return (RESULTS / "core.md").read_text() + f"\nMeasured by `python benchmarks/core.py` on: {where}."


def biases(problem: str) -> list[float]:
    """Errors of the paper's gradient in per cent."""
    return [float(row[-1].removesuffix(" %")) for row in rows("bias", problem)]


def bias_network() -> str:
    found = biases("small network")
    return f"{min(found):.0f} % to {max(found):.0f} %"


def bias_images() -> str:
    found = biases("image model")
    return f"{min(found) / 100:.2g} to {max(found) / 100:.2g} times the length of the true one"


def graphs_above() -> str:
    """How many accuracies on graphs are at or above the paper's, and how many of these by a loss of our own."""
    found = [row for row in rows("graphs-h200") if len(row) == 10 and re.fullmatch(r"[+-]\d+\.\d", row[4])]
    above = [row for row in found if row[4].startswith("+")]
    own = sum(row[6] != "plain" for row in above)
    share = "all" if own == len(above) else str(own)
    return f"{len(above)} of {len(found)} accuracies are at or above the paper's, {share} of them with another loss"


def longest_horizon() -> str:
    """The longest horizon of the image model whose exact training step was timed."""
    found = [
        row["T"]
        for name in ("mnist", "fashion-mnist")
        for row in json.loads((RESULTS / f"image-cost-{name}-h200.json").read_text())["rows"]
        if row["variant"] == "exact" and row.get("train_seconds")
    ]
    return f"T={max(found):g}"


FIGURES = {
    "core": core,
    "bias-network": bias_network,
    "bias-images": bias_images,
    "graphs-above": graphs_above,
    "longest-horizon": longest_horizon,
}


def filled(page: str) -> str:
    """The page with every place filled anew."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in FIGURES:
            raise SystemExit(f"there is no figure {name!r}; known: {', '.join(FIGURES)}")
        text = FIGURES[name]().strip()
        text = f"\n\n{text}\n\n" if match["old"].startswith("\n") else text
        return f"<!-- {name}:start -->{text}<!-- {name}:end -->"

    return PLACE.sub(fill, page)


def pages() -> list[Path]:
    return [ROOT / "README.md", HERE / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    if "--check" in sys.argv and stale:
        names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
        raise SystemExit(f"not as measured: {names}. Run: python benchmarks/readme.py")
    for page in stale:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
