"""Tables of numbers from text files as people have them, read strictly: every cell is a number, or the file is refused.

Columns are separated by tabs, semicolons, commas or blanks; decimals are written with a point or, where commas do not
separate, with a comma. A line of names and a line of units may stand above the numbers. Where columns are chosen, the
others may hold anything. What can be read in two ways that differ is refused too.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError, nearest

_SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ",", "blank": None}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: What stands in place of a number that was not measured, at the beginning of a row of numbers.
_MISSING = ("nan", "na", "n/a", "null", "none")
#: A spreadsheet's line above the table, which says how columns are separated.
_DECLARED = re.compile(r'"?sep=.?"?', re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class GapError(InputError):
    """A cell without a number in a table that is read without gaps."""


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
        raise InputError(f"{self.path} has {_no_column(which, self.names, width)}")

    def columns(self, which: Sequence[str]) -> Tensor:
        """Columns by name or number, in this order."""
        return self.numbers[:, [self.column(w) for w in which]]


def _no_column(which: str, names: Sequence[str], width: int) -> str:
    known = f" {nearest(which, names)}" if names else ""
    return f"no column {which!r}. Use a number from 1 to {width} or a name.{known}"


def read_table(path: str | Path, skip: int = 0, columns: Sequence[str] = (), gaps: bool = False) -> Table:
    """Read a table; a file that is not one, or could be two different ones, is refused with the line that says so.

    Args:
        path: the file.
        skip: so many lines at its beginning are no part of the table.
        columns: the names or numbers of the columns to read, in their order in the result; without any, all are read.
        gaps: cells that are empty or say that nothing was measured (NaN, NA, N/A, null, none) are NaN, not refused.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error
    lines = [(k, line.strip(" \r")) for k, line in enumerate(_decoded(path, content).split("\n"), 1)]
    lines = [(k, line) for k, line in lines if k > skip and line.strip() and line.lstrip()[0] not in "#%"]
    lines = lines[1:] if lines and _DECLARED.fullmatch(lines[0][1].strip()) else lines
    if not lines:
        raise InputError(f"{path} has no rows. It takes a table of numbers, one row per line.")
    found: dict[str, Table] = {}
    refusals: list[tuple[int, _NotLikeThat]] = []
    for word, separator in _SEPARATORS.items():
        for decimal in ".," if separator != "," else ".":
            try:
                table = _parsed(path, lines, separator, decimal, columns, gaps)
            except _NotLikeThat as refusal:
                refusals.append((_regular(lines, separator), refusal))
                continue
            if not any(_equal(table.numbers, other.numbers) for other in found.values()):
                found[f"{word}s between columns, decimal {'point' if decimal == '.' else 'comma'}"] = table
    if len(found) > 1:
        raise InputError(f"{path} can be read in more than one way: {'; '.join(found)}. Use tabs between its columns.")
    if not found:
        _, why = max(refusals, key=lambda pair: (pair[0], pair[1].line, pair[1].numbers))
        if isinstance(why, _NoSuchColumn):
            raise InputError(f"line {why.line} of {path} has {why} Lines above it are left out with --skip.")
        raise (GapError if why.gap else InputError)(
            f"line {why.line} of {path} is not a row of the table: {why}. Correct or delete it, leave out lines "
            "above the table with --skip, or choose columns by name or number: the others may hold anything."
        )
    return next(iter(found.values()))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _regular(lines: list[tuple[int, str]], separator: str | None) -> int:
    """How many lines have as many cells as the last one, if these are several: a sign that this separates columns."""
    widths = [len(_cells(line, separator)) for _, line in lines]
    return widths.count(widths[-1]) if widths[-1] > 1 else 0


class _NotLikeThat(Exception):
    """A file is no table if it is read in this way."""

    def __init__(self, line: int, reason: str, numbers: int = 0, gap: bool = False) -> None:
        super().__init__(reason)
        self.line, self.numbers = line, numbers  # where it was found out, and how many cells there are numbers
        self.gap = gap  # whether nothing but a measurement is missing


class _NoSuchColumn(_NotLikeThat):
    """A column that is asked for is not in the first line, or is there more than once."""


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


def _parsed(
    path: Path, lines: list[tuple[int, str]], separator: str | None, decimal: str, columns: Sequence[str], gaps: bool
) -> Table:
    rows: list[list[float]] = []
    above: list[list[str]] = []
    cells = [(number, _cells(line, separator)) for number, line in lines]
    while len(cells[0][1]) > 1 and all(not line[-1] for _, line in cells):  # every line ends with a separator
        cells = [(number, line[:-1]) for number, line in cells]
    if columns:
        cells = _chosen(cells, columns)
    for number, line in cells:
        values = [_number(cell, decimal) for cell in line]
        if gaps and None in values and (rows or _is_a_row(line, bool(above))):
            values = [math.nan if _is_missing(cell) else value for cell, value in zip(line, values, strict=True)]
        if None not in values:
            rows.append([v for v in values if v is not None])
            if len(values) == 1:
                raise _NotLikeThat(number, "it has one column, and a table has two or more")
            if len(rows[-1]) != len(rows[0]):
                raise _NotLikeThat(number, f"it has {len(rows[-1])} columns, the first row has {len(rows[0])}")
        elif rows or len(above) == 2 or _is_a_row(line, bool(above)):
            bad, good = line[values.index(None)], len(values) - values.count(None)
            gap = _is_missing(bad) and not gaps
            raise _NotLikeThat(number, f"{bad[:40]!r} is not a number" if bad else "a number is missing", good, gap)
        else:
            above.append(line)
    rows = [row for row in rows if not all(map(math.isnan, row))]
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


def _chosen(cells: list[tuple[int, list[str]]], columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Of every line the cells of these columns."""
    number, first = cells[0]
    names = [] if _is_a_row(first, False) else first
    for which in columns:
        if which not in names and not (which.isdecimal() and 1 <= int(which) <= len(first)):
            raise _NoSuchColumn(number, _no_column(which, names, len(first)))
        if names.count(which) > 1:
            raise _NoSuchColumn(number, f"{names.count(which)} columns {which!r}. Choose one by its number.")
    for number, line in cells:
        if len(line) != len(first):
            raise _NotLikeThat(number, f"it has {len(line)} columns, the first line has {len(first)}")
    at = [names.index(which) if which in names else int(which) - 1 for which in columns]
    return [(number, [line[k] for k in at]) for number, line in cells]


def _is_missing(cell: str) -> bool:
    return not cell or cell.lower() in _MISSING


def _is_a_row(line: list[str], below: bool) -> bool:
    """Whether a line that is not all numbers has to be one of the table, ``below`` another that is none.

    Names may be numbers (a dose), but not the first of them, and units may be 1, but not beside a gap.
    """
    given = [_number(cell, ".") is not None or _number(cell, ",") is not None for cell in line]
    if given[0] or all(given) or (line[0].lower() in _MISSING and all(given[1:])):
        return True
    numbers = [cell for cell, is_number in zip(line, given, strict=True) if is_number]
    return below and bool(numbers) and not (all(line) and set(numbers) == {"1"})


def _cells(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return [cell.strip('"') for cell in line.split()]
    quoted = '"' in line  # quotes protect a separator
    (found,) = csv.reader([line], delimiter=separator, skipinitialspace=True) if quoted else [line.split(separator)]
    return [cell.strip() for cell in found]


def _number(cell: str, decimal: str) -> float | None:
    if decimal == ",":
        if "." in cell:
            return None
        cell = re.sub(r"(?<=\d),(?=\d)", ".", cell, count=1)
    found = float(cell) if _NUMBER.fullmatch(cell) else None
    return None if found is None or abs(found) == float("inf") else found
