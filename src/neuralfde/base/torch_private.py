"""The private names of PyTorch that the package uses: a new version can break this file only.

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
from torch._functorch.pyfunctorch import (
    temporarily_clear_interpreter_stack,
    temporarily_pop_interpreter_stack,
    temporarily_restore_interpreter_stack,
)
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
    "derivatives_around",
    "forward_mode",
    "forward_mode_level",
    "has_hooks",
    "hooks_at_rest",
    "is_compiled",
    "is_constant",
    "is_followed",
    "is_mapped",
    "is_one_of_many",
    "is_unknown",
    "is_view",
    "layers",
    "make_dual",
    "mapped",
    "operations_of",
    "outside_of_programs",
    "outside_of_transforms",
    "place_of",
    "places",
    "pytree",
    "saved_tensors_are_hooked",
    "sequence_number",
    "tables",
    "transform_level",
    "transforms_are_active",
    "uncompiled",
    "unpack_dual",
    "unwatched",
    "value_of",
    "values_alone",
    "vectorised",
    "version_of",
    "versions_of",
    "vjp",
    "with_parameters",
    "with_tangent",
    "without_compiler",
    "without_tangent",
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

    @staticmethod
    def carry_out(op: Any, args: Any, kwargs: Any) -> Any:
        """Do this operation.

        Zeros of forward mode have no memory, and PyTorch crashes where a mode hands them on; they are given some.
        """
        if any(type(x) is Tensor and x._is_zerotensor() for x in args) and not (op.is_view or op._schema.is_mutable):
            args = pytree.tree_map_only(Tensor, lambda x: torch.zeros_like(x) if x._is_zerotensor() else x, args)
        return op(*args, **kwargs)


#: Context in which no ``TorchFunctionMode`` sees any operation.
unwatched = torch._C.DisableTorchFunction


def place_of(x: Tensor) -> int:
    """The address of a tensor's storage, which all its views share; 0 if it has none."""
    return 0 if x._is_zerotensor() else x.untyped_storage().data_ptr()


def writing(op: Any, args: Any, kwargs: Any, outs: list[Tensor]) -> Callable[[], Any] | None:
    """``op(*args, **kwargs)`` as a call that writes to ``outs``, and has done so once; None if there is none."""
    if op.overloadpacket.__name__ == "clone":
        return functools.partial(outs[0].copy_, args[0])
    before = [(out.shape, out.stride()) for out in outs]
    for run, names in _ways(op.overloadpacket):
        if len(names) == len(outs):
            with contextlib.suppress(TypeError, RuntimeError, ValueError):
                call = functools.partial(run, *args, **kwargs, **dict(zip(names, outs, strict=True)))
                call()
                return call if [(out.shape, out.stride()) for out in outs] == before else None
    return None


@functools.cache
def _ways(packet: Any) -> list[tuple[Any, list[str]]]:
    """Functions that perform an operation and write to given tensors, each with the names of these arguments.

    The function of :mod:`torch` comes first: calling it takes half the time.
    """
    overloads = [getattr(packet, name) for name in packet.overloads()]
    outs = [(other, [a.name for a in other._schema.arguments if a.is_out]) for other in overloads]
    return [(getattr(torch, packet.__name__, None), ["out"]), *outs]


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
    given = [(times, True), (states, True), *[(x, False) for x in args]]
    if "torch._dynamo" in sys.modules:
        with uncompiled():
            return mapped(func, given, times.shape[0])
    return mapped(func, given, times.shape[0])


def mapped(func: Callable[..., Any], given: Iterable[tuple[Any, bool]], count: int, randomness: str = "error") -> Any:
    """``func`` of tensors, those that say so mapped along their first axis, as :func:`torch.func.vmap` has it."""
    level = _functorch._vmap_increment_nesting(count, randomness)
    try:
        out = func(*[_functorch._add_batch_dim(x, 0, level) if along else x for x, along in given])
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


def transforms_are_active() -> bool:
    """Whether a transform of ``torch.func`` is active around this call."""
    return torch._C._are_functorch_transforms_active()


def derivatives_around() -> list[str]:
    """The transforms of ``torch.func`` around this call that take derivatives, from the outside in: grad or jvp."""
    names = {_functorch.TransformType.Grad: "grad", _functorch.TransformType.Jvp: "jvp"}
    return [names[x.key()] for x in _functorch.get_interpreter_stack() or () if x.key() in names]


def transform_level() -> int:
    """How many transforms of ``torch.func`` are active."""
    top = _functorch.peek_interpreter_stack()
    return 0 if top is None else int(top.level())


#: Context: within, no transform of ``torch.func`` is active, as it is where a custom Function runs in the end.
outside_of_transforms = temporarily_clear_interpreter_stack


@contextlib.contextmanager
def values_alone() -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Context without transforms of ``torch.func`` and without forward mode; yields one in which both are as before."""

    @contextlib.contextmanager
    def as_before() -> Iterator[None]:
        with temporarily_restore_interpreter_stack(stack), forward_mode(enabled):
            yield

    enabled = torch._C._is_fwd_grad_enabled()
    with temporarily_clear_interpreter_stack() as stack, forward_mode(False):
        yield as_before


def derivatives_are_watched() -> bool:
    """Whether forward mode, a transform of ``torch.func`` or ``torch.export`` sees every operation of this call."""
    elsewhere = bool(DUAL_THREAD) and threading.get_ident() not in DUAL_THREAD
    if (forward_mode_level() >= 0 and not elsewhere) or transforms_are_active():
        return True
    return torch.compiler.is_exporting()


def layers(x: Tensor) -> Iterator[Tensor]:
    """A tensor, and what it is to the transforms further out: each wraps the tensor of the next one."""
    yield x
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
        yield x


#: Whether the innermost transform that knows a tensor is vmap.
is_mapped = _functorch.is_batchedtensor
#: Whether this is one of several gradients taken at once by ``is_grads_batched=True``, without ``torch.func``.
is_one_of_many = _functorch.is_legacy_batchedtensor


def is_followed(x: Tensor) -> bool:
    """Whether any transform around this call has a gradient, a tangent or an axis of vmap of this very tensor."""
    if x.requires_grad or is_mapped(x) or without_tangent(x)[1] is not None:
        return True
    level = transform_level()
    if level == 0:
        return False
    inner = _functorch.get_unwrapped(x) if _functorch.maybe_get_level(x) == level else x
    with temporarily_pop_interpreter_stack():
        return is_followed(inner)


def forward_mode_level() -> int:
    """The level of the innermost forward mode; negative outside of any."""
    return forward_ad._current_level


#: Context: whether tangents are carried along within.
forward_mode = forward_ad._set_fwd_grad_enabled
#: Dual numbers and their parts without the checks of :mod:`torch.autograd.forward_ad`.
make_dual, unpack_dual = torch._make_dual, torch._unpack_dual


def without_tangent(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The value and the tangent of a tensor in the innermost forward mode, if that is where one is active."""
    if forward_mode_level() < 0:
        return x, None
    value, tangent = forward_ad.unpack_dual(x)
    return (x, None) if tangent is None else (value, tangent)


def is_unknown(x: Tensor) -> bool:
    """Whether this tensor is a placeholder for an input of a program that is being exported."""
    return isinstance(x, FakeTensor)


def outside_of_programs() -> contextlib.AbstractContextManager[Any]:
    """Context in which operations are carried out during ``torch.export``, as constants of the exported program."""
    return _disable_current_modes()


def are_batched(grads: Tensor) -> bool:
    """Whether these are several gradients at once, as in ``torch.autograd.grad(..., is_grads_batched=True)``."""
    return is_one_of_many(grads) or derivatives_are_watched()


def is_constant(x: Tensor) -> bool:
    """Whether this tensor is constant for every transform: it has no gradient, no tangent and no axis of vmap."""
    if x.requires_grad or _functorch.is_functorch_wrapped_tensor(x):
        return False
    return without_tangent(x)[1] is None


def with_tangent(x: Tensor | None) -> Tensor | None:
    """In forward mode, give a tensor without tangent one of zeros: operations on operands without tangent are slow.

    Measured: the tangent of a network of two layers takes the time of 12 to 24 evaluations without zeros, 2.3 with.
    """
    if x is None or forward_mode_level() < 0 or not x.is_floating_point() or without_tangent(x)[1] is not None:
        return x
    return forward_ad.make_dual(x, torch.zeros_like(x))  # type: ignore[no-any-return]


def shared_memory_of(device: torch.device) -> int:
    """The most shared memory that a kernel may use, in bytes."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def multiprocessors_of(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 1 for any other device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def saved_tensors_are_hooked() -> bool:
    """Whether what autograd saves goes through hooks here, as in ``torch.utils.checkpoint``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def is_view(x: Tensor) -> bool:
    """Whether a tensor is a view of another one."""
    return x._base is not None


def version_of(x: Tensor) -> int:
    """How often a tensor has been written to; 0 if it was made in inference mode, where versions are not counted."""
    return 0 if x.is_inference() else x._version


def versions_of(tensors: Iterable[Tensor | None]) -> list[int]:
    """How often each of these has been written to, also further out; none in inference mode, which does not count."""
    try:  # asking each whether it is of inference mode takes memory that is freed only after the pass
        return [y._version for x in tensors if x is not None for y in layers(x)]
    except RuntimeError:
        return []


def value_of(x: Tensor) -> Tensor:
    """The values of a tensor, for inspection: detached, and for all samples of vmap."""
    if not transforms_are_active():
        return x.detach()
    *_, innermost = layers(x)
    with outside_of_transforms():  # or detach() would be wrapped again
        return innermost.detach()


def has_hooks(module: nn.Module) -> bool:
    """Whether this module, one of its parts or all modules have hooks on their calls or on their gradients."""
    every = nn.modules.module
    return bool(
        every._global_forward_hooks or every._global_forward_pre_hooks
        or every._global_backward_hooks or every._global_backward_pre_hooks
    ) or any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        for m in module.modules()
    )  # fmt: skip


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
