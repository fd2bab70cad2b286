"""``func`` at the door: how it is given, and its first evaluation: what it returns, captures, changes and draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..base.caches import capturing
from ..base.checks import function
from ..base.structure import Structure, tensors_in
from ..base.torch_private import pytree, sequence_number, uncompiled, version_of
from ..errors import CapturedTensorError, InputError, InputTypeError, UnsupportedError
from .field import Field, describe
from .fingerprint import Watch
from .purity import DRAWS, GENERATORS, changed, held_by, marked


def refuse_surroundings(func: Callable[..., Any]) -> None:
    """Raise where the solver is run in a way that cannot work, naming the one that does."""
    if func is None or isinstance(func, Tensor):
        raise InputError("func is missing. Pass func(t, z, *args); None and a constant tensor go with linear=.")
    function("func", func, "func(t, z, *args)")
    if torch.jit.is_tracing():
        raise UnsupportedError("a solve is not for torch.jit: use torch.export, which takes solves with fixed steps.")
    if getattr(func, "_is_replica", False):
        raise UnsupportedError(
            "nn.DataParallel gives each device a replica whose tensors are no parameters, so that they would get no "
            "gradient. Use torch.nn.parallel.DistributedDataParallel, one process per device."
        )
    if any(kind.__name__ == "FSDPModule" for kind in type(func).__mro__):
        raise UnsupportedError(
            "fully_shard was applied to func itself, which would gather its parameters anew at every evaluation. "
            "Apply it to the FDEBlock, or to the module that calls fdeint: they are then gathered once a pass."
        )


def read_params(func: Callable[..., Any], params: Iterable[Tensor] | None) -> list[Tensor]:
    """The tensors that get gradients: those given, or the parameters of ``func``."""
    if params is None:
        params = func.parameters() if isinstance(func, nn.Module) else ()
    else:
        params = given_params(params)
    return list({id(p): p for p in params if p.requires_grad}.values())


def given_params(params: Any) -> list[Tensor]:
    """The tensors of ``params=``, which a generator gives only once."""
    single = isinstance(params, Tensor) or not isinstance(params, Iterable)
    found = [params] if single else list(params)
    for p in found:
        if single or not isinstance(p, Tensor):
            raise InputTypeError(
                f"params must be a collection of tensors, got {type(p).__name__}. Pass module.parameters(), or "
                "params=[tensor] for one."
            )
    return found


def read_args(args: Any, structure: Structure) -> tuple[Any, ...]:
    """What is passed on to ``func``."""
    if not isinstance(args, tuple | list):
        raise InputTypeError(f"args must be a tuple passed on to func, got {type(args).__name__}; write args=(value,).")
    for a in tensors_in(args):
        if a.device != structure.device and a.ndim > 0:
            raise InputTypeError(
                f"args contains a tensor on {a.device}, the state is on {structure.device}; move it there first."
            )
    return tuple(args)


def first_evaluation(
    field: Field, row: Tensor, known: Sequence[Tensor] | None, watch: bool = False, keep_graph: bool = False
) -> None:
    """Call ``func`` once at the door: check what it returns, what it captures and whether it draws random numbers.

    With gradients enabled the call is traced, so that a captured tensor is found before any work is done; not
    where all operations are followed anyway (``known`` is None).
    """
    if capturing() and field.func in DRAWS:
        raise UnsupportedError(
            "func draws random numbers (dropout?), which a captured solve would not repeat in its backward pass. "
            "Leave the solve out of the CUDA graph, or pass the noise through args=."
        )
    traced = torch.is_grad_enabled() and known is not None
    z = row.detach().view(field.shape)
    mark = sequence_number(z.requires_grad_()) if traced else 0
    start = field.times[0]
    kept, versions = marked(held_by(field.func)), _versions(field.args)
    with GENERATORS:
        before, own = field.noise.peek(), z.clone()
        out = _first(field, start, own, watch)
        field.noise.activate_if_drawn(before)
    held = held_by(field.func)
    after = marked(held)
    field.impure = changed(kept, after) or (None if versions == _versions(field.args) else "its arguments")
    field.overwrites = field.overwrites or version_of(own) > 0
    field.known_by = (tuple(after.items()), _described(field.args))
    field.evaluations += 1
    field.check(out)
    if traced and known is not None:
        field.known = [*known, *tensors_in(field.args)]
        mine = {id(x) for x in field.known}
        field.outside = [x for _, x in held if isinstance(x, Tensor) and x.requires_grad and id(x) not in mine]
        refuse_captured(tensors_in(out), [z, *field.known], mark)
    if field.noise.active:
        with contextlib.suppress(TypeError):  # a func that cannot be referred to weakly
            DRAWS.add(field.func)
    elif known is not None:
        slope = field.structure.pack(out).to(row.dtype).view(field.shape)
        field.first_slope, field.first_graph = slope.detach(), (z, slope) if traced and keep_graph else None


def refuse_state(field: Field, row: Tensor) -> None:
    """Raise if ``func`` keeps something from call to call that its values depend on: a stage calls it many times.

    A number or a buffer that is written to, as by a counter or batch normalisation, may be of no importance: a
    second call at the same point shows that.
    """
    changed = dict(held_by(field.func)).get(field.impure or "")
    harmless = isinstance(changed, int | float) or (isinstance(changed, Tensor) and not changed.requires_grad)
    if harmless and not field.noise.active:
        with torch.no_grad():
            again = _first(field, field.times[0], row.detach().clone(), False)
            field.evaluations += 1
            once = field.first_slope
            if once is not None and torch.equal(field.structure.pack(again).view(field.shape), once):
                return
    elif field.noise.active:
        return
    raise InputError(
        f"func changes {field.impure} when it is called, and an implicit method calls it as often as a stage takes: "
        "its result would depend on that number. Let func depend on (t, z, *args) alone, or use an explicit method."
    )


def _first(field: Field, start: Tensor, own: Tensor, watch: bool) -> Any:
    """The first call of ``func``; what it does is written down, where that is asked for."""
    with contextlib.ExitStack() as around:
        if watch:
            around.enter_context(uncompiled())
            watched = around.enter_context(Watch([own, field.times, *tensors_in(field.args)]))
        if field.autocast:
            around.enter_context(torch.autocast(**field.autocast))
        try:
            return field.func(start, field.structure.unpack(own.view(field.structure.row_shape)), *field.args)
        except Exception as error:
            error.add_note(_call(field))
            raise
        finally:
            if watch:
                field.trace, field.taken = tuple(watched.lines), watched.taken


def _call(field: Field) -> str:
    """How ``func`` is called, for a person whose ``func`` raised."""
    call = "func(t, z, *args)" if field.args else "func(t, z)"
    state = f"{describe(field.structure)}, {field.structure.dtype} on {field.structure.device}"
    own = next(field.func.parameters(), None) if isinstance(field.func, nn.Module) else None
    has = "" if own is None else f" Its parameters are {own.dtype} on {own.device}."
    return f"This was the first evaluation of func, as {call} with t a 0-d tensor and z {state}.{has}"


def _described(args: tuple[Any, ...]) -> Hashable:
    """What kind of arguments these are: tensors by shape, numbers and names themselves, other objects by identity."""
    if not args:
        return ()
    leaves, spec = pytree.tree_flatten(args)
    return repr(spec), tuple(map(_kind, leaves))


def _versions(args: tuple[Any, ...]) -> list[int]:
    """How often each tensor among the arguments has been written to."""
    return [version_of(x) for x in tensors_in(args)]


def _kind(x: Any) -> Hashable:
    if isinstance(x, Tensor):
        return (x.shape, x.dtype)
    return (type(x), x if x is None or isinstance(x, bool | int | float | str) else id(x))


def refuse_captured(outputs: Sequence[Tensor], known: Sequence[Tensor], mark: int = 0) -> None:
    """Walk the autograd graph of ``func``'s result; raise if it leads to a tensor outside ``known``.

    ``mark`` is the sequence number at which the trace began: an older node belongs to a tensor computed before.
    """
    allowed = {id(x) for x in known}
    for node, leaf in graph_nodes(outputs, known):
        if leaf is not None and id(leaf) not in allowed:
            raise captured_error(f"a leaf tensor of shape {tuple(leaf.shape)}")
        if leaf is None and node._sequence_nr() < mark:
            raise captured_error(f"a tensor computed earlier by {node.name()}")


def graph_nodes(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor | None]]:
    """The autograd nodes behind ``outputs``, down to those that made ``known``; with its tensor where one is a leaf."""
    pending: list[Any] = [x.grad_fn for x in outputs]
    seen = {None, *[x.grad_fn for x in known]}
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node, getattr(node, "variable", None)
            pending += [child for child, _ in node.next_functions]


def captured_error(what: str) -> CapturedTensorError:
    """The error for something that ``func`` uses and that would get no gradient."""
    return CapturedTensorError(
        f"func uses {what} that requires grad but is neither a parameter of func nor passed in: it would silently get "
        "no gradient. Pass it through args=(...) and take it as an argument of func, list it in params=[...], "
        "make func an nn.Module that owns it, or detach() it if no gradient is wanted."
    )
