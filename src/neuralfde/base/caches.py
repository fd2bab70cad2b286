"""What is reused from one solve to the next: every cache of the package, bounded and with one lock.

A cache only saves work, it never changes a result: the key of an entry contains everything that the value depends on,
including the contents of weights, the mode, the dtype and the device. ``clear()`` empties all caches.

Small tensors that were copied between host and device are cached too. Weights are computed on the host, while an order
may be on the device. Each copy makes the host wait for the device, and while the caller captures a CUDA graph around a
solve, no copy may be made at all.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import UnsupportedError
from .policy import TABLE_NUMBERS
from .torch_private import derivatives_are_watched, is_constant

_T = TypeVar("_T")

_LOCK = threading.RLock()
_ALL: list[Cache[Any]] = []


class Cache(Generic[_T]):
    """The ``size`` values that were used last, by key."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.entries: OrderedDict[Hashable, _T] = OrderedDict()
        _ALL.append(self)

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The value of this key, made by ``make`` if it is missing. If two threads make it at once, one is kept.

        Tensors made in inference mode cannot be used in training, so the mode is part of the key. A value made inside a
        transform of ``torch.func`` belongs to that transform and is not kept.
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
        """The value of this key, or None if it is missing."""
        with _LOCK:
            return self.entries.get((key, torch.is_inference_mode_enabled()))

    def clear(self) -> None:
        """Forget everything."""
        with _LOCK:
            self.entries.clear()


@dataclass
class Verdict:
    """What was observed of a function.

    Attributes:
        vectorised: it gives the same values under vmap as one by one.
        differentiated: it gives the same gradients, too.
        samples: the elements of a sample, which do not interact with other samples, by the limit of the search.
        work: how much an evaluation computes, in bytes; None if that was not measured.
        called: why its operations cannot be repeated without calling it, if that was found out.
    """

    vectorised: bool = False
    differentiated: bool = False
    samples: dict[int, int] = field(default_factory=dict)
    work: int | None = None
    called: str | None = None


class Verdicts:
    """The verdicts on each function, by the kind of state and everything that the function can reach."""

    _known: ClassVar[dict[int, tuple[weakref.ref[Any], dict[Hashable, Verdict]]]] = {}  # by identity, not equality

    @classmethod
    def of(cls, func: Any, kind: Hashable) -> Verdict:
        """The verdict on this function; not kept if the function does not allow weak references."""
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
    """The name of every cache and its number of entries."""
    with _LOCK:
        return {cache.name: len(cache.entries) for cache in _ALL} | {"vectorised": len(Verdicts._known)}


def clear() -> None:
    """Empty every cache."""
    for cache in _ALL:
        cache.clear()
    with _LOCK:
        Verdicts._known.clear()


_ON_DEVICE: Cache[Tensor] = Cache("numbers on the device", 64)
_ON_HOST = WeakTensorKeyDictionary()
_IN_GRAPHS: set[Tensor] = set()  # a captured graph reads them at every replay, so they are never freed


def capturing() -> bool:
    """Whether the caller is capturing the current stream into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def to_device(x: Tensor, like: Tensor, contents: Hashable = None) -> Tensor:
    """``x`` in the dtype and on the device of ``like``; copies of small tensors are cached by their contents.

    ``contents`` identifies the contents where a short key exists, so that they need not be read.
    """
    if x.device == like.device or x.numel() > TABLE_NUMBERS:
        _refuse_capture(x.device != like.device)
        return x.to(like)
    key = (tuple(x.shape), contents or tuple(x.flatten().tolist()), like.dtype, like.device)
    if capturing():
        known = _ON_DEVICE.peek(key)
        _refuse_capture(known is None)
        if known is not None:
            _IN_GRAPHS.add(known)
    return _ON_DEVICE.get(key, lambda: x.to(like))


def to_host(x: Tensor) -> Tensor:
    """``x`` in float64 on the CPU; a tensor without gradient is fetched again only if it has changed."""
    if x.device.type == "cpu" or not is_constant(x) or x.is_inference():
        _refuse_capture(x.device.type != "cpu")
        return x.to(device="cpu", dtype=torch.float64)
    version, found = _ON_HOST.get(x, (-1, None))
    if found is None or version != x._version:
        _refuse_capture(True)
        found = x.to(device="cpu", dtype=torch.float64)
        _ON_HOST[x] = (x._version, found)
    return found  # type: ignore[no-any-return]


def _refuse_capture(copies: bool) -> None:
    """Raise if a copy would break a capture that is under way."""
    if copies and capturing():
        raise UnsupportedError(
            "a solve inside a CUDA graph capture may copy nothing between host and device. Run the same solve once "
            "before the capture, so that its weights are on the device; an order that is learned, or changes from "
            "solve to solve, has its weights computed on the host and cannot be captured."
        )
