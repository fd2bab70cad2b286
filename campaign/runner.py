"""Cases in parallel, for as long as there is time, and what came of them."""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

import torch

from neuralfde.cli.processes import leave_with_parent

from .case import Part, judged
from .parts import PARTS

#: Cases of one share that a process takes at once.
CHUNK = 5


@dataclass
class Tally:
    """What came of the cases of one part."""

    part: str
    first: int
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    share: float = 0.0

    def add(self, other: Tally) -> None:
        """Take in some more cases."""
        self.counts += other.counts
        self.refusals += other.refusals
        self.failures |= other.failures
        self.seconds += other.seconds
        self.share = max(self.share, other.share)

    @property
    def cases(self) -> int:
        """How many there were."""
        return sum(self.counts.values())


def run_cases(name: str, seeds: range) -> Tally:
    """The cases of these seeds, one after the other, in this process."""
    torch.set_num_threads(1)
    part, found, began = PARTS[name], Tally(name, seeds.start), time.perf_counter()
    for seed in seeds:
        outcome = judged(part, part.draw(seed))
        found.counts[outcome.kind] += 1
        found.share = max(found.share, outcome.share)
        if outcome.kind == "refused":
            found.refusals[pattern(outcome.said)] += 1
        if outcome.kind == "failed":
            found.failures[seed] = outcome.said
    found.seconds = time.perf_counter() - began
    return found


def pattern(text: str) -> str:
    """The beginning of a refusal without its numbers and names: what refusals of one kind share."""
    text = re.sub(r"'[^']*'", "'…'", text.split(". ")[0])
    text = re.sub(r"=[^\s,;:]+", "=…", text)
    return textwrap.shorten(re.sub(r"(?<![A-Za-z])-?\d[\d.e+-]*", "…", text), 120, placeholder=" …")


def campaign(
    names: list[str], seed: int, until: Callable[[Tally], bool], processes: int, told: Callable[[str, Tally], None]
) -> dict[str, Tally]:
    """Chunks of all parts in turn; a part is over when ``until`` says so, or when it has no more cases."""
    tallies = {name: Tally(name, 0 if PARTS[name].each else seed) for name in names}
    open_parts = {name: _chunks(PARTS[name], tallies[name].first) for name in names}
    waiting: dict[Future[Tally], str] = {}
    with ProcessPoolExecutor(processes, get_context("spawn"), leave_with_parent) as pool:
        turn = itertools.cycle(names)
        while open_parts or waiting:
            while open_parts and len(waiting) < 2 * processes:
                name = next(turn)
                if name not in open_parts:
                    continue
                chunk = None if until(tallies[name]) else next(open_parts[name], None)
                if chunk is None:
                    del open_parts[name]
                else:
                    waiting[pool.submit(run_cases, name, chunk)] = name
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                name = waiting.pop(done)
                tallies[name].add(done.result())
                told(name, done.result())
    return tallies


def _chunks(part: Part, first: int) -> Iterator[range]:
    size = max(1, round(part.share * CHUNK))
    if part.each:
        return (range(a, min(a + size, part.count)) for a in range(0, part.count, size))
    return (range(a, a + size) for a in itertools.count(first, size))
