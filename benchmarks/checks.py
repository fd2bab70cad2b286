"""The cost of the checks in a training step: the version before them and this one, in turn in one process.

    git worktree add BEFORE 1ae4c00
    python benchmarks/checks.py --before BEFORE/src

The earlier version is imported under another name. The two training steps of a pair follow each other directly, so that
other work on the machine affects both; the least time of each and the median of the ratios of pairs are kept.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from compare import Solve, on_cpu
from report.record import here, put

EARLIER = "neuralfde_before"


def both(before: Path, folder: str) -> list[dict[str, Solve]]:
    """The solves of ``compare.py`` with the earlier version and with this one."""
    shutil.copytree(before / "neuralfde", Path(folder) / EARLIER)
    sys.path.insert(0, folder)
    now, found = importlib.import_module("neuralfde"), []
    for version in (importlib.import_module(EARLIER), now):
        sys.modules["neuralfde"] = version  # what a solve imports when it is made
        found.append(on_cpu())
    sys.modules["neuralfde"] = now
    return found


def seconds(solve: Solve) -> float:
    """Of the processor: one thread works."""
    begin = time.process_time()
    solve()
    return time.process_time() - begin


def compared(name: str, earlier: Solve, now: Solve, length: float) -> dict[str, str | float]:
    """Pairs of training steps, for so many seconds."""
    for _ in range(4):
        earlier(), now()
    pairs, begin = [], time.perf_counter()
    while time.perf_counter() - begin < length:
        if len(pairs) % 2:
            pairs.append((seconds(earlier), seconds(now)))
        else:  # neither is always the second
            pairs.append((seconds(now), seconds(earlier))[::-1])
    least = [min(side) for side in zip(*pairs, strict=True)]
    ratios = [b / a for a, b in pairs]
    return {"solve": name, "before": least[0], "now": least[1], "ratio": least[1] / least[0],
            "median": statistics.median(ratios), "pairs": len(pairs)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the folder src of the version before the checks")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each training step")
    parser.add_argument("--dry", action="store_true", help="write no result file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        earlier, now = both(given.before, folder)
        for name in (n for n in now if n.startswith("MLP")):
            rows.append(compared(name, earlier[name], now[name], given.seconds))
            print(rows[-1], flush=True)
    if not given.dry:
        put("campaign", "cost of the checks", rows, **here(), command="python benchmarks/checks.py --before BEFORE/src")


if __name__ == "__main__":
    main()
