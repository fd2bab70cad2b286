"""Checks of single values, so that constructors and public calls refuse bad ones in the same words."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import InputError, InputTypeError, nearest

_T = TypeVar("_T")


def whole(name: str, value: Any, least: int = 1, most: float = math.inf, hint: str = "") -> int:
    """A whole number from ``least`` to ``most``; ``hint`` ends the message with what to do instead."""
    kind = isinstance(value, int | Integral) and not isinstance(value, bool)
    if kind and least <= value <= most:
        return int(value)
    wanted = f"of at least {least}" if most == math.inf else f"between {least} and {most}"
    raise _refused(name, value, f"a whole number {wanted}", hint, kind)


def real(name: str, value: Any, above: float = -math.inf, below: float = math.inf, hint: str = "") -> float:
    """A finite number strictly between ``above`` and ``below``."""
    kind = is_real(value)
    if kind and above < value < below:
        return float(value)
    sign = "positive, finite" if above == 0 else "finite"
    rule = f"a {sign} number" if below == math.inf else f"a number between {above:g} and {below:g}"
    raise _refused(name, value, rule, hint, kind)


def is_real(value: Any) -> bool:
    """Whether this is a real number: Python's, or one of NumPy's."""
    return isinstance(value, int | float | Real) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Python's number in the place of one of NumPy's; anything else as it is."""
    if isinstance(value, bool | int | float | complex) and type(value).__module__ == "builtins":
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


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
    not_a_class(kind, given)
    raise InputTypeError(f"{kind} must be a name or an object, got {type(given).__name__}. {nearest('', table)}")


def not_a_class(name: str, value: Any) -> None:
    """Raise for a class in the place of an object."""
    if isinstance(value, type):
        raise InputTypeError(f"{name} is the class {value.__name__} and must be an object: {value.__name__}(...).")


def function(name: str, value: Any, call: str) -> None:
    """Raise unless the value can be called as ``call`` says; ``*args`` there is checked at the first call."""
    not_a_class(name, value)
    if not callable(value):
        raise InputTypeError(
            f"{name} must be callable as {call}, got {type(value).__name__}. Pass a function or a module."
        )
    arguments = call[call.index("(") + 1 : -1].split(", ")
    why = None if arguments[-1].startswith("*") else misfit(value, *arguments)
    if why is not None:
        raise InputTypeError(f"{name} is called as {call}, which does not fit it: {why}. Take these arguments.")


def misfit(called: Callable[..., Any], *args: Any, **given: Any) -> str | None:
    """Why these are not the arguments of a function or a module; None if they are, or if it does not say."""
    try:
        signature = inspect.signature(called.forward if isinstance(called, nn.Module) else called)
    except (TypeError, ValueError):  # a built-in function does not say what it takes
        return None
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        return f"it takes {signature}, {error}"
    return None


def number(name: str, value: Any, hint: str = "For a list of numbers use torch.tensor.") -> None:
    """Raise unless the value is a real number or a tensor of real numbers, at least one."""
    if not isinstance(value, Tensor):
        if not is_real(value):
            got = type(value).__name__
            raise InputTypeError(f"{name} must be a real number or a tensor of real numbers, got {got}. {hint}")
    elif not value.is_floating_point():
        raise InputTypeError(f"{name} must be real, got a tensor of dtype {value.dtype}. Use float32 or float64.")
    elif value.numel() == 0:
        raise InputError(f"{name} has shape {tuple(value.shape)} and holds no numbers; at least one is needed.")


def valued(name: str, value: Tensor) -> None:
    """Raise for a tensor on the device meta, such as one of a model that was made there."""
    if value.is_meta:
        raise InputTypeError(
            f"{name} is on the device meta, where tensors have no values. Give a model that was made or moved there "
            "values first: model.to_empty(device=...), then model.load_state_dict(...)."
        )


def tensor(name: str, value: Any, also_complex: bool = False) -> None:
    """Raise unless the value is a tensor of floating-point numbers, or of complex ones where these are allowed."""
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{name} must be a tensor, got {type(value).__name__}. Use torch.tensor.")
    if not (value.is_floating_point() or (also_complex and value.is_complex())):
        raise InputTypeError(f"{name} must not be a tensor of dtype {value.dtype}. Use float32 or float64.")


def numbers(name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A number, nested lists of numbers, an array or a tensor, as a tensor; Python's numbers get this dtype."""
    try:
        return torch.as_tensor(_readable(name, value), dtype=None if hasattr(value, "dtype") else dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"{name} must be numbers (a tensor, an array or a list): {error}") from error


def _readable(name: str, value: Any) -> Any:
    """An array of NumPy, or a column or table that gives one, as PyTorch takes it; masked entries are NaN.

    PyTorch ignores masks, reads a column of pandas by its labels, and rounds arrays of objects to its default dtype.
    """
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    if hasattr(value, "filled"):
        value = (value if value.dtype.kind in "fc" else value.astype(float)).filled(math.nan)
    array = value.__array__()
    if array.dtype.kind in "mM":
        raise InputTypeError(
            f"{name} are dates, and must be numbers. Count from the first one, in a unit: "
            "(dates - dates[0]) / numpy.timedelta64(1, 'D')."
        )
    if array.dtype.kind == "O" or array.dtype.name in ("longdouble", "float128", "float96"):
        return array.astype(float, order="C")
    shared = array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
    return array if shared else array.astype(array.dtype.newbyteorder("="), order="C")


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
