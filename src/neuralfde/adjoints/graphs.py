"""CUDA graphs of one step: ``func`` alone, and ``func`` with its vector-Jacobian product, replayed at every step.

A step of a small network is bound by the launches of its kernels. Captured once per shape, with static inputs,
a step is one launch. Captured graphs belong to ``func``: they are found again by the next solve and go away with it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..history import BlockEngine, Engine
from ..structure import tensors_in
from .captured import Captured, own_leaves
from .captured_blocks import FEWEST_BLOCKS, CapturedBlocks
from .plain import is_plain
from .plan import Coefficients, Plan

log = logging.getLogger("neuralfde")

#: From this many steps on, graphs are captured at once; below it once the same solve comes a third time.
AT_ONCE_FROM = 64
_REPEATS = 3
# Captured graphs hold their buffers: only the last few shapes of a func are kept.
_KEPT = 4

Found = OrderedDict[Hashable, "Captured | int | None"]
_CACHE: weakref.WeakKeyDictionary[Any, Found] = weakref.WeakKeyDictionary()
_TOLD: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


@contextlib.contextmanager
def lease(plan: Plan, c: Coefficients, z0: Tensor, engine: Engine, check: bool = False) -> Iterator[Captured | None]:
    """The captured steps of this solve, for this solve alone; None where it runs eagerly, as under ``check``."""
    captured = None if check else _find(plan, c, z0, engine)
    with _LOCK:
        if captured is not None and captured.busy:
            captured = None  # another thread, or a solve inside this one
        if captured is not None:
            captured.busy = True
    if captured is None:
        yield None
        return
    try:
        captured.begin(plan, c)
        plan.tally["replayed"] = 1
        yield captured
    finally:
        captured.end()


def ready(captured: Captured | None, plan: Plan, engine: Engine) -> Captured | None:
    """The captured step with its backward graphs; None, and eager from now on, if those cannot be captured."""
    if captured is None:
        return None
    try:
        if isinstance(captured, CapturedBlocks):
            assert isinstance(engine, BlockEngine)
            captured.capture_backward_of(engine)
        else:
            captured.capture_backward()
        captured.clear()
        return captured
    except Exception as error:
        give_up(plan, error)
        found = _CACHE.get(_owner(plan.field.func), OrderedDict())
        found.update((key, None) for key, known in list(found.items()) if known is captured)
        return None


def release(func: Any) -> None:
    """Drop the captured graphs of a func and give their memory back."""
    _CACHE.pop(_owner(func), None)


def _find(plan: Plan, c: Coefficients, z0: Tensor, engine: Engine) -> Captured | None:
    if plan.graphs is False:
        return None
    found: Found = OrderedDict()
    key: Hashable = None
    size = 1
    reason = why_not(plan, c, z0)
    if reason is None:
        try:
            size = _whole_blocks(engine, plan, c)
            key = (size, _key(plan, z0))
            found = _CACHE.setdefault(_owner(plan.field.func), found)
        except TypeError as error:
            reason = f"its arguments cannot be recognised again ({error})"
    if reason is not None:
        if plan.graphs is True:
            raise InputError(f"graphs=True, but {reason}. Use graphs='auto' to run such steps eagerly.")
        return None
    known = found.get(key, 0)
    if isinstance(known, int):
        found[key] = known + 1
        if plan.graphs is not True and plan.steps < AT_ONCE_FROM and known + 1 < _REPEATS:
            return None
        known = found[key] = _capture(plan, c, z0, size)
    found.move_to_end(key)
    while len(found) > _KEPT:
        found.popitem(last=False)
    return known


def _whole_blocks(engine: Engine, plan: Plan, c: Coefficients) -> int:
    """The steps that are captured at once: a block of a plain solve, or 1."""
    if not is_plain(engine, plan, c) or engine.block < 2:
        return 1
    return engine.block if plan.steps >= FEWEST_BLOCKS * engine.block else 1


def _capture(plan: Plan, c: Coefficients, z0: Tensor, size: int) -> Captured | None:
    try:
        captured = Captured(plan, c, z0) if size == 1 else CapturedBlocks(plan, c, z0, size)
        captured.capture_forward()
        return captured
    except Exception as error:
        give_up(plan, error)
        return None


def give_up(plan: Plan, error: Exception) -> None:
    """Run eagerly from now on: one log line a func, or an error where graphs were asked for."""
    reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if plan.graphs is True:
        raise InputError(f"graphs=True, but func could not be captured as a CUDA graph ({reason}).") from error
    told = _TOLD.setdefault(_owner(plan.field.func), set())
    if not told:
        told.add(reason)
        log.warning("steps run eagerly, since func could not be captured as a CUDA graph: %s", reason)


def why_not(plan: Plan, c: Coefficients, z0: Tensor) -> str | None:
    """Why the steps of this solve cannot be replayed; None if they can."""
    if z0.device.type != "cuda":
        return f"the state is on {z0.device}: CUDA graphs need a CUDA device"
    if plan.scheme.implicit:
        return "an implicit stage is solved to a tolerance, which the host has to look at"
    if c.local.ndim > 1:
        return "the weight of a step's own slope changes from step to step"
    if plan.field.noise.active:
        return "func draws random numbers, which a replayed graph would not repeat in the backward pass"
    inputs = {id(x) for x in tensors_in(plan.field.args)}
    owned = set(own_leaves(plan.field.func)[1])
    if any(id(x) not in inputs and id(x) not in owned for x in plan.leaves):
        return "params= names tensors that are no parameters of func: a capture needs leaves of its own for them"
    if torch.cuda.is_current_stream_capturing():
        return "the solve itself is being captured"
    return None


def _owner(func: Any) -> Any:
    """What the cache hangs on: a bound method is a new object at every call, the object it is bound to is not."""
    return getattr(func, "__self__", func)


def _key(plan: Plan, z0: Tensor) -> Hashable:
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
        method, plan.scheme, tuple(z0.shape), z0.dtype, z0.device, repr(field.structure), repr(spec), fixed,
        tuple(owned), settings, autocast, plan.weigh, field.trace,
    )  # fmt: skip
    hash(key)
    return key
