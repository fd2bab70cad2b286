"""Checks of single values, so that constructors and public calls refuse bad ones in the same words."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError, nearest

_T = TypeVar("_T")


def whole(name: str, value: Any, least: int = 1, most: float = math.inf, hint: str = "") -> int:
    """A whole number from ``least`` to ``most``; ``hint`` ends the message with what to do instead."""
    kind = isinstance(value, int) and not isinstance(value, bool)
    if kind and least <= value <= most:
        return value  # type: ignore[no-any-return]
    wanted = f"of at least {least}" if most == math.inf else f"between {least} and {most}"
    raise _refused(name, value, f"a whole number {wanted}", hint, kind)


def real(name: str, value: Any, above: float = -math.inf, below: float = math.inf, hint: str = "") -> float:
    """A finite number strictly between ``above`` and ``below``."""
    kind = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind and above < value < below:
        return float(value)
    sign = "positive, finite" if above == 0 else "finite"
    rule = f"a {sign} number" if below == math.inf else f"a number between {above:g} and {below:g}"
    raise _refused(name, value, rule, hint, kind)


def _refused(name: str, value: Any, rule: str, hint: str, kind: bool) -> Exception:
    return (InputError if kind else InputTypeError)(f"{name}={value!r:.60} must be {rule}. {hint}".rstrip())


def named(kind: str, given: Any, table: Mapping[str, _T], kinds: Any) -> _T:
    """The object with this name in the table; an object of the right kind is returned as it is."""
    if isinstance(given, kinds):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        if given in table:
            return table[given]
        raise InputError(f"unknown {kind} {given!r}. {nearest(given, table)}")
    raise InputTypeError(f"{kind} must be a name or an object, got {type(given).__name__}. {nearest('', table)}")


def function(name: str, value: Any, call: str) -> None:
    """Raise unless the value can be called; ``call`` shows how it will be."""
    if not callable(value):
        raise InputTypeError(
            f"{name} must be callable as {call}, got {type(value).__name__}. Pass a function or a module."
        )


def number(name: str, value: Any, hint: str = "For a list of numbers use torch.tensor.") -> None:
    """Raise unless the value is a real number or a tensor of real numbers, at least one."""
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            got = type(value).__name__
            raise InputTypeError(f"{name} must be a real number or a tensor of real numbers, got {got}. {hint}")
    elif not value.is_floating_point():
        raise InputTypeError(f"{name} must be real, got a tensor of dtype {value.dtype}. Use float32 or float64.")
    elif value.numel() == 0:
        raise InputError(f"{name} has shape {tuple(value.shape)} and holds no numbers; at least one is needed.")


def tensor(name: str, value: Any, also_complex: bool = False) -> None:
    """Raise unless the value is a tensor of floating-point numbers, or of complex ones where these are allowed."""
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{name} must be a tensor, got {type(value).__name__}. Use torch.tensor.")
    if not (value.is_floating_point() or (also_complex and value.is_complex())):
        raise InputTypeError(f"{name} must not be a tensor of dtype {value.dtype}. Use float32 or float64.")


def numbers(name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A number, nested lists of numbers, an array or a tensor, as a tensor; Python's numbers get this dtype."""
    try:
        return torch.as_tensor(value, dtype=None if hasattr(value, "dtype") else dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"{name} must be numbers (a tensor, an array or a list): {error}") from error


def reals(name: str, value: Any, hint: str = "Give a real number.") -> Tensor:
    """As :func:`numbers`, for real numbers. Python's become float64: the default dtype would round them."""
    found = numbers(name, value, torch.float64)
    if found.is_complex():
        raise InputTypeError(f"{name} is complex and must be real. {hint}")
    return found


@functools.cache
def installed_memory() -> int:
    """The memory of this machine in bytes, used or free; 2^62 if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 62
