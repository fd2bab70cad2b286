"""The right-hand side as the solver sees it: rows in, rows out, the same noise and precision in every evaluation.

In a backward pass, however late, ``func`` is what it was when ``fdeint`` was called, or an error is raised.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..base.caches import Verdict, Verdicts, capturing
from ..base.policy import INSTANTS
from ..base.structure import Structure
from ..base.torch_private import (
    has_hooks,
    hooks_at_rest,
    places,
    pytree,
    value_of,
    vectorised,
    version_of,
    with_parameters,
)
from ..errors import ChangedFunctionError, InputError, InputTypeError

#: The random generators belong to the whole process, so only one solve at a time may set them. The lock is reentrant
#: because ``func`` may contain a solve.
GENERATORS = threading.RLock()
_WANTED: ContextVar[bool] = ContextVar("value_wanted", default=True)


def value_wanted() -> bool:
    """Whether the value of ``func`` will be used; False in the backward pass, where only its graph is.

    A function whose derivative does not need its value, such as a linear one, may then return ``unvalued(z)``.
    """
    return _WANTED.get()


def unvalued(like: Tensor) -> Tensor:
    """A placeholder for a value that is not used: shape, dtype and device of ``like``, without its memory."""
    return like.new_zeros(()).expand(like.shape)


@contextlib.contextmanager
def derivative_only(only: bool = True) -> Iterator[None]:
    """Context in which, if ``only``, :func:`value_wanted` is False."""
    before = _WANTED.set(not only)
    try:
        yield
    finally:
        _WANTED.reset(before)


class Noise:
    """The random numbers of a step as a function of (seed, step); inactive unless ``func`` draws random numbers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.active = False
        self.seed = 0
        self._after_first: list[Tensor] = []

    def peek(self) -> list[Tensor]:
        """The states of the generators that ``func`` can draw from."""
        states = [torch.get_rng_state()]
        if self.device.type == "cuda" and not capturing():
            states.append(torch.cuda.get_rng_state(self.device))
        return states

    def activate_if_drawn(self, before: list[Tensor]) -> None:
        """If ``func`` has drawn numbers since ``before``, draw a seed for this solve from the caller's generator."""
        self._after_first = self.peek()
        if all(map(torch.equal, before, self._after_first)):
            return
        self.active = True
        self.seed = int(value_of(torch.randint(2**62, (1,))).flatten()[0])

    def drawn_since_first(self) -> bool:
        """Whether ``func`` has drawn numbers, but not in its first evaluation; False if another thread may have."""
        if self.active or threading.active_count() > 1:
            return False
        return not all(map(torch.equal, self._after_first, self.peek()))

    @contextlib.contextmanager
    def of_step(self, n: int) -> Iterator[None]:
        """Context in which the generators give the noise of step ``n``; afterwards they are restored."""
        with GENERATORS:
            before = self.peek()
            torch.manual_seed((self.seed + n) % 2**63)
            try:
                yield
            finally:
                torch.set_rng_state(before[0])
                if len(before) > 1:
                    torch.cuda.set_rng_state(before[1], self.device)


class Field:
    """``v = f(t_n, z)`` on rows of the shape :attr:`shape`.

    Every evaluation uses the autocast settings of the moment when ``fdeint`` was called. The noise of step ``n`` is a
    function of a seed and ``n`` alone, so that dropout uses one mask for all evaluations of a step, in the forward pass
    and in the vector-Jacobian product.

    Attributes:
        shape: the shape of a row in :meth:`__call__`: that of the state if it is one tensor with one order, so that
            nothing needs to be converted; otherwise (groups, width).
        impure: the name of something that a call of ``func`` changes, or None.
        hooked: whether modules that ``func`` calls have hooks, or ``func`` puts hooks on tensors.
        scripted: whether TorchScript runs a part of ``func``, where Python sees nothing of what is done.
        work: how much an evaluation computes, in bytes; None if that was not measured.
        known: the tensors that ``func`` may depend on and that get gradients.
        outside: further tensors that require grad and that ``func`` can reach; depending on them is an error.
    """

    def __init__(self, func: Callable[..., Any], structure: Structure, times: Tensor, args: tuple[Any, ...]) -> None:
        self.func, self._over_times = func, getattr(func, "over_times", None)
        self.structure = structure
        self.times = times
        self.args = args
        self.evaluations = 0
        self.trace: tuple[Hashable, ...] | None = None  # the operations of the first evaluation, if recorded
        self.taken: list[Tensor] = []  # the tensors that it used besides its arguments, if recorded
        self.first_slope: Tensor | None = None  # f(t_0, z_0) from the first evaluation, if it can be reused
        self.first_graph: tuple[Tensor, Tensor] | None = None  # z_0 and f(t_0, z_0) with its graph, likewise
        self.impure: str | None = None
        self.work: float | None = None
        self.hooked = isinstance(func, nn.Module) and has_hooks(func)
        self.scripted = False
        self.known: list[Tensor] = []
        self.outside: list[Tensor] = []
        self.overwrites = torch.is_inference_mode_enabled()  # whether func may write to z, which is not detected there
        self.known_by: Hashable = None  # identifies everything that func can reach, and its arguments
        self.noise = Noise(structure.device)
        self.autocast = _autocast_state(structure.device.type)
        self.as_it_is = structure.bare and structure.spans is None
        self.shape = structure.shapes[0] if self.as_it_is else torch.Size(structure.row_shape)
        self._plain = self.as_it_is and self.autocast is None
        self._dtype, self._device = structure.dtype, structure.device
        self._instants: dict[int, Tensor] = {}  # the times of some grid points, as 0-d tensors
        self._latest = -2  # the last grid point whose time was needed

    def __call__(self, n: int, row: Tensor) -> Tensor:
        """Evaluate at grid point ``n``; differentiable in ``row`` and in whatever ``func`` depends on."""
        self.evaluations += 1
        t = self._instants.get(n)
        if t is None:
            t = self._instant(n)
        if self.noise.active:
            with self.noise.of_step(n):
                return self._unharmed(self.slope, t, row)
        if not self._plain:
            return self._unharmed(self.slope, t, row)
        if self.overwrites:
            return self.slope(t, row.clone())
        version = row._version  # _unharmed and slope, written out: this runs in every step
        v = self.func(t, row, *self.args)
        if row._version != version:
            self._refuse_overwriting()
        if type(v) is not Tensor or v.shape != self.shape or v.dtype != self._dtype or v.device != self._device:
            self.check(v)
        return v  # type: ignore[no-any-return]

    def initial(self, n: int, row: Tensor) -> Tensor:
        """The slope at the initial row; the first evaluation has usually computed it."""
        if self.first_slope is None:
            return self(n, row)
        v, self.first_slope = self.first_slope, None  # not needed again: saves a row until the backward pass ends
        return v

    def _instant(self, n: int) -> Tensor:
        """The time of a grid point; for consecutive points many are made at once, which takes half the time."""
        near, self._latest = abs(n - self._latest) == 1, n
        if near:
            first = n - n % INSTANTS
            self._instants = dict(enumerate(self.times[first : first + INSTANTS].unbind(0), first))
        return self._instants[n] if near else self.times[n]

    @property
    def verdict(self) -> Verdict:
        """What earlier solves have observed of ``func``, for this kind of state and all that it can reach now."""
        func = getattr(self.func, "only_converts", self.func)
        return Verdicts.of(func, (type(self.func), self.structure, self.shape, self.known_by))

    def time(self, n: int) -> Tensor:
        """The time of grid point ``n``."""
        t = self._instants.get(n)
        return self._instant(n) if t is None else t

    def when(self, t: Tensor, row: Tensor, args: tuple[Any, ...]) -> Tensor:
        """Evaluate at any time with these arguments, without noise and uncounted: for the march that finds a mesh."""
        return self._unharmed(partial(self.slope, args=args), t, row)

    def slope(self, t: Tensor, row: Tensor, args: tuple[Any, ...] | None = None) -> Tensor:
        """The slope of a row at a time; ``args`` replaces the arguments."""
        args = self.args if args is None else args
        if not self._plain:
            return self._convert(self.func, t, row, args)
        v = self.func(t, row, *args)
        if type(v) is not Tensor or v.shape != row.shape or v.dtype != row.dtype or v.device != row.device:
            self.check(v)
        return v  # type: ignore[no-any-return]

    def batch(self, times: Tensor, rows: Tensor) -> Tensor:
        """The slopes of rows (steps, …) at times (steps,), vectorised over the steps."""
        self.evaluations += times.shape[0]
        return self._unharmed(self._slopes, times, rows)

    def _slopes(self, times: Tensor, rows: Tensor) -> Tensor:
        if not self._plain:
            return vectorised(lambda t, row: self._convert(self.func, t, row, self.args), times, rows)  # type: ignore[no-any-return]
        if self._over_times is not None:
            slopes: Tensor = self._over_times(times, rows, *self.args)
        else:
            slopes = vectorised(self.func, times, rows, *self.args)
        if slopes.shape != rows.shape or slopes.dtype != rows.dtype:
            self.check(slopes[0])
        return slopes

    def _unharmed(self, call: Callable[[Tensor, Tensor], Tensor], t: Tensor, rows: Tensor) -> Tensor:
        """Call without letting ``func`` write to ``rows``, which the solver still needs: by a copy, or with a check."""
        if self.overwrites:
            return call(t, rows.clone())
        version = rows._version
        found = call(t, rows)
        if rows._version != version:
            self._refuse_overwriting()
        return found

    def _refuse_overwriting(self) -> None:
        raise InputError(
            "func changed its argument z in place, but not in its first evaluation, where this is noticed and z is "
            "copied. Use operations that make new tensors: z * 2 in place of z.mul_(2)."
        )

    def _convert(self, func: Callable[..., Any], t: Tensor, row: Tensor, args: tuple[Any, ...]) -> Tensor:
        """``func`` on a row, converted to the structure of the state, with the autocast settings of the caller."""
        structure = self.structure
        with torch.autocast(**self.autocast) if self.autocast else contextlib.nullcontext():
            out = func(t, structure.unpack(row) if not self.as_it_is else row, *args)
        if self.autocast:
            out = pytree.tree_map(lambda x: x.to(structure.dtype), out)
        self.check(out)
        return out if self.as_it_is else structure.pack(out)  # type: ignore[no-any-return]

    def at(self, times: Tensor, args: tuple[Any, ...]) -> Field:
        """The same right-hand side with other times, counted from 0, and other arguments, for example static ones."""
        other = copy.copy(self)
        other.times, other.args, other.evaluations = times, args, 0
        other._instants = {}
        return other

    def made_of(self, func: Callable[..., Any], structure: Structure, shape: Sequence[int]) -> Field:
        """Another right-hand side, with the same times, noise and precision; ``func`` takes rows of this shape.

        Its arguments have to be set afterwards. If ``func`` has a method ``over_times``, that vectorises it over time.
        """
        other = self.at(self.times, ())
        other.func, other._over_times = func, getattr(func, "over_times", None)
        other.structure, other.shape = structure, torch.Size(shape)
        other.first_slope = other.first_graph = other.trace = other.known_by = None
        other.known, other.outside, other.taken = [], [], []
        other.as_it_is, other._plain = True, other.autocast is None
        if self.work is not None:
            other.work = self.work * math.prod(shape) / max(1, math.prod(self.shape))
        return other

    def refuse_late_noise(self, train: bool) -> None:
        """Raise if ``func`` drew random numbers only after its first evaluation: they cannot be repeated."""
        if train and self.noise.drawn_since_first():
            raise InputError(
                "func drew random numbers, but not in its first evaluation, so that its noise cannot be repeated in "
                "the backward pass. Draw in every evaluation (torch.nn.Dropout does), or pass the noise through args=."
            )

    def check(self, out: Any) -> None:
        """Raise unless ``out`` has the structure, shapes, dtype and device of the state."""
        leaves, spec = pytree.tree_flatten(out)
        if spec != self.structure.spec:
            raise InputTypeError(
                f"func returned a structure other than z0's: {_describe(out)} in place of "
                f"{describe(self.structure)}. Return one derivative for each part of the state, in the same order."
            )
        for got, shape in zip(leaves, self.structure.shapes, strict=True):
            if not isinstance(got, Tensor):
                raise InputTypeError(
                    f"func(t, z) must return tensors, the derivative of z, got {type(got).__name__}. "
                    + ("Is there a return?" if got is None else "Compute it from z in torch, or use torch.full_like.")
                )
            if got.shape != shape:
                raise InputError(
                    f"func(t, z) returned shape {tuple(got.shape)} for a state z of shape {tuple(shape)}; the "
                    "derivative has one number for each one of the state. Return that shape, or expand to it."
                )
            if got.device != self.structure.device:
                raise InputTypeError(
                    f"func returned a tensor on {got.device}, the state is on {self.structure.device}; "
                    "move func and its inputs to the device of z0."
                )
            if got.dtype != self.structure.dtype and self.autocast is None:
                raise InputTypeError(
                    f"func returned {got.dtype}, the state is {self.structure.dtype}; convert func or z0, "
                    "or use torch.autocast if lower precision in func is intended."
                )


def _autocast_state(device_type: str) -> dict[str, Any] | None:
    """The caller's autocast settings, for every evaluation of ``func``; None if autocast is off."""
    if not torch.is_autocast_enabled(device_type):
        return None
    # no cache: a cast cached without grad would detach the parameters in a later evaluation with grad
    return {"device_type": device_type, "dtype": torch.get_autocast_dtype(device_type), "cache_enabled": False}


def _describe(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return f"a tensor of shape {tuple(tree.shape)}"
    if isinstance(tree, dict):
        found = "{" + ", ".join(f"{k!r}: {_describe(v)}" for k, v in tree.items()) + "}"
        return found if type(tree) is dict else f"{type(tree).__name__}({found})"
    if isinstance(tree, list | tuple):
        return type(tree).__name__ + "(" + ", ".join(_describe(v) for v in tree) + ")"
    return type(tree).__name__


def describe(structure: Structure) -> str:
    """The structure and the shapes of a state, in words."""
    return _describe(pytree.tree_unflatten([torch.empty(s, device="meta") for s in structure.shapes], structure.spec))


class Called:
    """What a backward pass needs to evaluate the same ``func`` again.

    Args:
        func: the right-hand side.
        leaves: the tensors it depends on; those that require grad now get a gradient, even if they are frozen later.
    """

    def __init__(self, func: Callable[..., Any], leaves: Sequence[Tensor] = ()) -> None:
        self.func = func
        self.wanted = [x for x in leaves if x.requires_grad]
        modules = func.modules() if isinstance(func, nn.Module) else ()
        self.modes = [(module, module.training) for module in modules]
        self.owned = places(func)
        self.versions = {name: version_of(x) for name, x in self.owned.items()}

    def _refuse_changes(self) -> None:
        """Raise if a parameter or buffer of ``func`` has been written to since the forward pass."""
        for name, x in self.owned.items():
            if version_of(x) != self.versions[name]:
                raise ChangedFunctionError(
                    f"{name} of func was changed in place between the forward and the backward pass, which evaluates "
                    "func again. Call backward() before such changes, or use adjoint='direct', which keeps the graphs "
                    "of the forward pass."
                )

    @contextlib.contextmanager
    def restored(self, keeps_state: bool) -> Iterator[None]:
        """Context in which parameters, buffers, modes and ``requires_grad`` are those of the forward pass.

        This is needed, for example, under ``torch.func.functional_call``, which removes its tensors before the backward
        pass begins. A ``func`` that ``keeps_state`` writes to copies of its buffers, so that they are updated only
        once, in the forward pass. Hooks of tensors are disabled: autograd calls them with the total gradient.
        """
        if not keeps_state:
            self._refuse_changes()
        now, frozen = places(self.func), [x for x in self.wanted if not x.requires_grad]
        swapped = {name: x for name, x in self.owned.items() if now.get(name) is not x}
        if keeps_state:
            swapped |= {name: x.clone() for name, x in self.owned.items() if not x.requires_grad}
        changed = [module for module, mode in self.modes if module.training != mode]
        try:
            for module in changed:
                module.training = not module.training
            for x in frozen:
                x.requires_grad_()
            with with_parameters(self.func, swapped), hooks_at_rest(self.wanted):
                yield
        finally:
            for module in changed:
                module.training = not module.training
            for x in frozen:
                x.requires_grad_(False)
