"""The measurements of ``neuralfde fit``: columns of one table, or of several that repeat an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .report import Report
from .table_file import Table, read_table


@dataclass(frozen=True)
class Measured:
    """Times in their order, values (times, variables), what these are called, and what time is."""

    times: Tensor
    values: Tensor
    labels: tuple[str, ...]
    clock: str


def measured(file: str, skip: int, time: str, values: str, counts: Sequence[int], report: Report) -> Measured:
    """Columns by name or number of the table in ``file``, or in several joined by commas; ``counts``: how many."""
    if not file:
        raise InputError("this command needs a file: neuralfde fit FILE, a table with times and measurements.")
    paths = [file] if Path(file).exists() else file.split(",")
    tables = [read_table(path, skip) for path in paths]
    first, names = tables[0], [w.strip() for w in values.split(",")] if values else []
    at = first.column(time)
    names = names or [first.names[k] if first.names else str(k + 1) for k in range(first.numbers.shape[1]) if k != at]
    if counts and len(names) not in counts:
        named = f" ({', '.join(first.names)})" if first.names else ""
        raise InputError(
            f"the model has {' or '.join(map(str, counts))} measured variables, and {first.path} has {len(names)} "
            f"columns beside the times{named}. Say which ones with --values."
        )
    numbers = torch.cat([table.columns([time, *names]) for table in tables])
    order = numbers[:, 0].argsort(stable=True)
    if len(tables) == 1 and not bool((order[1:] > order[:-1]).all()):
        report.message("note: the rows are not in the order of time; they are sorted")
    found = numbers[order]
    distinct = len(found[:, 0].unique())
    if distinct < 4:
        raise InputError(f"{file} has {distinct} distinct times; at least 4 are needed.")
    labels = tuple(_label(first, first.column(name)) for name in names)
    return Measured(found[:, 0], found[:, 1:], labels, _label(first, at) if first.names else "time")


def _label(table: Table, column: int) -> str:
    """A name with its unit, as far as the file has them."""
    name = table.names[column] if table.names else f"column {column + 1}"
    unit = table.units[column].strip("()[]") if table.units else ""
    return f"{name} ({unit})" if unit else name
