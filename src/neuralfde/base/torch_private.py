"""Every private name of PyTorch that the package uses: the one file to look at when a new version comes out.

Each is here for a reason that its comment gives. All of them exist in torch 2.11 to 2.13, which CI and the GPU tests
run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._compile import _disable_dynamo
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.autograd.graph import _engine_run_backward
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "Duals",
    "TorchDispatchMode",
    "add_each",
    "are_batched",
    "copy_each",
    "derivatives_are_watched",
    "dual",
    "follows_gradients",
    "hooks_at_rest",
    "is_constant",
    "mapped",
    "outside_of_transforms",
    "places",
    "pytree",
    "sequence_number",
    "tables",
    "transform_level",
    "uncompiled",
    "value_of",
    "vectorised",
    "version_of",
    "vjp",
    "with_parameters",
    "with_tangent",
    "without_compiler",
    "without_tangent",
]

_LOCK = threading.Lock()
_inside: int = 0
_stance: Any = None  # how many threads run compiled functions as they were written, and what puts the stance back

#: Decorator: run this outside of any graph that torch.compile is building. ``torch.compiler.disable`` would import the
#: compiler together with the package.
without_compiler = _disable_dynamo


def vjp(
    outputs: tuple[Tensor, ...], grads: tuple[Tensor, ...], inputs: tuple[Tensor, ...], keep: bool = False
) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad(..., allow_unused=True)`` without its checks, which take as long as a small layer."""
    found: tuple[Tensor | None, ...] = _engine_run_backward(
        outputs, grads, keep, False, inputs, allow_unreachable=True, accumulate_grad=False
    )
    return found


def vectorised(func: Callable[..., Any], times: Tensor, states: Tensor, *args: Any) -> Any:
    """``torch.func.vmap(func)(times, states, *args)`` without its checks, which take as long as a small network.

    A compiled ``func`` runs as it was written: compiled for this, it might never be compiled for single states again.
    """
    if "torch._dynamo" in sys.modules:
        with uncompiled():
            return _vmap(func, times, states, args)
    return _vmap(func, times, states, args)


def _vmap(func: Callable[..., Any], times: Tensor, states: Tensor, args: tuple[Any, ...]) -> Any:
    count = times.shape[0]
    level = _functorch._vmap_increment_nesting(count, "error")
    try:
        out = func(_functorch._add_batch_dim(times, 0, level), _functorch._add_batch_dim(states, 0, level), *args)
        return _functorch._remove_batch_dim(out, level, count, 0)
    finally:
        _functorch._vmap_decrement_nesting()


def mapped(func: Callable[..., Tensor], given: Iterable[tuple[Any, bool]], count: int, randomness: str) -> Tensor:
    """``func`` of tensors, those that say so mapped along their first axis, as :func:`torch.func.vmap` has it."""
    level = _functorch._vmap_increment_nesting(count, randomness)
    try:
        out = func(*[_functorch._add_batch_dim(x, 0, level) if along else x for x, along in given])
        return _functorch._remove_batch_dim(out, level, count, 0)
    finally:
        _functorch._vmap_decrement_nesting()


class Duals:
    """Dual numbers for one pass: ``torch.func.jvp`` again and again, with tensors that stay the same.

    As a context it opens forward mode, unless it is open already. Measured with a network of two layers: 84 µs a call,
    150 µs where every call opens forward mode and makes all dual numbers, 230 µs by ``torch.func.jvp``.
    """

    def __init__(self) -> None:
        self._level: Any = contextlib.nullcontext()
        self._of: tuple[Tensor, ...] = ()
        self._followed = False
        self._made: list[Tensor] = []

    def __enter__(self) -> Duals:
        self._level = forward_ad.dual_level() if forward_ad._current_level < 0 else contextlib.nullcontext()
        self._level.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._of, self._made = (), []
        self._level.__exit__(None, None, None)

    def push(
        self, func: Callable[..., Tensor], t: Tensor, z: Tensor, tangent: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """``func(t, z, *values)`` and its derivative; ``tensors`` are the values, then their tangents."""
        level, followed = forward_ad._current_level, torch.is_grad_enabled()
        before = torch._C._is_fwd_grad_enabled()
        torch._C._set_fwd_grad_enabled(True)  # here alone: a backward pass would carry tangents along
        try:
            if followed != self._followed or len(tensors) != len(self._of) or not all(map(is_, tensors, self._of)):
                half = len(tensors) // 2
                pairs = zip(tensors[:half], tensors[half:], strict=True)
                self._made = [torch._make_dual(x, d, level=level) for x, d in pairs]
                self._of, self._followed = tensors, followed
            # a copy: the tangent of a view is written to a tangent of all that it is a view of, here a block of rows
            out = func(t, torch._make_dual(z.clone(), tangent, level=level), *self._made)
            value, moved = torch._unpack_dual(out, level=level)
        finally:
            torch._C._set_fwd_grad_enabled(before)
        return value, torch.zeros_like(value) if moved is None else moved


#: Context: within, no transform of ``torch.func`` is active, as it is where a custom Function runs in the end.
outside_of_transforms = temporarily_clear_interpreter_stack


def dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A tensor with its tangent in the innermost forward mode."""
    return forward_ad.make_dual(value, tangent)  # type: ignore[no-any-return]


def follows_gradients(x: Tensor | None) -> bool:
    """Whether a tensor may be asked for a gradient, by autograd or by a transform around this call."""
    if x is None or not torch.is_grad_enabled():
        return False
    while _functorch.is_functorch_wrapped_tensor(x):
        if x.requires_grad:
            return True
        x = _functorch.get_unwrapped(x)
    return x.requires_grad


def transform_level() -> int:
    """How many transforms of ``torch.func`` are active."""
    top = _functorch.peek_interpreter_stack()
    return 0 if top is None else int(top.level())


def without_tangent(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The value and the tangent of a tensor in the innermost forward mode, if that is where one is active."""
    if forward_ad._current_level < 0:
        return x, None
    value, tangent = forward_ad.unpack_dual(x)
    return (x, None) if tangent is None else (value, tangent)


def add_each(totals: Any, parts: Any) -> None:
    """``total += part`` for each pair, in one call."""
    torch._foreach_add_(totals, parts)


def copy_each(targets: Any, sources: Any) -> None:
    """``target.copy_(source)`` for each pair, in one call."""
    torch._foreach_copy_(targets, sources)


def with_parameters(func: Any, tensors: dict[str, Tensor], tie_weights: bool = False) -> Any:
    """Within, the module ``func`` has these tensors in place of its parameters and buffers of the same names.

    With ``tie_weights`` also wherever else it holds the same ones. Each place is filled once: PyTorch's own would leave
    a substitute behind in a layer that is registered under two names.
    """
    if not tensors:
        return contextlib.nullcontext()
    assert isinstance(func, nn.Module)
    if tie_weights:
        named = {**dict(func.named_parameters()), **dict(func.named_buffers())}
        stands = {id(named[name]): x for name, x in tensors.items()}
        tensors = {path: stands[id(x)] for path, x in places(func).items() if id(x) in stands}
    return _reparametrize_module(func, tensors)


def tables(func: Any) -> list[tuple[str, dict[str, Any]]]:
    """The dictionaries in which a module and its parts hold parameters and buffers, with the path of the part."""
    parts = func.named_modules() if isinstance(func, nn.Module) else ()
    return [(path, table) for path, part in parts for table in (part._parameters, part._buffers)]


def places(func: Any) -> dict[str, Tensor]:
    """Every place where a module holds a parameter or buffer, once, by its path; nothing for other functions."""
    held = ((path, key, x) for path, table in tables(func) for key, x in table.items() if x is not None)
    return {f"{path}.{key}" if path else key: x for path, key, x in held}


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Within, compiled functions run as they were written; one that is called under a dispatch mode or under vmap would
    otherwise be compiled for that, or never again.

    The stance of the compiler belongs to the whole process, so threads that are here at once share it: the last one to
    leave puts back what the first one found.
    """
    if "torch._dynamo" not in sys.modules:  # nothing has been compiled
        yield
        return
    global _inside, _stance
    with _LOCK:
        if _inside == 0:
            _stance = torch.compiler.set_stance("force_eager")
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                _stance.__exit__(None, None, None)


def derivatives_are_watched() -> bool:
    """Whether forward mode or a transform of ``torch.func`` is active around this call."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def are_batched(grads: Tensor) -> bool:
    """Whether these are several gradients at once, as ``torch.autograd.grad(..., is_grads_batched=True)`` has them."""
    return _functorch.is_legacy_batchedtensor(grads) or derivatives_are_watched()


def is_constant(x: Tensor) -> bool:
    """Whether this tensor is a plain number to every transform: no gradient, no tangent, no axis of vmap."""
    if x.requires_grad or _functorch.is_functorch_wrapped_tensor(x):
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(x).tangent is None


def with_tangent(x: Tensor | None) -> Tensor | None:
    """In forward mode, a tensor without a tangent gets one of zeros: operations that meet a missing one are slow.

    Measured: a network of two layers takes 12 to 24 evaluations of itself without, 2.3 with them.
    """
    if x is None or forward_ad._current_level < 0 or not x.is_floating_point():
        return x
    if forward_ad.unpack_dual(x).tangent is not None:
        return x
    return forward_ad.make_dual(x, torch.zeros_like(x))  # type: ignore[no-any-return]


def version_of(x: Tensor) -> int:
    """How often a tensor has been written to; one made in inference mode does not say."""
    return 0 if x.is_inference() else x._version


def value_of(x: Tensor) -> Tensor:
    """The numbers of a tensor, to be looked at: without gradient, and of all samples of vmap."""
    if not torch._C._are_functorch_transforms_active():
        return x.detach()
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    with outside_of_transforms():  # or detach() would be wrapped again
        return x.detach()


@contextlib.contextmanager
def hooks_at_rest(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Within, hooks on these tensors are not called, not even where their gradient is asked for."""
    resting = [(hooks, list(hooks.items())) for hooks in (x._backward_hooks for x in tensors) if hooks]
    for hooks, _ in resting:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, held in resting:
            added = list(hooks.items())
            hooks.clear()
            hooks.update(held + added)


def sequence_number(z: Tensor) -> int:
    """The number that autograd would give to a node made now; nodes made before have smaller ones."""
    node = z.view_as(z).grad_fn
    assert node is not None
    return int(node._sequence_nr())
