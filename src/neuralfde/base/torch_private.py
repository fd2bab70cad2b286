"""The private names of PyTorch that the package uses: a new version can break this file and torch_transforms.py only.

A docstring or comment says why each is needed. All exist in torch 2.11 to 2.13, which CI and the GPU tests run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._compile import _disable_dynamo
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.graph import _engine_run_backward
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

__all__ = [
    "DUAL_THREAD",
    "Recording",
    "add_each",
    "are_batched",
    "compiler_is_watching",
    "copy_each",
    "derivatives_are_watched",
    "hooks_at_rest",
    "is_compiled",
    "is_constant",
    "is_unknown",
    "operations_of",
    "outside_of_programs",
    "place_of",
    "places",
    "pytree",
    "sequence_number",
    "tables",
    "uncompiled",
    "unwatched",
    "value_of",
    "vectorised",
    "version_of",
    "vjp",
    "with_parameters",
    "with_tangent",
    "without_compiler",
    "writing",
]

_LOCK = threading.Lock()
#: The thread whose pass over an augmented system has opened forward mode, if any: its level is shared by all threads.
DUAL_THREAD: set[int] = set()
_inside: int = 0  # how many threads are inside `uncompiled`
_stance: Any = None  # restores the compiler's stance when the last of them leaves

#: Decorator: run this outside of any graph that torch.compile is building. Unlike ``torch.compiler.disable``, it does
#: not import the compiler together with the package.
without_compiler = _disable_dynamo


def compiler_is_watching() -> bool:
    """Whether ``torch.compile`` is tracing this call, or would trace the functions called in it; False during export.

    The second happens in a frame that it could not compile: the frame runs as it is, and inner calls are tried again.
    """
    if torch.compiler._is_exporting_flag:  # is_exporting() is also true wherever the compiler of torch 2.11 reads it
        return False
    if torch.compiler.is_dynamo_compiling():
        return True
    return "torch._dynamo" in sys.modules and torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


class Recording(TorchDispatchMode):
    """A dispatch mode that does not import the compiler; other modes do, at their first operation: three seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


#: Context in which no ``TorchFunctionMode`` sees any operation.
unwatched = torch._C.DisableTorchFunction


def place_of(x: Tensor) -> int:
    """The address of a tensor's storage, which all its views share; 0 if it has none."""
    return 0 if x._is_zerotensor() else x.untyped_storage().data_ptr()


def writing(op: Any, args: Any, kwargs: Any, out: Tensor) -> Callable[[], Any] | None:
    """``op(*args, **kwargs)`` as a call that writes to ``out``, and has done so once; None if there is no such call."""
    if op.overloadpacket.__name__ == "clone":
        return functools.partial(out.copy_, args[0])
    shape, strides = out.shape, out.stride()
    for run, where in _ways(op.overloadpacket):
        with contextlib.suppress(TypeError, RuntimeError, ValueError):
            call = functools.partial(run, *args, **kwargs, **{where: out})
            call()
            return call if (out.shape, out.stride()) == (shape, strides) else None
    return None


@functools.cache
def _ways(packet: Any) -> list[tuple[Any, str]]:
    """Functions that perform an operation and write to a given tensor, each with the name of that argument.

    The function of :mod:`torch` comes first: calling it takes half the time.
    """
    overloads = [getattr(packet, name) for name in packet.overloads()]
    outs = [(other, a.name) for other in overloads for a in other._schema.arguments if a.is_out]
    return [(getattr(torch, packet.__name__, None), "out"), *outs]


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

    A compiled ``func`` runs uncompiled: the compiler might otherwise never compile it for single states again.
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


def add_each(totals: Any, parts: Any) -> None:
    """``total += part`` for each pair, in one call."""
    torch._foreach_add_(totals, parts)


def copy_each(targets: Any, sources: Any) -> None:
    """``target.copy_(source)`` for each pair, in one call."""
    torch._foreach_copy_(targets, sources)


def with_parameters(func: Any, tensors: dict[str, Tensor], tie_weights: bool = False) -> Any:
    """Context in which the module ``func`` has these tensors in place of its parameters and buffers of the same names.

    With ``tie_weights`` they also replace the same tensors under other names. Each place is replaced once: PyTorch's
    own ``tie_weights`` would leave a substitute behind in a layer that is registered under two names.
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
    """The dictionaries of parameters and buffers of a module and its submodules, each with the submodule's path."""
    parts = func.named_modules() if isinstance(func, nn.Module) else ()
    return [(path, table) for path, part in parts for table in (part._parameters, part._buffers)]


def places(func: Any) -> dict[str, Tensor]:
    """All parameters and buffers of a module by path, each submodule visited once; empty for other functions."""
    held = ((path, key, x) for path, table in tables(func) for key, x in table.items() if x is not None)
    return {f"{path}.{key}" if path else key: x for path, key, x in held}


def is_compiled(func: Any) -> bool:
    """Whether a function or module was returned by ``torch.compile``, or a module was compiled in place."""
    made = any(hasattr(func, name) for name in ("_orig_mod", "_torchdynamo_orig_callable"))
    return made or getattr(func, "_compiled_call_impl", None) is not None


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Context in which compiled functions run uncompiled. Called under a dispatch mode or under vmap, they would
    otherwise be compiled for that, or never again.

    The stance of the compiler belongs to the whole process, so threads that are here at the same time share it: the
    last one to leave restores what the first one found.
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


def operations_of(call: Callable[..., Any], *given: Tensor) -> Any:
    """The operations of ``call`` on these tensors, as a graph; compiled functions are traced uncompiled."""
    from torch.fx.experimental.proxy_tensor import make_fx  # this import takes seconds

    config: Any = importlib.import_module("torch._dynamo.config")
    with uncompiled(), config.patch(error_on_nested_fx_trace=False):
        return make_fx(call, decomposition_table={})(*given)  # or newer versions of PyTorch lose detach()


def derivatives_are_watched() -> bool:
    """Whether forward mode, a transform of ``torch.func`` or ``torch.export`` sees every operation of this call."""
    elsewhere = bool(DUAL_THREAD) and threading.get_ident() not in DUAL_THREAD
    if (forward_ad._current_level >= 0 and not elsewhere) or torch._C._are_functorch_transforms_active():
        return True
    return torch.compiler.is_exporting()


def is_unknown(x: Tensor) -> bool:
    """Whether this tensor is a placeholder for an input of a program that is being exported."""
    return isinstance(x, FakeTensor)


def outside_of_programs() -> contextlib.AbstractContextManager[Any]:
    """Context in which operations are carried out during ``torch.export``, as constants of the exported program."""
    return _disable_current_modes()


def are_batched(grads: Tensor) -> bool:
    """Whether these are several gradients at once, as in ``torch.autograd.grad(..., is_grads_batched=True)``."""
    return _functorch.is_legacy_batchedtensor(grads) or derivatives_are_watched()


def is_constant(x: Tensor) -> bool:
    """Whether this tensor is constant for every transform: it has no gradient, no tangent and no axis of vmap."""
    if x.requires_grad or _functorch.is_functorch_wrapped_tensor(x):
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(x).tangent is None


def with_tangent(x: Tensor | None) -> Tensor | None:
    """In forward mode, give a tensor without tangent one of zeros: operations on operands without tangent are slow.

    Measured: the tangent of a network of two layers takes the time of 12 to 24 evaluations without zeros, 2.3 with.
    """
    if x is None or forward_ad._current_level < 0 or not x.is_floating_point():
        return x
    if forward_ad.unpack_dual(x).tangent is not None:
        return x
    return forward_ad.make_dual(x, torch.zeros_like(x))  # type: ignore[no-any-return]


def shared_memory_of(device: torch.device) -> int:
    """The most shared memory that a kernel may use, in bytes."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def multiprocessors_of(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 1 for any other device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def version_of(x: Tensor) -> int:
    """How often a tensor has been written to; 0 if it was made in inference mode, where versions are not counted."""
    return 0 if x.is_inference() else x._version


def value_of(x: Tensor) -> Tensor:
    """The values of a tensor, for inspection: detached, and for all samples of vmap."""
    if not torch._C._are_functorch_transforms_active():
        return x.detach()
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    with temporarily_clear_interpreter_stack():  # or detach() would be wrapped again
        return x.detach()


@contextlib.contextmanager
def hooks_at_rest(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Context in which the hooks of these tensors are not called, even if their gradients are requested."""
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
    """The number that autograd would give a node made now; nodes made earlier have smaller numbers."""
    node = z.view_as(z).grad_fn
    assert node is not None
    return int(node._sequence_nr())
