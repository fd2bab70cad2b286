"""What is found again from one solve to the next: every cache of the package, bounded and with one lock.

A cache may only save work. Each entry is found by everything that it depends on, so that whatever changes is a new
entry: weights that are changed in place, another mode, dtype or device. ``clear()`` empties all of them.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch

from .torch_private import derivatives_are_watched

_T = TypeVar("_T")

_LOCK = threading.RLock()
_ALL: list[Cache[Any]] = []


class Cache(Generic[_T]):
    """The last ``size`` values, by key; the oldest goes first."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.entries: OrderedDict[Hashable, _T] = OrderedDict()
        _ALL.append(self)

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of this key, made if it is not there. Two threads may both make it; one of them is kept.

        What is made in inference mode is of no use to training, and is an entry of its own; what is made inside a
        transform of ``torch.func`` belongs to it and is not kept.
        """
        key = (key, torch.is_inference_mode_enabled())
        with _LOCK:
            if key in self.entries:
                self.entries.move_to_end(key)
                return self.entries[key]
        made = make()
        if derivatives_are_watched():
            return made
        with _LOCK:
            found = self.entries.setdefault(key, made)
            self.entries.move_to_end(key)
            while len(self.entries) > self.size:
                self.entries.popitem(last=False)
        return found

    def peek(self, key: Hashable) -> _T | None:
        """The value of this key, or None."""
        with _LOCK:
            return self.entries.get((key, torch.is_inference_mode_enabled()))

    def clear(self) -> None:
        """Forget everything."""
        with _LOCK:
            self.entries.clear()


@dataclass
class Verdict:
    """What was seen of a function: that it gives the same values when vectorised, and the numbers of a sample.

    ``samples`` has these by the most numbers up to which they were looked for.
    """

    vectorised: bool = False
    samples: dict[int, int] = field(default_factory=dict)


class Verdicts:
    """The verdicts on each function, by the kind of state and all that the function can reach."""

    _known: ClassVar[dict[int, tuple[weakref.ref[Any], dict[Hashable, Verdict]]]] = {}  # by identity, not equality

    @classmethod
    def of(cls, func: Any, kind: Hashable) -> Verdict:
        """The verdict on this function; that on one that cannot be referred to weakly is not kept."""
        try:
            with _LOCK:
                key = id(func)
                known = cls._known.get(key)
                if known is None or known[0]() is not func:
                    known = cls._known[key] = (weakref.ref(func, lambda _: cls._known.pop(key, None)), {})
                found = known[1].get(kind)
                if found is None:
                    if len(known[1]) > 64:
                        known[1].clear()
                    found = known[1][kind] = Verdict()
                return found
        except TypeError:
            return Verdict()


def listed() -> dict[str, int]:
    """The name of every cache and how many entries it has."""
    with _LOCK:
        return {cache.name: len(cache.entries) for cache in _ALL} | {"vectorised": len(Verdicts._known)}


def clear() -> None:
    """Empty every cache."""
    for cache in _ALL:
        cache.clear()
    with _LOCK:
        Verdicts._known.clear()
