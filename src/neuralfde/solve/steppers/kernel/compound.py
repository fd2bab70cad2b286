"""Operations of PyTorch that are made of sums, products and pointwise functions: norms, softmax and their like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .builder import Builder
from .elements import MIXED, Elements, slots_of
from .program import Sym
from .record import Unfit


class Compound:
    """Operations by the names that PyTorch has for them, less leading underscores; what they take is read already."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.point = builder, builder.pointwise

    def sum(self, x: Elements, dims: Sequence[int] | int | None = None, keepdim: bool = False, **_: Any) -> Elements:
        """All features, or those along some axes."""
        return self.builder.summed(x, [dims] if isinstance(dims, int) else list(dims or ()), keepdim)

    def mean(self, x: Elements, dims: Any = None, keepdim: bool = False, **_: Any) -> Elements:
        """The same, divided by how many there are."""
        total = self.sum(x, dims, keepdim)
        return self.point(lambda y: y * (total.slot.numel() / x.slot.numel()), total)

    def var(self, x: Elements, dims: Any = None, correction: float | None = 1, keepdim: bool = False) -> Elements:
        """Less the square of the mean; ``correction`` are degrees of freedom."""
        squares = self.sum(self._squares(x, dims), dims, keepdim)
        count = x.slot.numel() / squares.slot.numel() - (1 if correction is None else correction)
        return self.point(lambda s: s / float(count), squares)

    def std(self, x: Elements, dims: Any = None, correction: float | None = 1, keepdim: bool = False) -> Elements:
        """Its root."""
        return self.point(_root, self.var(x, dims, correction, keepdim))

    def linalg_vector_norm(
        self, x: Elements, order: float = 2, dims: Any = None, keepdim: bool = False, **_: Any
    ) -> Elements:
        """The sum of absolute values, or the root of the sum of squares."""
        if order == 1:
            return self.sum(self.point(lambda a: a.abs(), x), dims, keepdim)
        if order != 2:
            raise NotImplementedError(f"a norm of order {order}")
        return self.point(_root, self.sum(self.point(lambda a: a * a, x), dims, keepdim))

    def native_layer_norm(
        self, x: Elements, shape: Sequence[int], weight: Elements | None, bias: Elements | None, eps: float
    ) -> list[Elements]:
        """Its result, the mean, and what centred numbers are multiplied by."""
        out, mean, rate = self._normalised(x, list(range(-len(shape), 0)), eps)
        return [self._affine(out, weight, bias), mean, rate]

    def native_group_norm(
        self, x: Elements, weight: Elements | None, bias: Elements | None, n: int, c: int, size: int, groups: int,
        eps: float,
    ) -> list[Elements]:  # fmt: skip
        """The same in groups of channels."""
        shape = x.slot.shape
        out, mean, rate = self._normalised(x.map(lambda a: a.reshape(n, groups, -1)), [-1], eps)
        by_channel = lambda a: a.reshape(c, *[1] * (len(shape) - 2))  # noqa: E731
        weight, bias = (None if w is None else w.map(by_channel) for w in (weight, bias))
        flat = lambda a: a.reshape(n, groups)  # noqa: E731
        return [self._affine(out.map(lambda a: a.reshape(shape)), weight, bias), mean.map(flat), rate.map(flat)]

    def native_batch_norm_legit_no_training(
        self, x: Elements, weight: Elements | None, bias: Elements | None, mean: Elements, var: Elements, _: float,
        eps: float,
    ) -> list[Elements]:  # fmt: skip
        """By the mean and variance of a training that is over; two more results are empty."""
        across = lambda a: a.reshape(-1, *[1] * (x.slot.ndim - 2))  # noqa: E731
        weight, bias = (None if w is None else w.map(across) for w in (weight, bias))
        rule = lambda a, m, v: (a - m) / (v + eps).sqrt()  # noqa: E731
        out = self._affine(self.point(rule, x, mean.map(across), var.map(across)), weight, bias)
        return [out, mean, var]

    def softmax(self, x: Elements, dim: int, *_: Any) -> Elements:
        """Powers of e, which add up to one."""
        powers = self.point(lambda a, b: (a - b).exp(), x, self._largest(x, dim))
        return self.point(Sym.__truediv__, powers, self.sum(powers, [dim], True))

    safe_softmax = softmax

    def logsumexp(self, x: Elements, dims: Sequence[int], keepdim: bool = False) -> Elements:
        """The logarithm of the sum of powers of e, along one axis."""
        (dim,) = [dims] if isinstance(dims, int) else dims
        largest = self._largest(x, dim)
        total = self.sum(self.point(lambda a, b: (a - b).exp(), x, largest), [dim], True)
        found = self.point(lambda s, b: s.log() + b, total, largest)
        return found if keepdim else found.map(lambda a: a.squeeze(dim))

    def log_softmax(self, x: Elements, dim: int, *_: Any) -> Elements:
        """What is less than one by that logarithm."""
        return self.point(Sym.__sub__, x, self.logsumexp(x, [dim], True))

    def log_sigmoid_forward(self, x: Elements) -> list[Elements]:
        """The result, and a buffer that nobody reads."""
        found = self.point(lambda a: a.minimum(0.0) - (-(a.abs())).exp().log1p(), x)
        return [found, found]

    def glu(self, x: Elements, dim: int = -1) -> Elements:
        """One half, and how much of it the other half lets through."""
        half = x.slot.shape[dim] // 2
        first, second = (x.map(lambda a, k=k: a.narrow(dim, k * half, half)) for k in range(2))  # type: ignore[misc]
        return self.point(lambda a, b: a * b.sigmoid(), first, second)

    def prod(self, x: Elements, dim: int, keepdim: bool = False, **_: Any) -> Elements:
        """The product along an axis."""
        found = self._folded(Sym.__mul__, x, dim)
        return found if keepdim else found.map(lambda a: a.squeeze(dim))

    def linalg_cross(self, x: Elements, y: Elements, dim: int = -1) -> Elements:
        """The product of vectors of three numbers."""
        one, two = (lambda a, k=k: a.roll(-k, dim) for k in (1, 2))
        return self.point(lambda a, b, c, d: a * b - c * d, x.map(one), y.map(two), x.map(two), y.map(one))

    def constant_pad_nd(self, x: Elements, widths: Sequence[int], value: float = 0.0) -> Elements:
        """A number around the others, along axes of features."""
        slot = int(slots_of(self.builder.program.number(float(value)), 1))
        found, sample = torch.constant_pad_nd(x.slot, list(widths), slot), x.sample
        for dim, (old, new) in enumerate(zip(x.slot.shape, found.shape, strict=True)):
            if sample is not None and old != new:
                line = sample.narrow(dim, 0, 1)
                if not torch.equal(sample, line.expand(sample.shape)):
                    raise Unfit(MIXED)
                sample = line.expand(*sample.shape[:dim], new, *sample.shape[dim + 1 :])
        return Elements(found, None if sample is None else sample.contiguous())

    def _squares(self, x: Elements, dims: Any) -> Elements:
        centred = self.point(Sym.__sub__, x, self.mean(x, dims or list(range(x.slot.ndim)), True))
        return self.point(lambda d: d * d, centred)

    def _normalised(self, x: Elements, dims: list[int], eps: float) -> tuple[Elements, Elements, Elements]:
        mean = self.mean(x, dims, True)
        rate = self.point(lambda v: 1.0 / (v + eps).sqrt(), self.mean(self._squares(x, dims), dims, True))
        return self.point(lambda a, m, r: (a - m) * r, x, mean, rate), mean, rate

    def _affine(self, x: Elements, weight: Elements | None, bias: Elements | None) -> Elements:
        x = x if weight is None else self.point(Sym.__mul__, x, weight)
        return x if bias is None else self.point(Sym.__add__, x, bias)

    def _largest(self, x: Elements, dim: int) -> Elements:
        return self._folded(lambda a, b: a.maximum(b), x, dim)

    def _folded(self, rule: Callable[..., Sym], x: Elements, dim: int) -> Elements:
        """A function of two numbers, from the first along an axis to the last."""
        found, *others = [x.map(lambda a, k=k: a.narrow(dim, k, 1)) for k in range(x.slot.shape[dim])]  # type: ignore[misc]
        for other in others:
            found = self.point(rule, found, other)
        return found


def _root(x: Sym) -> Sym:
    """The root, whose derivative is taken for 0 at 0, as PyTorch does it for norms."""
    positive = x.gt(0.0)
    return positive.where(positive.where(x, 1.0).sqrt(), 0.0)
