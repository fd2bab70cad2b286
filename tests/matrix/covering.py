"""A covering design: few cases in which every two values of different factors meet wherever they can."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence

Row = tuple[Hashable, ...]
Pair = tuple[int, Hashable, int, Hashable]
# Completions that compete for each row; more of them make the design a little smaller.
_TRIED = 60


def pairs(row: Row) -> list[Pair]:
    return [(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)]


def covering(
    tied: Sequence[Row], free: Sequence[Row], cost: Callable[[Row], float], allowed: Callable[[Row], bool]
) -> list[Row]:
    """Rows of one of the ``tied`` tuples, the combinations that make sense, and one value of each free factor.

    Greedy: a pair that has not met yet is completed in many ways at random, and the completion that brings most new
    pairs together for its cost is taken. Deterministic.
    """
    rng = random.Random(0)
    left = dict.fromkeys(_all_pairs(tied, free))
    found = []
    while left:
        i, a, j, b = pair = next(iter(left))
        fixed = {i: a, j: b}
        fitting = [row for row in tied if all(row[k] == v for k, v in fixed.items() if k < len(row))]
        tried = (_completed(rng, fitting, free, fixed) for _ in range(_TRIED))
        rows = [row for row in tried if allowed(row)]
        if not rows:
            raise AssertionError(f"no case brings {pair} together")
        best = max(rows, key=lambda row: sum(p in left for p in pairs(row)) / (1 + cost(row)))
        found.append(best)
        for p in pairs(best):
            left.pop(p, None)
    return found


def _all_pairs(tied: Sequence[Row], free: Sequence[Row]) -> Iterator[Pair]:
    """Every pair that can meet, in a fixed order."""
    for row in tied:
        yield from pairs(row)
    width = len(tied[0])
    values = [tuple(dict.fromkeys(row[k] for row in tied)) for k in range(width)] + list(free)
    for i, j in itertools.combinations(range(len(values)), 2):
        if j >= width:
            yield from ((i, a, j, b) for a, b in itertools.product(values[i], values[j]))


def _completed(rng: random.Random, fitting: Sequence[Row], free: Sequence[Row], fixed: dict[int, Hashable]) -> Row:
    row = rng.choice(fitting)
    return (*row, *[fixed.get(len(row) + k, rng.choice(f)) for k, f in enumerate(free)])
