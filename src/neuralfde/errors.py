"""The errors of the package, and a warning. Each message says what is wrong, why, and what to do."""

from __future__ import annotations

import contextlib
import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

_ATTEMPTS: ContextVar[bool] = ContextVar("attempts", default=False)


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


class AccuracyWarning(UserWarning):
    """The result of a solve is finite, but likely wrong, because its steps are too long."""


@contextlib.contextmanager
def attempts() -> Iterator[None]:
    """Context without an ``AccuracyWarning``: solves are attempts, such as those in the search of a fit."""
    before = _ATTEMPTS.set(True)
    try:
        yield
    finally:
        _ATTEMPTS.reset(before)


def warn_of_result(message: str) -> None:
    """Issue an ``AccuracyWarning`` for the line that called the package, unless solves are attempts."""
    if _ATTEMPTS.get():
        return
    inner = tuple(str(Path(name).parent) for name in (__file__, sys.modules["torch"].__file__) if name)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"the result is likely wrong: {message}", AccuracyWarning, stacklevel=level)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, and the whole list."""
    known = sorted(known)
    close = [k for k in known if k.lower() == name.lower()] or difflib.get_close_matches(name, known, 1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known names: {', '.join(repr(k) for k in known)}."
