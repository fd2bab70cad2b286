"""What becomes of runs that are killed, and of their files when they are damaged."""

from __future__ import annotations

from .markdown import measured, table
from .record import rows, runs

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")


def faults() -> str:
    """Trials by experiment, damaged files by file, and folders that fail."""
    killed = [
        [r["experiment"], r["trials"], *(r[name] for name in SIGNALS), r["restored"], r["equal"]]
        for r in rows("faults", "kill and resume")
    ]
    killed.append(["total", *(sum(line[k] for line in killed) for k in range(1, 7))])
    head = [
        "experiment",
        "trials",
        "killed",
        "terminated",
        "Ctrl-C",
        "interruptions that left a checkpoint or rows",
        "equal, bit for bit",
    ]
    parts = [table(head, killed, right=1), table(["file", "damaged", "resumed", "refused"], damaged(), right=1)]
    failed = [[r["fault"], r["exit code"], r["line"]] for r in rows("faults", "folders")]
    return "\n\n".join([*parts, table(["fault", "exit code", "message"], failed), measured(*runs("faults"))])


def damaged() -> list[list[object]]:
    """Each file with all kinds of damage."""
    found: dict[str, list[int]] = {}
    for r in rows("faults", "damaged files"):
        line = found.setdefault(r["file"], [0, 0, 0])
        for k, key in enumerate(("cases", "went on", "refused")):
            line[k] += r.get(key, 0)
    lines: list[list[object]] = [[f"`{name}`" if "." in name else name, *line] for name, line in found.items()]
    return [*lines, ["total", *(sum(line[k] for line in found.values()) for k in range(3))]]


PLACES = {"faults": faults}
