"""What is found again from one solve to the next: every cache of the package, bounded and with one lock.

A cache may only save work. Each entry is found by everything that it depends on, so that whatever changes is a new
entry: weights that are changed in place, another mode, dtype or device. ``clear()`` empties all of them.

Small tensors that were copied between host and device are found again too. The numbers of a scheme are computed on the
host, and an order may live on the device; a copy makes the host wait for the device, and none may be made while the
caller captures a CUDA graph around a solve.
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


_ON_DEVICE: Cache[Tensor] = Cache("numbers on the device", 64)
_ON_HOST = WeakTensorKeyDictionary()
_IN_GRAPHS: set[Tensor] = set()  # a captured graph reads them at every replay, so they are never given back


def capturing() -> bool:
    """Whether the caller is capturing the current stream into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def to_device(x: Tensor, like: Tensor, contents: Hashable = None) -> Tensor:
    """``x`` in the dtype and on the device of ``like``; found by its contents if it was there before.

    ``contents`` says what they are in fewer words than the numbers themselves.
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
    """``x`` in float64 on the CPU; one that needs no gradient is fetched again only after it was changed."""
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
    """Raise where a copy would break the capture, before it does."""
    if copies and capturing():
        raise UnsupportedError(
            "a solve inside a CUDA graph capture may copy nothing between host and device. Run the same solve once "
            "before the capture, so that its weights are on the device; an order that is learned, or changes from "
            "solve to solve, has its weights computed on the host and cannot be captured."
        )
