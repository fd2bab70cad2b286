"""Copies of small tensors between host and device, made once.

The numbers of a scheme are computed on the host, and an order may live on the device. A copy makes the host wait for
the device, and none may be made while the caller captures a CUDA graph around a solve, so each is found again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import UnsupportedError
from .caches import Cache
from .policy import TABLE_NUMBERS
from .torch_private import is_constant

_ON_DEVICE: Cache[Tensor] = Cache("numbers on the device", 64)
_ON_HOST = WeakTensorKeyDictionary()
_IN_GRAPHS: set[Tensor] = set()  # a captured graph reads them at every replay, so they are never given back


def capturing() -> bool:
    """Whether the caller is capturing the current stream into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def to_device(x: Tensor, like: Tensor) -> Tensor:
    """``x`` in the dtype and on the device of ``like``; found by its contents if it was there before."""
    if x.device == like.device or x.numel() > TABLE_NUMBERS:
        _refuse_capture(x.device != like.device)
        return x.to(like)
    key = (tuple(x.shape), tuple(x.flatten().tolist()), like.dtype, like.device)
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
