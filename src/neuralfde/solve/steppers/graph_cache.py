"""The cache of captured graphs: they belong to ``func``, are used by one solve at a time, and are freed with ``func``.

The key of a capture is everything that it depends on: the method, shapes, dtypes and device, addresses of parameters
and buffers, modes of submodules, precision settings, and the operations of ``func`` in its first evaluation.
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
    from .static import Static

log = logging.getLogger("neuralfde")

#: For each func, by key: the static buffers with their graphs, or the number of solves so far, or why it has no graphs.
_CACHE: weakref.WeakKeyDictionary[Any, OrderedDict[Hashable, Static | int | str]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def lease(
    plan: Plan, like: Tensor, size: Hashable, repeats: int, make: Callable[[], Static]
) -> tuple[Static | None, str]:
    """The graphs of this solve, reserved for it, made when it comes for the ``repeats``-th time; or None and why."""
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
    """Let the next solve use these graphs."""
    static.busy = False


def forget(plan: Plan, static: Static, reason: str) -> None:
    """Remember that ``func`` cannot be captured, so that it runs eagerly from now on; logged once per func."""
    with _LOCK:
        found = _CACHE.get(_owner(plan.field.func), OrderedDict())
        told = any(isinstance(known, str) for known in found.values())
        found.update((key, reason) for key, known in list(found.items()) if known is static)
    if not told:
        log.warning("steps run eagerly, since %s", reason)


def drop(func: Any) -> None:
    """Drop the captured graphs of a func and free their memory."""
    with _LOCK:
        _CACHE.pop(_owner(func), None)


def _owner(func: Any) -> Any:
    """The object that the graphs belong to: for a bound method, which is a new object every time, its instance."""
    return getattr(func, "__self__", func)


def key_of(plan: Plan, like: Tensor) -> Hashable:
    """Everything that a captured step depends on, other than the contents of its static inputs."""
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
