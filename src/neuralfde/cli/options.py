"""Options of an experiment: each says where it is declared which values it takes, and ``check`` holds all to it."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..door.names import ADJOINTS as _ADJOINTS
from ..door.names import HISTORIES as _HISTORIES
from ..door.names import METHODS as _METHODS
from ..door.names import STORAGES as _STORAGES
from ..errors import InputError, InputTypeError, nearest

ADJOINTS, METHODS, STORAGES = tuple(_ADJOINTS), tuple(_METHODS), tuple(_STORAGES)
#: A window needs its length, which a name cannot say.
HISTORIES = tuple(name for name in _HISTORIES if name != "window")
#: Whole numbers end here unless an option says otherwise: seeds and counts beyond it overflow somewhere.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Range:
    """Finite numbers from ``least`` (or above ``above``) to ``most`` (or below ``below``)."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        ends = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{word} {end:g}" for word, end in ends if _is_told(end)) or "finite"


def _is_told(end: float | None) -> bool:
    return end is not None and end != LARGEST and math.isfinite(end)


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
    reads: Callable[[str], object] | None = None,
    positional: bool | str = False,
) -> Any:
    """A field of a ``Config``: its default, the text of the help, and the values that it takes beside the default.

    Args:
        default: always accepted, so that a value outside the range can stand for "as suits the rest".
        help: what ``--help`` says.
        least: the lower end of the range of a number, which belongs to it; without any lower end it is 0.
        above: a lower end that does not belong to it.
        most: the upper end, which belongs to it.
        below: an upper end that does not belong to it.
        choices: the words that a text may be; none: any text.
        reads: called with a text before anything starts; raises ``InputError`` or ``ValueError`` where it is wrong.
        positional: on the command line it stands without its name; ``"several"``: as many texts, joined by commas.
    """
    start = 0 if least is None and above is None else least
    taken = {"range": Range(start, above, most, below), "choices": tuple(choices), "reads": reads}
    return dataclasses.field(default=default, metadata={"help": help, "positional": positional, **taken})


def device_option(default: str = "auto") -> Any:
    """The field ``device`` of a ``Config``: a GPU that is asked for and not there is refused before anything starts."""
    text = "cpu or cuda" if default == "cpu" else "auto, cpu or cuda"
    return option(default, text, choices=("auto", "cpu", "cuda"), reads=place)


def place(device: str) -> torch.device:
    """Where to compute: ``cpu``, ``cuda``, or with ``auto`` the GPU if there is one."""
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise InputError("torch finds no GPU on this machine. Use --device cpu, or a build of torch with CUDA.")
    return torch.device("cuda" if there and device != "cpu" else "cpu")


def writable(path: str) -> None:
    """A reader of paths that will be written: refused where the nearest folder that exists cannot be written to."""
    above = next(p for p in Path(path).absolute().parents if p.exists())
    if Path(path).is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"nothing can be written there ({above}). Choose another place.")


def numbers(kind: type[int] | type[float] = float, **ends: float) -> Callable[[str], list[Any]]:
    """A reader of numbers joined by commas, each within a range; see ``Range`` for its ends."""
    allowed = Range(**ends)

    def read(text: str) -> list[Any]:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            raise ValueError("it must be numbers joined by commas") from None
        if not all(value in allowed for value in found):
            raise ValueError(f"each number must be {allowed}")
        return found

    return read


def pairs(text: str) -> dict[str, float]:
    """A reader of ``name=value,name=value``."""
    parts = [part.partition("=") for part in text.split(",")]
    try:
        return {name.strip(): numbers()(value)[0] for name, _, value in parts}
    except ValueError:
        raise ValueError("it must be name=value,name=value with numbers as values") from None


def words(known: Sequence[str], separator: str = ",") -> Callable[[str], list[str]]:
    """A reader of words from a list, joined by a separator."""

    def read(text: str) -> list[str]:
        found = [part.strip() for part in text.split(separator)]
        for word in found:
            if word not in known:
                raise InputError(f"there is no {word!r}. {nearest(word, known)}")
        return found

    return read


@dataclass(frozen=True)
class Options:
    """The base of every ``Config``: one with a value that its option does not take cannot be made."""

    def __post_init__(self) -> None:
        check(self)


def check(config: Any) -> None:
    """Refuse the first option whose value is of another type, out of its range or not readable.

    Fields that were not made by ``option`` are not looked at.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if "range" not in field.metadata:
            continue
        if value != field.default or type(value) is not type(field.default):
            _check_type(field, hints[field.name], value)
            _check_value(field, value)


def flag(field: dataclasses.Field[Any]) -> str:
    """The name of an option on the command line."""
    return "--" + field.name.replace("_", "-")


def described(field: dataclasses.Field[Any], hint: Any) -> str:
    """The text of an option's help, with the range of a number."""
    text = str(field.metadata.get("help", ""))
    return f"{text} [{field.metadata['range']}]" if _is_number(hint) and "range" in field.metadata else text


def _is_number(hint: Any) -> bool:
    return bool({int, float} & {hint, *typing.get_args(hint)})


def _check_type(field: dataclasses.Field[Any], hint: Any, value: Any) -> None:
    kinds = typing.get_args(hint) or (hint,)
    fits = type(value) in kinds or (type(value) is int and float in kinds)
    if not fits:
        names = " or ".join("nothing" if k is type(None) else k.__name__ for k in kinds)
        raise InputTypeError(f"{flag(field)} takes {names}, got {value!r}. Leave it out for {field.default!r}.")


def _check_value(field: dataclasses.Field[Any], value: Any) -> None:
    taken = field.metadata
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        if value not in taken["range"] or (isinstance(value, int) and value > LARGEST):
            raise _refused(field, value, f"it must be {taken['range']}")
        return
    if taken["choices"] and value not in taken["choices"]:
        raise InputError(f"{flag(field)} {value!r} is unknown. {nearest(value, taken['choices'])}")
    if "\0" in value:
        raise _refused(field, value, "it holds a NUL character")
    if taken["reads"] is not None:
        _read(field, value)


def _read(field: dataclasses.Field[Any], value: str) -> None:
    try:
        field.metadata["reads"](value)
    except InputError as error:
        raise InputError(f"{flag(field)} {value!r}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise _refused(field, value, str(error)) from error


def _refused(field: dataclasses.Field[Any], value: Any, why: str) -> InputError:
    default = "its default" if field.default in ("", None) else repr(field.default)
    return InputError(f"{flag(field)} {value!r} cannot be used: {why}. Leave the option out for {default}.")
