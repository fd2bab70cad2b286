"""Code shared by the operators: checks, the flip between sides, and sampled derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neuralfde.base.checks import number, real, tensor
from neuralfde.errors import InputError, InputTypeError, nearest

SIDES = ("left", "right")
Rule = Callable[[Tensor, Tensor, float], Tensor]


def apply(rule: Rule, values: Tensor, order: float | Tensor, step: float, side: str, least: int) -> Tensor:
    """Check the arguments, run the left ``rule`` in float64 and convert the result to the dtype of ``values``.

    The right operator is the left one applied to the reversed samples, reversed again: since g(τ) = f(T - τ), this
    also gives the signs (-1)^m of right derivatives.
    """
    if side not in SIDES:
        raise InputError(f"side={side!r} is not a side. {nearest(str(side), SIDES)}")
    _check_values(values, least)
    step = real("step", step, above=0, hint="It is the distance between samples.")
    exponent = _check_order(order, values)
    wide = values.to(torch.float64)
    result = rule(wide, exponent, step) if side == "left" else rule(wide.flip(0), exponent, step).flip(0)
    return result.to(values.dtype)


def _check_values(values: Tensor, least: int) -> None:
    tensor("values", values)
    if values.layout != torch.strided:
        raise InputTypeError(f"values has layout {values.layout}; convert with values.to_dense().")
    if values.dim() == 0 or values.shape[0] < least:
        count = 0 if values.dim() == 0 else values.shape[0]
        raise InputError(f"values has {count} samples along its first axis; this operator needs at least {least}.")


def _check_order(order: float | Tensor, values: Tensor) -> Tensor:
    number("order", order)
    exponent = torch.as_tensor(order, dtype=torch.float64, device=values.device)
    try:
        exponent.expand(values.shape[1:])
    except RuntimeError:
        raise InputError(
            f"order has shape {tuple(exponent.shape)}, which does not broadcast to {tuple(values.shape[1:])}, "
            "the shape of one sample. Use a number or one order per channel."
        ) from None
    detached = exponent.detach()
    if not bool((torch.isfinite(detached) & (detached > 0)).all()):
        raise InputError(f"order={detached.tolist()}; orders must be positive and finite.")
    # One axis per axis of a sample, so that weights (count, *order) line up with values (count, *sample).
    return exponent.reshape((1,) * (values.dim() - 1 - exponent.dim()) + exponent.shape)


def samples_needed(order: float | Tensor) -> int:
    """⌈order⌉ + 2, or 2 for an order that the checks will refuse."""
    number("order", order)
    largest = float(torch.as_tensor(order).detach().max())
    return 2 + (math.ceil(largest) if math.isfinite(largest) and largest > 0 else 0)


def _stencil(derivative: int, offsets: range) -> Tensor:
    """Weights c with Σ c_i f(x + o_i) ≈ f^{(k)}(x), exact for polynomials of degree below len(offsets) (step 1)."""
    points = torch.tensor(list(offsets), dtype=torch.float64)
    powers = torch.arange(len(offsets), dtype=torch.float64)
    right = torch.zeros(len(offsets), dtype=torch.float64)
    right[derivative] = math.factorial(derivative)
    return torch.linalg.solve(points[None, :] ** powers[:, None], right)


def derivative_at(values: Tensor, derivative: int, step: float, position: int) -> Tensor:
    """f^{(k)} at one sample from the k+3 samples nearest to it: error O(h³)."""
    width = derivative + 3
    start = min(max(position - width // 2, 0), values.shape[0] - width)
    weights = _stencil(derivative, range(start - position, start - position + width)).to(values.device)
    return torch.tensordot(weights, values[start : start + width], dims=1) / step**derivative


def sampled_derivative(values: Tensor, derivative: int, step: float) -> Tensor:
    """f^{(k)} at every sample, from windows of k+3 samples (centred inside, one-sided at the ends): error O(h³)."""
    if derivative == 0:
        return values
    width = derivative + 3
    before = width // 2
    after = width - 1 - before
    count = values.shape[0]
    weights = _stencil(derivative, range(-before, after + 1)).tolist()
    inside = sum(w * values[i : count - width + 1 + i] for i, w in enumerate(weights)) / step**derivative
    first = [derivative_at(values, derivative, step, p) for p in range(before)]
    last = [derivative_at(values, derivative, step, p) for p in range(count - after, count)]
    return torch.cat([torch.stack(first), inside, torch.stack(last)])
