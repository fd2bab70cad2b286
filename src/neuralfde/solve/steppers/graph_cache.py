"""Captured graphs from one solve to the next: they belong to ``func``, are lent to one solve at a time, and go with it.

A capture holds for everything that its key names: the method, shapes, dtypes and device, the addresses of parameters
and buffers, the mode of every submodule, the precision settings, and what ``func`` did when it was first evaluated.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...base.policy import GRAPHS_KEPT
from ...base.torch_private import pytree
from ..plan import Plan

if TYPE_CHECKING:
    from .cuda_graph import Static

log = logging.getLogger("neuralfde")

#: For each func: by key the static buffers with their graphs, how often a solve came so far, or why it has no graphs.
_CACHE: weakref.WeakKeyDictionary[Any, OrderedDict[Hashable, Static | int | str]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def lease(
    plan: Plan, like: Tensor, size: Hashable, repeats: int, make: Callable[[], Static]
) -> tuple[Static | None, str]:
    """The graphs of this solve, for it alone, made when it comes for the ``repeats``-th time; or None and why."""
    try:
        key = (size, key_of(plan, like))
        with _LOCK:
            found = _CACHE.setdefault(_owner(plan.field.func), OrderedDict())
            known = found.get(key, 0)
            if isinstance(known, str):
                return None, known
            if isinstance(known, int):
                found[key] = known + 1
                if known + 1 < repeats:
                    return None, "a short solve, captured if it comes again"
                found[key] = known = make()
            elif known.busy:
                return None, "another solve is using the graphs of this func"
            known.busy = True
            found.move_to_end(key)
            while len(found) > GRAPHS_KEPT:
                found.popitem(last=False)
            return known, ""
    except TypeError as error:
        return None, f"func or its arguments cannot be recognised again ({error})"


def release(static: Static) -> None:
    """Let the next solve have it."""
    static.busy = False


def forget(plan: Plan, static: Static, reason: str) -> None:
    """``func`` cannot be captured: run eagerly from now on, with one log line a func."""
    with _LOCK:
        found = _CACHE.get(_owner(plan.field.func), OrderedDict())
        told = any(isinstance(known, str) for known in found.values())
        found.update((key, reason) for key, known in list(found.items()) if known is static)
    if not told:
        log.warning("steps run eagerly, since %s", reason)


def drop(func: Any) -> None:
    """Drop the captured graphs of a func and give their memory back."""
    with _LOCK:
        _CACHE.pop(_owner(func), None)


def _owner(func: Any) -> Any:
    """What the cache hangs on: a bound method is a new object at every call, the object it is bound to is not."""
    return getattr(func, "__self__", func)


def key_of(plan: Plan, like: Tensor) -> Hashable:
    """All that a captured step depends on, other than the contents of its static inputs."""
    field, func = plan.field, plan.field.func
    leaves, spec = pytree.tree_flatten(field.args)
    fixed = tuple((tuple(x.shape), x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else x for x in leaves)
    inputs = {id(x) for x in leaves}
    owned: list[Any] = [(x.data_ptr(), x.requires_grad) for x in plan.leaves if id(x) not in inputs]
    if isinstance(func, nn.Module):
        owned += [(x.data_ptr(), x.dtype, x.requires_grad) for x in (*func.parameters(), *func.buffers())]
        owned += [m.training for m in func.modules()]
    settings = (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic,
    )
    method = getattr(func, "__func__", None)
    autocast = None if field.autocast is None else tuple(field.autocast.values())
    key = (
        method, plan.scheme, tuple(like.shape), like.dtype, like.device, repr(field.structure), repr(spec), fixed,
        tuple(owned), settings, autocast, plan.weigh, field.trace,
    )  # fmt: skip
    hash(key)
    return key
