"""``func`` as a list of operations that are repeated in the same memory: a step of a small state costs its calls.

At its first evaluation in a pass every operation that PyTorch carries out for it is written down, below autograd and
below all transforms: a mapped network is then a few products of many matrices, a complex equation what it does to its
state. The results stay where they are, so that views of them stay right and are not made again, and what sees neither
state nor time is a constant of the pass. The operations that remain write their results over the ones before.

That is the same function only if it would do the same at any other time and state. So all operations are of a few known
kinds: results of one shape, no random numbers, nothing written to what is not made here, and none that tells Python
what is in a tensor. Whoever asks for a list has seen to it that ``func`` changes nothing. The second evaluation is done
in both ways and has to agree to the last bit; else, and wherever an operation is not known, ``func`` is called as ever.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..base.policy import REPEATED_BYTES
from ..base.structure import tensors_in
from ..base.torch_private import Recording, place_of, uncompiled, unwatched, vjp, writing
from .field import Field

_log = logging.getLogger("neuralfde")

#: Operations whose result depends on the numbers of their tensors alone, and has one shape.
_KNOWN = frozenset([
    "_softmax", "abs", "add", "addcdiv", "addcmul", "addmm", "asin", "atan", "baddbmm", "bmm", "cat", "clamp",
    "clamp_max", "clamp_min", "clone", "cos", "cosh", "div", "elu", "eq", "erf", "exp", "expm1", "ge", "gelu",
    "gelu_backward", "gt", "le", "leaky_relu", "log", "log1p", "lt", "maximum", "mean", "minimum", "mm", "mul", "ne",
    "neg", "pow", "reciprocal", "relu", "rsqrt", "sigmoid", "sigmoid_backward", "silu", "silu_backward", "sin", "sinh",
    "softplus", "softplus_backward", "sqrt", "stack", "sub", "sum", "tan", "tanh", "tanh_backward",
    "threshold_backward", "where",
])  # fmt: skip
#: Those that give a tensor another shape, and views that do not say so.
_SHAPES = frozenset(["_unsafe_view", "squeeze_", "unsqueeze_", "transpose_", "t_"])
#: Those that look at shapes alone.
_LIKE = frozenset([
    "_has_same_storage_numel", "full_like", "is_same_size", "new_full", "new_ones", "new_zeros", "ones_like",
    "zeros_like",
])  # fmt: skip
#: What Python may ask a tensor for: nothing of its numbers.
_ASKED = frozenset([
    "__get__", "__len__", "dim", "is_complex", "is_contiguous", "is_floating_point", "ndimension", "numel", "size",
    "stride",
])  # fmt: skip


def _name(op: Any) -> str:
    return str(op.overloadpacket.__name__)


@functools.cache
def _kind(op: Any) -> str:
    """What an operation does to its tensors: nothing, another shape for one of them, new numbers in it, or a result."""
    name = _name(op)
    if op.namespace != "aten" or torch.Tag.nondeterministic_seeded in op.tags or name.startswith("empty"):
        return "unknown"
    if name in _SHAPES:
        return "reshaped"
    if op._schema.is_mutable:  # its first tensor, as the name says, or one that was handed in as out=
        return "in place" if name.endswith("_") and name.rstrip("_") in _KNOWN else "unknown"
    return "nothing" if op.is_view or name in _LIKE else "result"


class _Watch(TorchFunctionMode):
    """Whether anything but tensors is made of tensors: numbers that no list of operations would know of."""

    leaks: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchFunctionMode`."""
        out, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if name not in _ASKED and not tensors_in(out) and tensors_in([*args, *(kwargs or {}).values()]):
            self.leaks = name
        return out


class _Recorder(Recording):
    """Writes down what is done to ``given`` tensors and to what is made of them, all known by their memory."""

    def __init__(self, given: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.given, self.made = {place_of(x) for x in given}, set[int]()
        self.calls: list[tuple[Callable[[], Any], set[int], int]] = []  # with the memory that each reads and writes
        self.refused: str | None = None
        self.bytes = 0
        self._alive: list[Any] = []  # or the memory of one would be given to another

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchDispatchMode`."""
        with unwatched():
            return self._take(op, args, kwargs or {})

    def _take(self, op: Any, args: Any, kwargs: Any) -> Any:
        kind, given = _kind(op), tensors_in([*args, *kwargs.values()])
        reads = {place_of(x) for x in given}
        held = _apart(args), {key: _apart(x) for key, x in kwargs.items()}
        out = op(*args, **kwargs)
        self._alive.append((held, out))
        if kind == "unknown" or (kind == "reshaped" and not reads.isdisjoint(self.given)):
            self.refused = str(op)
        elif kind == "in place":
            self._in_place(op, held, reads, place_of(given[0]))
        elif kind == "result" and not (reads.isdisjoint(self.given) and reads.isdisjoint(self.made)):
            self._write(op, held, reads, out)
        return out

    def _write(self, op: Any, held: Any, reads: set[int], out: Any) -> None:
        """One more operation, whose result is written where it is now."""
        args, kwargs = held
        call = writing(op, args, kwargs, out.detach()) if isinstance(out, Tensor) and _name(op) in _KNOWN else None
        if call is None or place_of(out) in reads:
            self.refused = str(op)
            return
        self.calls.append((call, reads, place_of(out)))
        self.made.add(place_of(out))
        self.bytes += out.nbytes

    def _in_place(self, op: Any, held: Any, reads: set[int], target: int) -> None:
        """One more operation, which changes what another one writes anew each time."""
        if target in self.made:
            self.calls.append((partial(op, *held[0], **held[1]), reads, target))
        else:
            self.refused = str(op)

    def needed(self, result: Tensor) -> tuple[list[Callable[[], Any]], set[int]]:
        """The calls that a result depends on, and the memory that they read."""
        places, calls = {place_of(result)}, []
        for call, reads, writes in reversed(self.calls):
            if writes in places:
                places |= reads
                calls.append(call)
        return calls[::-1], places


def _apart(x: Any) -> Any:
    """The same tensors as other objects, which keep the shapes that they have now."""
    if isinstance(x, Tensor):
        return x.detach()
    return type(x)(map(_apart, x)) if isinstance(x, list | tuple) else x


class Program:
    """A function of tensors, from its third call on without the function, where that can be done.

    Args:
        function: one whose calls change nothing and draw no random numbers.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self._take = self._first
        self._calls: list[Callable[[], Any]] = []
        self._inputs: list[tuple[int, Tensor]] = []

    def __call__(self, *given: Tensor) -> Tensor:
        """The function of these tensors."""
        return self._take(*given)

    @property
    def repeats(self) -> bool:
        """Whether it is, or will be, done without the function."""
        return self._take != self.function

    def _first(self, *given: Tensor) -> Tensor:
        """Call the function and write down what it does."""
        self._take = self.function
        own = tuple(x.clone(memory_format=torch.contiguous_format) for x in given)
        watch, seen = _Watch(), _Recorder(own)
        with uncompiled(), watch, seen:
            result = self.function(*own)
        why = seen.refused or watch.leaks or ("memory" if seen.bytes > REPEATED_BYTES else None)
        if why is not None:
            _log.debug("func is called at every step, since its operations cannot be repeated: %s", why)
            return result
        self._calls, places = seen.needed(result)
        self._inputs = [(k, x) for k, x in enumerate(own) if place_of(x) in places]
        self._result, self._seen, self._take = result.detach(), seen, self._second
        return self._result.clone()

    def _second(self, *given: Tensor) -> Tensor:
        """Call the function, and see whether the list says the same."""
        result = self.function(*given)
        same = torch.equal(result, self._again(*given))
        self._take = self._again if same else self.function
        return result

    def _again(self, *given: Tensor) -> Tensor:
        for k, own in self._inputs:
            own.copy_(given[k])
        for call in self._calls:
            call()
        return self._result.clone()


class Repeated:
    """A right-hand side for one pass, as a program."""

    def __init__(self, field: Field) -> None:
        self.field, self.program = field, Program(lambda t, row: field.when(t, row, field.args))

    def __call__(self, n: int, row: Tensor) -> Tensor:
        """See :class:`Field`."""
        self.field.evaluations += 1
        return self.program(self.field.time(n), row)


def repeated(field: Field) -> Field | Repeated:
    """A right-hand side for one pass: one that repeats the operations of ``field``, or ``field`` where it cannot be."""
    return Repeated(field) if _can_be(field) else field


def pulling(field: Field) -> Program | None:
    """The product of a slope's transposed Jacobian as a function of time, row and vector, where it can be repeated."""

    def pulled(t: Tensor, row: Tensor, by: Tensor) -> Tensor:
        with torch.enable_grad():
            x = row.detach().requires_grad_()
            v = field.when(t, x, field.args)
            (found,) = vjp((v,), (by,), (x,)) if v.requires_grad else (None,)
        return torch.zeros_like(row) if found is None else found

    return Program(pulled) if _can_be(field) else None


def _can_be(field: Field) -> bool:
    """Whether operations may be repeated: nothing is known that speaks against it, and it would pay."""
    same = field.impure is None and not (field.hooked or field.overwrites or field.noise.active or field.autocast)
    small = field.structure.device.type == "cpu" and math.prod(field.shape) > 0
    return field.repeatable and same and small
