"""History sums keep full float32 precision, whatever is allowed to the matrix products of ``func``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from .base import Engine


def precise(engine: Engine, like: Tensor) -> Engine:
    """The engine itself; where TF32 is on, wrapped so that its products do without it."""
    return _Precise(engine) if reduced(like) else engine


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


class _Precise:
    """An engine with full precision around its products only: ``func`` keeps the precision its user chose."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.weights_grad = engine.weights_grad

    @property
    def bytes(self) -> int:
        """See :class:`Engine`."""
        return self.engine.bytes

    def recall(self, n: int) -> Tensor | None:
        """See :class:`Engine`."""
        settings = torch.backends.cuda.matmul
        settings.fp32_precision = "ieee"
        try:
            return self.engine.recall(n)
        finally:
            settings.fp32_precision = "tf32"

    def record(self, n: int, row: Tensor, slope: Tensor | None = None) -> None:
        """See :class:`Engine`."""
        settings = torch.backends.cuda.matmul
        settings.fp32_precision = "ieee"
        try:
            self.engine.record(n, row, slope)
        finally:
            settings.fp32_precision = "tf32"
