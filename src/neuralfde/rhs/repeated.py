"""Steps as operations that are repeated, in place of calling ``func`` in each of them.

In the first step of a pass every operation is recorded; for a training, also what autograd does backward. The second
step is taken in both ways, and the states must agree to the last bit. Otherwise, and if an operation cannot be
repeated, every step calls ``func``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.policy import REPEATED_BYTES
from ..base.torch_private import hooks_at_rest, place_of, vjp
from .field import Field
from .products import Products
from .recorder import Recorder, copies, recording

#: From a right-hand side at one time, the sums of a step and its local weight to state and slope.
Step = Callable[[Callable[[Tensor], Tensor], Sequence[Tensor], Tensor], tuple[Tensor, "Tensor | None"]]


@dataclass(frozen=True)
class Training:
    """What a backward pass will ask for.

    Attributes:
        wanted: the tensors that get a gradient.
        steps: how many steps may leave results for it.
        weigh: whether it needs the slopes again, and gradients of the local weights.
    """

    wanted: Sequence[Tensor]
    steps: int
    weigh: bool


class Repeated:
    """The steps of one pass and, where that is a ``training``, of the backward pass after it.

    Args:
        field: the right-hand side; its calls change nothing.
        step: how a step evaluates it.
        training: what the backward pass will ask for.

    Attributes:
        repeats: whether ``func`` is not called any more; None before the second step, and where there are doubts.
        refused: why it is called in every step.
        products: what is repeated in the backward pass; None if nothing is.
        moves_state: whether the state of a step is not just its first sum.
    """

    moves_state = True

    def __init__(self, field: Field, step: Step, training: Training | None = None) -> None:
        self.field, self.step, self.training = field, step, training
        self.repeats: bool | None = None
        self.refused: str | None = None
        self.products: Products | None = None
        self._own: tuple[Tensor, ...] = ()
        self._local: Tensor | None = None

    def __call__(self, n: int, x: Sequence[Tensor], w0: Tensor) -> tuple[Tensor, Tensor]:
        """State and slope of step ``n``; the next call may overwrite them."""
        if not self.repeats:
            return self._watched(n, x, w0)
        self.field.evaluations += self._count
        self._repeat(n, x, w0)
        if self.products is not None:
            self.products.keep(n)
        return self._state if self.moves_state else x[0], self._slope

    def doubt(self) -> None:
        """Since the last step something may have changed ``func``: the next one is taken in both ways again."""
        self.repeats = None if self.repeats else self.repeats

    def _repeat(self, n: int, x: Sequence[Tensor], w0: Tensor) -> None:
        self._place(self._inputs, n, x, w0)
        for call in self._calls:
            call()

    def _place(self, which: Sequence[int], n: int, x: Sequence[Tensor], w0: Tensor) -> None:
        """Copy the sums, time and local weight among these inputs to where the operations read them."""
        for k in which:
            if k > 1:
                self._own[k].copy_(x[k - 2])
            elif k == 0:
                self._own[0].copy_(self.field.time(n))
            elif w0 is not self._local:
                self._local = w0
                self._own[1].copy_(w0)

    def _watched(self, n: int, x: Sequence[Tensor], w0: Tensor) -> tuple[Tensor, Tensor]:
        """Call ``func``: at the first time write down what it does, at the second see whether that does the same."""
        if self.repeats is None:
            return self._second(n, x, w0) if self._own else self._first(n, x, w0)
        _, z, v = self._evaluated(self.field.time(n), w0, x)
        return z.detach(), v.detach()

    def _refuse(self, why: str) -> None:
        """Call ``func`` from now on, here and in later solves."""
        self.repeats, self.refused, self.field.verdict.called = False, why, why
        self.products = None

    def _first(self, n: int, x: Sequence[Tensor], w0: Tensor) -> tuple[Tensor, Tensor]:
        if not torch.is_inference_mode_enabled():
            return self._recorded(n, x, w0)
        with torch.inference_mode(False), torch.no_grad():  # inside, PyTorch does not show what functions are made of
            return self._recorded(n, x, w0)

    def _recorded(self, n: int, x: Sequence[Tensor], w0: Tensor) -> tuple[Tensor, Tensor]:
        self._own, self._local = copies((self.field.time(n), w0, *x, x[0], x[0])), w0
        t, own, *sums, by_z, by_v = self._own
        try:
            with recording(self._own, REPEATED_BYTES[hasattr(self.field.func, "over_times")]) as seen:
                inputs, z, v = self._evaluated(t, own, sums)
                count, refused = len(seen.calls), seen.refused
                grads = self._gradients(inputs, (z, v), (by_z, by_v), seen)
        except Exception as error:  # if that is func's own, calling it raises it again
            refused = type(error).__name__
        if refused is not None:
            self._refuse(refused)
            return self._watched(n, x, w0)
        self._state, self._slope, self.moves_state = z.detach(), v.detach(), place_of(z) != place_of(sums[0])
        ends = [z, v]
        if trained := self.training is not None and seen.refused is None:
            # what gradients alone need of this time is made at this time too: later, other numbers may be there
            ends += [g for g in grads if g is not None]
        now = set(map(id, seen.calls[:count]))
        ahead = [call for call in seen.needed(ends) if id(call) in now]
        read = {place_of(z), place_of(v)}.union(*[call.reads for call in ahead])
        self._calls = [call.run for call in ahead]
        self._inputs = [k for k, y in enumerate(self._own) if place_of(y) in read]
        if self.training is not None and trained:
            slope = self._slope if self.training.weigh else None
            products = Products(seen, self._own, ahead, grads, slope, self.training.steps)
            self.products = products if products.possible else None
        if self.products is not None:
            self.products.keep(n)
        return self._state.clone() if self.moves_state else x[0], self._slope.clone()

    def _second(self, n: int, x: Sequence[Tensor], w0: Tensor) -> tuple[Tensor, Tensor]:
        inputs, z, v = self._evaluated(self.field.time(n), w0, x)
        self._repeat(n, x, w0)
        self.repeats = torch.equal(v, self._slope) and (not self.moves_state or torch.equal(z, self._state))
        if not self.repeats:
            self._refuse("a second evaluation gives another result")
        if self.products is not None:
            self.products.keep(n)
            if not self._agree(n, x, w0, inputs, (z, v)):
                self.products = None
        return z.detach(), v.detach()

    def _agree(
        self, n: int, x: Sequence[Tensor], w0: Tensor, inputs: Sequence[Tensor], ends: tuple[Tensor, Tensor]
    ) -> bool:
        """Whether the operations of the backward pass say what autograd says."""
        assert self.products is not None
        angles = torch.arange(1, x[0].numel() + 1, dtype=torch.float64).view(x[0].shape)
        by_z, by_v = angles.sin().to(x[0]), angles.cos().to(x[0])
        self.products.begin(range(n, n - 1, -1))
        found = [None if g is None else g.clone() for g in self.pulled(n, x, w0, by_z, by_v)]
        rows = torch.stack([y.reshape(-1) for y in x])[None]
        grads, local, _ = self.products.end(rows, by_v.reshape(1, -1))
        found += [None if local is None else local[0], *grads]
        return all(map(_close, found, self._gradients(inputs, ends, (by_z, by_v))))

    def _evaluated(self, t: Tensor, w0: Tensor, x: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Sums and local weight, state and slope, with the graph between them for a training."""
        train = self.training is not None
        self._count = 0

        def at(y: Tensor) -> Tensor:
            self._count += 1
            self.field.evaluations += 1
            return self.field.when(t, y, self.field.args)

        with torch.set_grad_enabled(train):
            sums = [y.detach().requires_grad_(train) for y in x]
            own = w0.detach().requires_grad_(self.training is not None and self.training.weigh)
            z, v = self.step(at, sums, own)
        assert v is not None
        return (*sums, own), z, v

    def _gradients(
        self,
        inputs: Sequence[Tensor],
        ends: tuple[Tensor, Tensor],
        by: tuple[Tensor, Tensor],
        seen: Recorder | None = None,
    ) -> list[Tensor | None]:
        """The gradients of sums, local weight and wanted tensors, for those of state and slope.

        A state that is the first sum passes its gradient on, which is left to the caller. ``seen`` is told of errors.
        """
        wanted = () if self.training is None else self.training.wanted
        own = (*[y for y in inputs if y.requires_grad], *wanted)
        both = zip(ends, by, strict=True) if ends[0] is not inputs[0] else ((ends[1], by[1]),)
        pairs = [(y, b) for y, b in both if y.requires_grad]
        found: Sequence[Tensor | None] = (None,) * len(own)
        try:
            with hooks_at_rest(wanted):
                if pairs and self.training is not None:
                    found = vjp(tuple(y for y, _ in pairs), tuple(b for _, b in pairs), own)
        except Exception as error:  # if the gradient is asked for, this error will come again
            if seen is None:
                raise
            seen.refused = f"{type(error).__name__} in its backward pass"
        supply = iter(found)
        grads = [next(supply) if y.requires_grad else None for y in inputs]
        return [None if g is None else g.detach() for g in (*grads, *supply)]

    def pulled(self, n: int, x: Sequence[Tensor], w0: Tensor, by_z: Tensor | None, by_v: Tensor) -> list[Tensor | None]:
        """The gradients of the sums of step ``n`` for those of state and slope; the next call may overwrite them."""
        products = self.products
        assert products is not None
        if not products.has(n):
            self._repeat(n, x, w0)
            products.keep(n)
        self._place(products.inputs, n, x, w0)
        self._own[-1].copy_(by_v)
        if self.moves_state and by_z is not None:
            self._own[-2].copy_(by_z)
        elif self.moves_state:
            self._own[-2].zero_()
        return products.repeat(n)

    @property
    def bytes(self) -> int:
        """What the forward pass has left for the backward pass, in bytes."""
        return 0 if self.products is None else self.products.bytes


def _close(found: Tensor | None, expected: Tensor | None) -> bool:
    """Whether gradients agree up to the rounding of sums in another order."""
    if found is None or expected is None:
        return found is expected
    size = float(expected.abs().max())
    return float((found.reshape(expected.shape) - expected).abs().max()) <= 32 * torch.finfo(expected.dtype).eps * size
