"""What a function does to tensors, written down as operations that can be done again in the same memory.

Operations are seen below autograd and below all transforms: a mapped network is then a few products of many matrices, a
complex equation what it does to its state. Their results stay where they are, so that views of them stay right and are
not made again, and what depends on nothing that is given is a constant.

The operations are those of the function only if it would do the same with any other numbers. So all of them must be of
known kinds: results of fixed shape, no random numbers, nothing written to tensors from elsewhere, and no value of a
tensor that reaches Python.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..base.policy import TURNED_NUMBERS
from ..base.structure import tensors_in
from ..base.torch_private import Recording, layers, place_of, uncompiled, unwatched, writing

#: Operations whose result depends on the numbers of their tensors alone, and has one shape.
_KNOWN = frozenset([
    "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "abs", "acosh", "add",
    "addcdiv", "addcmul", "addmm", "amax", "amin", "argmax", "argmin", "asin", "asinh", "atan", "atan2", "atanh",
    "baddbmm", "bitwise_and", "bitwise_not", "bitwise_or", "bmm", "cat", "ceil", "celu", "clamp", "clamp_max",
    "clamp_min", "clone", "constant_pad_nd", "cos", "cosh", "cumsum", "digamma", "div", "dot", "elu", "elu_backward",
    "eq", "erf", "erfc", "exp", "exp2", "expm1", "flip", "floor", "fmod", "gather", "ge", "gelu", "gelu_backward", "gt",
    "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward",
    "heaviside", "index", "index_select", "le", "leaky_relu", "leaky_relu_backward", "lerp", "lgamma",
    "linalg_vector_norm", "log", "log1p", "log2", "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "masked_fill", "max", "maximum", "mean", "min",
    "minimum", "mish", "mish_backward", "mm", "mul", "mv", "native_group_norm", "native_group_norm_backward",
    "native_layer_norm", "native_layer_norm_backward", "ne", "neg", "pow", "prod", "reciprocal", "relu", "remainder",
    "roll", "round", "rsqrt", "rsub", "select_backward", "sgn", "sigmoid", "sigmoid_backward", "sign", "silu",
    "silu_backward", "sin", "sinc", "sinh", "slice_backward", "softplus", "softplus_backward", "sqrt", "stack", "sub",
    "sum", "tan", "tanh", "tanh_backward", "threshold_backward", "tril", "triu", "var", "where",
])  # fmt: skip
#: Those that give a tensor another shape, and views that do not say so.
_SHAPES = frozenset(["_unsafe_view", "squeeze_", "unsqueeze_", "transpose_", "t_"])
#: Those that look at shapes alone.
_LIKE = frozenset([
    "_has_same_storage_numel", "_new_zeros_with_same_feature_meta", "empty_like", "full_like", "is_same_size",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like",
])  # fmt: skip
#: Those that write to a part of what was made before, as assignments do.
_WRITING = frozenset(["copy_", "fill_", "zero_"])
#: What Python may ask a tensor for, or do with it: nothing of its numbers.
_ASKED = frozenset([
    "__get__", "__len__", "__set__", "broadcast_to", "dim", "expand_as", "grad", "is_complex", "is_contiguous",
    "is_floating_point", "ndimension", "numel", "requires_grad_", "reshape_as", "size", "stride", "sum_to_size", "to",
    "type_as", "view_as",
])  # fmt: skip
#: Indices of these types say which numbers there are.
_MASKS = (torch.bool, torch.uint8)


def _name(op: Any) -> str:
    return str(op.overloadpacket.__name__)


@functools.cache
def _kind(op: Any) -> str:
    """What an operation does: a view, another shape for a tensor, new numbers in it, one like another, a result."""
    name = _name(op)
    if op.namespace != "aten" or torch.Tag.nondeterministic_seeded in op.tags:
        return "unknown"
    if name in _SHAPES:
        return "reshaped"
    if op._schema.is_mutable:  # its first tensor, as the name says, or one that was handed in as out=
        return "in place" if name in _WRITING or (name.endswith("_") and name.rstrip("_") in _KNOWN) else "unknown"
    if op.is_view:
        return "view"
    return "new" if name in _LIKE else "result"


class Call(NamedTuple):
    """One operation: how it is done again, the memory that it reads and writes, and what it was given."""

    run: Callable[[], Any]
    reads: set[int]
    writes: set[int]
    name: str
    args: Any


class Recorder(Recording):
    """Writes down what is done to ``given`` tensors and to what is made of them, all known by their memory.

    Args:
        given: these tensors.
        limit: how many bytes results may take.

    Attributes:
        calls: the operations.
        made: the memory that they write, with a tensor there.
        refused: an operation that cannot be repeated.
        touched: the memory that operations, views too, have been given.
    """

    def __init__(self, given: tuple[Tensor, ...], limit: int) -> None:
        super().__init__()
        self.given, self.made, self._limit = {place_of(x) for x in given}, dict[int, Tensor](), limit
        self.calls: list[Call] = []
        self.refused: str | None = None
        self.touched: set[int] = set()
        self._new: dict[int, Tensor] = {}  # made here, like another, and not written to yet
        self._bytes = 0
        self._alive: list[Any] = []  # or the memory of one would be given to another

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchDispatchMode`."""
        with unwatched():
            return self._take(op, args, kwargs or {})

    def _take(self, op: Any, args: Any, kwargs: Any) -> Any:
        kind, given = _kind(op), tensors_in([*args, *kwargs.values()])
        reads = {place_of(x) for x in given}
        self.touched |= reads
        if kind == "view":
            out = op(*args, **kwargs)
            if not set(map(place_of, tensors_in(out))) <= reads:  # it has made a copy instead
                self.refused = str(op)
            return out
        held = _apart(args), {key: _apart(x) for key, x in kwargs.items()}
        out = self.carry_out(op, args, kwargs)
        self._alive.append((held, out))
        if kind == "unknown" or (kind == "reshaped" and not reads.isdisjoint(self.given)):
            self.refused = str(op)
        elif kind == "in place":
            self._in_place(op, held, reads, place_of(given[0]))
        elif kind == "new" and isinstance(out, Tensor):
            place, self._new[place_of(out)] = place_of(out), out.detach()
            self.calls.append(Call(partial(out.detach().copy_, out.clone()), set(), {place}, "new", ()))
        elif kind == "result" and any(map(self.moves, reads)):
            self._write(op, held, reads, out)
        return out

    def _write(self, op: Any, held: Any, reads: set[int], out: Any) -> None:
        """One more operation, whose results are written where they are now."""
        args, kwargs = held
        if _name(op) == "bmm" and not self.moves(place_of(args[1])):
            args = (args[0], _turned(args[0], args[1], out))
        outs = [x.detach() for x in tensors_in(out)]
        places = set(map(place_of, outs))
        fixed = _name(op) in _KNOWN and not (
            _name(op) == "index" and any(x.dtype in _MASKS for x in tensors_in(args[1]))
        )
        call = writing(op, args, kwargs, outs) if fixed and outs and places.isdisjoint(reads) else None
        if call is None:
            self.refused = str(op)
            return
        self.calls.append(Call(call, reads, places, _name(op), args))
        self.made |= zip(map(place_of, outs), outs, strict=True)
        self._bytes += sum(x.nbytes for x in outs)
        if self._bytes > self._limit:
            self.refused = f"results of more than {self._limit >> 10} KiB"

    def _in_place(self, op: Any, held: Any, reads: set[int], target: int) -> None:
        """One more operation, which changes what is made anew each time."""
        if target in self._new:  # from now on it has to be made anew
            self.made[target] = self._new.pop(target)
        if target in self.made:
            self.calls.append(Call(partial(op, *held[0], **held[1]), reads, {target}, _name(op), held[0]))
        else:
            self.refused = str(op)

    def moves(self, place: int) -> bool:
        """Whether what is in this memory differs from step to step."""
        return place in self.given or place in self.made

    def needed(self, results: Iterable[Tensor]) -> list[Call]:
        """The operations that these results depend on."""
        places, calls = set(map(place_of, results)), []
        for call in reversed(self.calls):
            if not places.isdisjoint(call.writes) and call.writes.isdisjoint(self._new):
                places |= call.reads
                calls.append(call)
        return calls[::-1]


class _Watch(TorchFunctionMode):
    """Tells a recorder where numbers of tensors may go ways that no list of operations knows of.

    That is where anything but tensors is made of tensors, or where a tensor that differs from step to step is given to
    a function but to none of its operations: ``torch.tensor([t, 1.0])`` has the number and not the tensor.
    """

    def __init__(self, seen: Recorder) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchFunctionMode`."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        given = set() if name in _ASKED else _places([*args, *kwargs.values()])
        self.seen.touched = set()
        out = func(*args, **kwargs)
        if given:
            made, moving = _places(out), set(filter(self.seen.moves, given))
            if (out is not None and not made) or not moving <= self.seen.touched | made:
                self.seen.refused = name
        return out


def _places(tree: Any) -> set[int]:
    """The memory of all tensors of a structure, inside of any transform."""
    return {place_of(list(layers(x))[-1]) for x in tensors_in(tree)}


def _turned(a: Tensor, b: Tensor, out: Any) -> Tensor:
    """Matrices ``b`` that are the same in every step, by columns, if single rows times them are the same to the bit."""
    if a.shape[1] > 1 or b.shape[1:].numel() > TURNED_NUMBERS or b.stride()[1] == 1:
        return b
    turned = b.transpose(1, 2).contiguous().transpose(1, 2)
    return turned if torch.equal(torch.bmm(a, turned), out) else b


def _apart(x: Any) -> Any:
    """The same tensors as other objects, which keep the shapes that they have now."""
    if isinstance(x, Tensor):
        return x.detach()
    return type(x)(map(_apart, x)) if isinstance(x, list | tuple) else x


@contextlib.contextmanager
def recording(own: tuple[Tensor, ...], limit: int) -> Iterator[Recorder]:
    """Context in which everything that is done to these tensors is written down, with results of so many bytes."""
    seen = Recorder(own, limit)
    with uncompiled(), _Watch(seen), seen:
        yield seen


def copies(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies in memory of their own."""
    return tuple(x.clone(memory_format=torch.contiguous_format) for x in given)
