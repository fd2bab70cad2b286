"""Looking at the caches of the package."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pytest

from neuralfde.base.caches import Cache


@dataclass
class Count:
    """How often a value was found, and how often it was made."""

    hits: int = 0
    misses: int = 0


def counted(patch: pytest.MonkeyPatch, cache: Cache) -> Count:
    """Empty a cache for this test and count what it is asked for."""
    count, get = Count(), cache.get
    patch.setattr(cache, "entries", OrderedDict())

    def watched(key, make):
        made = []
        found = get(key, lambda: (made.append(1), make())[1])
        count.misses += bool(made)
        count.hits += not made
        return found

    patch.setattr(cache, "get", watched)
    return count
