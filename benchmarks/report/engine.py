"""What a reader opens: modules that run in a solve, and the size of the core."""

from __future__ import annotations

from .markdown import measured, table
from .record import Row, known, rows, runs

CPU, GPU, SOURCE = "solves on a CPU", "solves on a GPU", "source"
FASTER = ("speed on a GPU", "speed on a CPU")


def engine() -> str:
    """Counts of modules, then counts of the source."""
    head = ["a solve with its gradient", "stepper", "modules, first call", "modules, later calls"]
    lines = [
        [f"{r['case']}, {r['steps']} steps", f"`{r['stepper']}`", len(r["first"]), len(r["later"])] for r in solves()
    ]
    read = [run for run in runs("engine") if run["part"] not in FASTER]
    return "\n\n".join([table(head, lines, right=2), of_source(), measured(*read)])


def speed() -> str:
    """Times of solves before the engine had its present shape, and now."""
    found = {run["part"]: run for run in known("engine")}
    chosen = [found[part] for part in FASTER if part in found]
    head = ["one training step, or one solve", "before", "now", "now / before"]
    lines = [
        [r["solve"] + (", GPU" if run["part"] == FASTER[0] else ""), ms(r["before"]), ms(r["now"]), f"{r['ratio']:.2f}"]
        for run in chosen
        for r in run["rows"]
    ]
    return "\n\n".join([table(head, lines, right=3), measured(*chosen)])


def ms(seconds: float) -> str:
    """Milliseconds, three digits."""
    return f"{1e3 * seconds:.3g} ms"


def solves() -> list[Row]:
    """The solves that were measured, those on a CPU first."""
    found = {run["part"]: run["rows"] for run in known("engine")}
    return [row for part in (CPU, GPU) for row in found.get(part, [])]


def of_source() -> str:
    """How much there is to read, and which numbers stand outside of the lists of them."""
    found = {r["figure"]: r for r in rows("engine", SOURCE)}
    core, root = found["core"], found["root"]["files"]
    lines = [
        ["the core, without what is built on it", f"{core['lines']} lines in {core['files']} files", ""],
        ["files at the root of the package", len(root), _names(root)],
    ]
    for place in ("in the core", "around it"):
        own = found[f"numbers {place}"]["files"]
        lines.append([f"files with numbers of their own, {place}", len(own), _names(own)])
    return table(["source", "", "which"], lines)


def _names(files: list[str] | dict[str, list[str]]) -> str:
    return ", ".join(f"`{name}`" for name in files)


PLACES = {"engine": engine, "engine-speed": speed}
