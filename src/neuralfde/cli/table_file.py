"""Tables of numbers from text files as people have them, read strictly: every cell is a number, or the file is refused.

Columns are separated by tabs, semicolons, commas or blanks; decimals are written with a point or, where commas do not
separate, with a comma. A line of names and a line of units may stand above the numbers. What can be read in two ways
that differ is refused too.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError, nearest

_SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ",", "blank": None}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class Table:
    """Numbers (rows, columns) with the names and units of the columns, where the file has them."""

    path: Path
    numbers: Tensor
    names: tuple[str, ...]
    units: tuple[str, ...]

    def column(self, which: str) -> int:
        """A column by its name, or by its number from 1 on."""
        width = self.numbers.shape[1]
        if which in self.names:
            return self.names.index(which)
        if which.isdecimal() and 1 <= int(which) <= width:
            return int(which) - 1
        known = f" {nearest(which, self.names)}" if self.names else ""
        raise InputError(f"{self.path} has no column {which!r}. Use a number from 1 to {width} or a name.{known}")

    def columns(self, which: Sequence[str]) -> Tensor:
        """Columns by name or number, in this order."""
        return self.numbers[:, [self.column(w) for w in which]]


def read_table(path: str | Path, skip: int = 0) -> Table:
    """Read a table; a file that is not one, or could be two different ones, is refused with the line that says so.

    Args:
        path: the file.
        skip: so many lines at its beginning are no part of the table.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error
    lines = [(k, line.strip(" \r")) for k, line in enumerate(_decoded(path, content).split("\n"), 1)]
    lines = [(k, line) for k, line in lines if k > skip and line.strip() and line.lstrip()[0] not in "#%"]
    if not lines:
        raise InputError(f"{path} has no rows. It takes a table of numbers, one row per line.")
    found: dict[str, Table] = {}
    refusals: list[tuple[int, int, str]] = []
    for word, separator in _SEPARATORS.items():
        for decimal in ".," if separator != "," else ".":
            try:
                table = _parsed(path, lines, separator, decimal)
            except _NotLikeThat as refusal:
                refusals.append((len(_cells(lines[-1][1], separator)), refusal.line, str(refusal)))
                continue
            if not any(torch.equal(table.numbers, other.numbers) for other in found.values()):
                found[f"{word}s between columns, decimal {'point' if decimal == '.' else 'comma'}"] = table
    if len(found) > 1:
        raise InputError(f"{path} can be read in more than one way: {'; '.join(found)}. Use tabs between its columns.")
    if not found:
        _, line, reason = max(refusals, key=lambda refusal: refusal[:2])
        raise InputError(
            f"line {line} of {path} is not a row of the table: {reason}. Correct it, or leave it out with --skip."
        )
    return next(iter(found.values()))


class _NotLikeThat(Exception):
    """A file is no table if it is read in this way."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def _decoded(path: Path, content: bytes) -> str:
    """Text in UTF-8, UTF-16 with its mark, or else Windows' western encoding; line ends of any system become one."""
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    if "\0" in text or "\ufffd" in text:
        raise InputError(f"{path} is not a text file. It takes a table of numbers as text, such as CSV.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(path: Path, lines: list[tuple[int, str]], separator: str | None, decimal: str) -> Table:
    rows: list[list[float]] = []
    above: list[list[str]] = []
    cells = [(number, _cells(line, separator)) for number, line in lines]
    while len(cells[0][1]) > 1 and all(not line[-1] for _, line in cells):  # every line ends with a separator
        cells = [(number, line[:-1]) for number, line in cells]
    for number, line in cells:
        values = [_number(cell, decimal) for cell in line]
        if None not in values:
            rows.append([v for v in values if v is not None])
            if len(values) == 1:
                raise _NotLikeThat(number, "it has one column, and a table has two or more")
            if len(rows[-1]) != len(rows[0]):
                raise _NotLikeThat(number, f"it has {len(rows[-1])} columns, the first row has {len(rows[0])}")
        elif rows or len(above) == 2 or all(_number(c, ".") is not None or _number(c, ",") is not None for c in line):
            bad = line[values.index(None)]
            raise _NotLikeThat(number, f"{bad[:40]!r} is not a number" if bad else "a number is missing")
        else:
            above.append(line)
    if not rows:
        raise _NotLikeThat(cells[-1][0], "there are no numbers")
    width = len(rows[0])
    names, units = ([*above, [], []])[:2]
    return Table(
        path,
        torch.tensor(rows, dtype=torch.float64),
        tuple(names) if len(names) == width and len(set(names)) == width else (),
        tuple(units) if len(units) == width else (),
    )


def _cells(line: str, separator: str | None) -> list[str]:
    return [cell.strip().strip('"').strip() for cell in line.split(separator)]


def _number(cell: str, decimal: str) -> float | None:
    if decimal == ",":
        if "." in cell:
            return None
        cell = re.sub(r"(?<=\d),(?=\d)", ".", cell, count=1)
    found = float(cell) if _NUMBER.fullmatch(cell) else None
    return None if found is None or abs(found) == float("inf") else found
