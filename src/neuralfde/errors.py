"""The errors a user can meet. Each message says what is wrong, why, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An argument that cannot be used: its value, shape, or its combination with another."""


class InputTypeError(TypeError):
    """An argument of the wrong kind: not a tensor, another dtype, another device or structure."""


class CapturedTensorError(RuntimeError):
    """A tensor that needs a gradient reaches ``func`` only through a closure and would silently get none."""


class ChangedFunctionError(RuntimeError):
    """``func`` was not the same function in the backward pass as in the forward pass."""


class ConvergenceError(RuntimeError):
    """The nonlinear equation of an implicit stage was not solved to its tolerance."""


class UnsupportedError(RuntimeError):
    """A way of running models that a solver cannot take part in, such as ``torch.jit``."""


class NonFiniteError(ArithmeticError):
    """The state became NaN or infinite."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, and the whole list."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known names: {', '.join(repr(k) for k in known)}."
