"""The errors of the package. Each message says what is wrong, why, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An argument with a bad value or shape, or a combination of arguments that does not work."""


class InputTypeError(TypeError):
    """An argument of the wrong type, dtype, device or structure."""


class CapturedTensorError(RuntimeError):
    """``func`` uses a tensor that requires grad only through a closure, so that it would silently get no gradient."""


class ChangedFunctionError(RuntimeError):
    """``func`` was not the same function in the backward pass as in the forward pass."""


class ConvergenceError(RuntimeError):
    """An implicit stage was not solved to its tolerance, or no solution met the tolerance of a solve."""


class UnsupportedError(RuntimeError):
    """A feature of PyTorch that a solve does not support, such as ``torch.jit``."""


class NonFiniteError(ArithmeticError):
    """The state became NaN or infinite."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, and the whole list."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known names: {', '.join(repr(k) for k in known)}."
