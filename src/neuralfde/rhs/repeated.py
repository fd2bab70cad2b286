"""``func`` as a list of operations that are repeated in the same memory: a step of a small state costs its calls.

At its first evaluation in a pass every operation that PyTorch carries out for it is written down, below autograd and
below all transforms: a mapped network is then a few products of many matrices, a complex equation what it does to its
state. The results stay where they are, so that views of them stay right and are not made again, and what sees neither
state nor time is a constant of the pass. The operations that remain write their results over the ones before.

That is the same function only if it would do the same at any other time and state. So all operations are of a few known
kinds: results of one shape, no random numbers, nothing written in place, and none that tells Python what is in a
tensor. Whoever asks for a list has seen to it that ``func`` changes nothing. The second evaluation is done in
both ways and has to agree to the last bit; else, and wherever an operation is not known, ``func`` is called as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..base.policy import REPEATED_BYTES
from ..base.structure import tensors_in
from ..base.torch_private import Recording, place_of, pytree, uncompiled, unwatched, writing
from .field import Field

_log = logging.getLogger("neuralfde")

#: Operations whose result depends on the numbers of their tensors alone, and has one shape.
_KNOWN = frozenset(
    """abs add addcdiv addcmul addmm asin atan baddbmm bmm cat clamp clamp_max clamp_min clone cos cosh div elu erf exp
    expm1 gelu gelu_backward leaky_relu log log1p maximum mean minimum mm mul neg pow reciprocal relu rsqrt sigmoid
    sigmoid_backward silu silu_backward sin sinh softplus softplus_backward sqrt stack sub sum tan tanh tanh_backward
    threshold_backward where _softmax""".split()
)
#: Those that give a tensor another shape, and views that do not say so.
_SHAPES = frozenset(["_unsafe_view", "squeeze_", "unsqueeze_", "transpose_", "t_"])
#: Those that look at shapes alone, and those that leave their memory to others.
_LIKE, _EMPTY = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "_has_same_storage_numel", "is_same_size"]), "empty"
#: What Python may ask a tensor for: nothing of its numbers.
_ASKED = frozenset("__get__ __len__ dim is_complex is_contiguous is_floating_point numel ndimension size stride".split())


class _Watch(TorchFunctionMode):
    """Whether anything but tensors is made of tensors: numbers that no list of operations would know of."""

    leaks: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchFunctionMode`."""
        out, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if name not in _ASKED and not tensors_in([out]) and tensors_in([args, kwargs]):
            self.leaks = name
        return out


class _Recorder(Recording):
    """Writes down what is done to tensors that ``move``, which are known by their memory."""

    def __init__(self, *moving: Tensor) -> None:
        super().__init__()
        self.moves, self.given = {place_of(x) for x in moving}, {place_of(x) for x in moving}
        self.calls: list[tuple[Callable[..., Any], Any, Any]] = []
        self.used: set[int] = set()
        self.refused: str | None = None
        self.bytes = 0
        self._alive: list[Any] = []  # or the memory of one would be given to another

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`TorchDispatchMode`."""
        with unwatched():
            return self._take(op, args, kwargs or {})

    def _take(self, op: Any, args: Any, kwargs: Any) -> Any:
        given, name = tensors_in([args, kwargs]), op.overloadpacket.__name__
        before = {place_of(x) for x in given}
        held = pytree.tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))  # as they are now
        out = op(*args, **kwargs)
        self._alive.append((held, out))
        made = tensors_in([out])
        moving = not before.isdisjoint(self.moves)
        if torch.Tag.nondeterministic_seeded in op.tags or name.startswith(_EMPTY):
            self.refused = name
        elif op._schema.is_mutable and not (name in _SHAPES and before.isdisjoint(self.given)):
            self.refused = name
        elif moving and name not in _LIKE and not (op.is_view or name in _SHAPES):
            self._write(op, name, held, made)
            self.used |= before & self.given
        return out

    def _write(self, op: Any, name: str, held: Any, made: list[Tensor]) -> None:
        """One more operation, whose result is written where it is now."""
        run = writing(op, *held, made[0].detach()) if name in _KNOWN and len(made) == 1 else None
        if run is None:
            self.refused = name
            return
        self.calls.append(run)
        self.moves.add(place_of(made[0]))
        self.bytes += made[0].nbytes


class Repeated:
    """A right-hand side for one pass; from the third evaluation on without ``func``, where that can be done.

    Args:
        field: the right-hand side, whose ``func`` changes nothing when it is called and draws no random numbers.
    """

    def __init__(self, field: Field) -> None:
        self.field, self.tried, self.ready = field, False, False
        self.calls: list[Any] = []
        self.time: Tensor | None = None

    def __call__(self, n: int, row: Tensor) -> Tensor:
        """See :class:`Field`."""
        if not self.tried:
            return self._first(n, row)
        if not self.calls:
            return self.field(n, row)
        if not self.ready:
            return self._second(n, row)
        self.field.evaluations += 1
        return self._again(n, row)

    def _again(self, n: int, row: Tensor) -> Tensor:
        self.row.copy_(row)
        if self.time is not None:
            self.time.copy_(self.field.time(n))
        for run, args, kwargs in self.calls:
            run(*args, **kwargs)
        return self.slope.clone()

    def _first(self, n: int, row: Tensor) -> Tensor:
        """Evaluate ``func`` and write down what it does."""
        self.tried = True
        self.row, time = row.clone(memory_format=torch.contiguous_format), self.field.time(n).clone()
        watch, seen = _Watch(), _Recorder(self.row, time)
        with uncompiled(), watch, seen:
            self.slope = self.field.slope(time, self.row)
        self.field.evaluations += 1
        why = seen.refused or watch.leaks or ("memory" if seen.bytes > REPEATED_BYTES else None)
        if why is not None:
            _log.debug("func is called at every step, since its operations are not repeated: %s", why)
            return self.slope
        self.calls, self.alive = seen.calls, seen
        if place_of(time) in seen.used:
            self.time = time
        return self.slope.clone()

    def _second(self, n: int, row: Tensor) -> Tensor:
        """Evaluate ``func``, and see whether the list says the same."""
        found = self.field(n, row)
        self.ready = torch.equal(found, self._again(n, row))
        if not self.ready:
            self.calls = []
            _log.debug("func is called at every step, since its operations do not give the same again")
        return found
