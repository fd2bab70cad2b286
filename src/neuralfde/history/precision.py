"""History sums keep full float32 precision, whatever is allowed to the matrix products of ``func``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


@contextlib.contextmanager
def ieee(like: Tensor) -> Iterator[None]:
    """Matrix products in full precision inside."""
    if not reduced(like):
        yield
        return
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def reduced(like: Tensor) -> bool:
    """Whether float32 products on this device are made in TF32."""
    on = like.device.type == "cuda" and like.dtype == torch.float32
    return on and torch.backends.cuda.matmul.fp32_precision == "tf32"
