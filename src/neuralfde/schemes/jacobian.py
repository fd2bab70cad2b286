"""The Jacobian of an implicit stage as products with vectors, and its structure, found by probing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ..base.torch_private import mapped, vjp


class Jacobian:
    """Products with the Jacobian of ``f`` at ``z``, or of a graph that leads from ``z`` to ``v``."""

    def __init__(self, f: Callable[[Tensor], Tensor] | None, z: Tensor, v: Tensor | None = None) -> None:
        self.f, self.z, self.shape = f, z, z.shape
        self.parts: int | None = None  # the number of samples, if it is known
        if v is not None:
            self.v = v

    @cached_property
    def v(self) -> Tensor | None:
        """The slope with its graph; None if ``func`` cannot be differentiated."""
        assert self.f is not None
        try:
            with torch.inference_mode(False), torch.enable_grad():
                self.z = self.z.detach().clone().requires_grad_()
                return self.f(self.z)
        except RuntimeError:  # func holds tensors made in inference mode, or cannot be differentiated
            return None

    @property
    def traced(self) -> bool:
        """Whether autograd sees that the slope depends on the state."""
        return self.v is not None and self.v.requires_grad

    def vjp(self, u: Tensor) -> Tensor:
        """``Jᵀ u``."""
        found = vjp((self.v,), (u,), (self.z,), keep=True)[0] if self.v is not None and self.traced else None
        return torch.zeros_like(u) if found is None else found

    def rows(self, patterns: Tensor) -> Tensor:
        """``Jᵀ u`` for each ``u`` of (count, …), in one call if ``func`` can be vectorised."""
        if not self.traced:
            return torch.zeros_like(patterns)
        try:  # not by is_grads_batched=True, which imports sympy
            found: Tensor = mapped(self.vjp, [(patterns, True)], len(patterns))
        except RuntimeError:  # an operation that cannot be vectorised
            found = torch.stack([self.vjp(u) for u in patterns])
        return found

    @cached_property
    def transposed(self) -> tuple[Tensor, Tensor] | None:
        """``u`` and ``Jᵀ u`` with its graph, which is linear in ``u``; None if ``func`` has no second derivative."""
        if self.v is None or not self.traced:
            return None
        with torch.inference_mode(False), torch.enable_grad():
            u = torch.zeros_like(self.z).requires_grad_()
            try:
                (product,) = torch.autograd.grad((self.v,), (self.z,), (u,), create_graph=True)
            except RuntimeError:
                return None
        return u, product

    def jvp(self, d: Tensor) -> Tensor:
        """``J d``, the transpose of ``Jᵀ u``; by finite differences if ``func`` has no second derivative."""
        if self.transposed is not None and self.transposed[1].requires_grad:
            u, product = self.transposed
            (found,) = vjp((product,), (d,), (u,), keep=True)
            if found is not None:
                return found
        assert self.f is not None
        z = self.z.detach()
        size, top = float(z.abs().max()), float(d.abs().max())
        reach = (size or 1.0) * math.sqrt(torch.finfo(z.dtype).eps) / (top or 1.0)
        return (self.f(z + reach * d) - self.f(z)) / reach

    def rate(self) -> float:
        """An estimate of the largest absolute eigenvalue, by power iteration."""
        u, size = irregular(self.z.detach()), 0.0
        for _ in range(12):
            u = self.vjp(u / u.norm())
            size = float(u.norm())
            if not 0 < size < math.inf:
                break
        return size

    def mixes(self, samples: int) -> bool:
        """Whether one of these equal parts of the state acts on another; two products per bit of their indices."""
        number = torch.arange(samples, device=self.z.device)
        halves = ((number >> bit) & 1 == side for bit in range((samples - 1).bit_length()) for side in (0, 1))
        return any(map(self._leaves, halves))

    def seems_to_mix(self, samples: int) -> bool:
        """Whether a single product shows that a part acts on another; if not, nothing is known."""
        # the Thue-Morse sequence, which has no period in common with a coupling
        bits = torch.arange(samples, device=self.z.device)
        for shift in (16, 8, 4, 2, 1):
            bits = bits ^ (bits >> shift)
        return self._leaves((bits & 1).bool())

    def _leaves(self, some: Tensor) -> bool:
        """Whether the parts of the state that are True in ``some`` (parts,) depend on the other parts."""
        parts = len(some)
        u = torch.where(some[:, None], irregular(self.z).view(parts, -1), 0.0)
        return bool((self.vjp(u.view(self.shape)).reshape(parts, -1)[~some] != 0).any())

    def part(self, most: int) -> int:
        """The elements of a sample: those of the fewest trailing axes that do not mix, if at most ``most``; or all."""
        whole, axes = self.shape.numel(), range(len(self.shape), 0, -1)
        sizes = [m for m in dict.fromkeys(self.shape[k:].numel() for k in axes) if m <= most and m < whole]
        return next((m for m in sizes if not self.mixes(whole // m)), whole)

    def samples(self) -> int:
        """The number of samples: the length of the first axis if its parts do not interact, otherwise 1."""
        if self.parts is None:
            count = self.shape[0] if len(self.shape) > 1 else 1
            self.parts = count if count > 1 and self.traced and not self.mixes(count) else 1
        return self.parts


def irregular(like: Tensor) -> Tensor:
    """Numbers between 1 and 2 without a regular pattern, in the shape of ``like``."""
    k = torch.arange(like.numel(), dtype=torch.float64, device=like.device)
    return (1 + (k * 0.6180339887498949) % 1).to(like.dtype).view(like.shape)


def agrees(found: Tensor, expected: Tensor, terms: Tensor | float = 0.0) -> bool:
    """Whether two products are equal up to rounding: of themselves, and of the ``terms`` that cancel in them."""
    eps = torch.finfo(found.dtype).eps
    size = (found.abs() + expected.abs()) * math.sqrt(eps) + (expected.abs().max() + terms) * 16 * eps
    return bool(((found - expected).abs() <= size).all())
