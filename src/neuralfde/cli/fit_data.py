"""The measurements of ``neuralfde fit``: columns of one table, or of several that repeat an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .report import Report
from .table_file import GapError, Table, read_table


@dataclass(frozen=True)
class Measured:
    """Times in their order, values (times, variables) with NaN for gaps, what these are called, and what time is."""

    times: Tensor
    values: Tensor
    labels: tuple[str, ...]
    clock: str


def measured(
    file: str, skip: int, time: str, values: str, counts: Sequence[int], report: Report,
    gaps: bool = False, since: float | None = None, until: float | None = None,
) -> Measured:  # fmt: skip
    """Columns by name or number of the table in ``file``, or in several joined by commas; ``counts``: how many.

    Rows outside ``[since, until]`` are left out, and with ``gaps`` those without a time or without any measurement.
    """
    if not file:
        raise InputError("this command needs a file: neuralfde fit FILE, a table with times and measurements.")
    paths = [file] if Path(file).exists() else file.split(",")
    names = [w.strip() for w in values.split(",")] if values else []
    first = _picked(paths[0], skip, time, names, gaps)
    if counts and len(first.names) - 1 not in counts:
        raise InputError(
            f"the model has {' or '.join(map(str, counts))} measured variables, and {first.path} has "
            f"{len(first.names) - 1} columns beside the times ({', '.join(first.names[1:])}). "
            "Say which ones with --values."
        )
    tables = [first, *(_picked(path, skip, time, names, gaps) for path in paths[1:])]
    for table in tables:
        if table.names != first.names:
            raise InputError(
                f"{table.path} has the columns {', '.join(table.names)}, and {first.path} {', '.join(first.names)}. "
                "Files that repeat an experiment have the same columns; choose them with --time and --values."
            )
    numbers = _left(torch.cat([table.numbers for table in tables]), since, until, report)
    order = numbers[:, 0].argsort(stable=True)
    if len(tables) == 1 and not bool((order[1:] > order[:-1]).all()):
        report.message("note: the rows are not in the order of time; they are sorted")
    found = numbers[order]
    distinct = len(found[:, 0].unique())
    if distinct < 4:
        some = "" if since is None and until is None else " in the range of --since and --until"
        raise InputError(f"{file} has {distinct} distinct times{some}; at least 4 are needed.")
    clock, *labels = first.names
    return Measured(found[:, 0], found[:, 1:], tuple(labels), clock)


def _left(numbers: Tensor, since: float | None, until: float | None, report: Report) -> Tensor:
    """The rows in the range of times that have a time and something measured; what is left out is told."""
    times, values = numbers[:, 0], numbers[:, 1:]
    early = times < since if since is not None else torch.zeros_like(times, dtype=torch.bool)
    late = times > until if until is not None else torch.zeros_like(times, dtype=torch.bool)
    empty = (times.isnan() | values.isnan().all(1)) & ~early & ~late
    left = numbers[~(early | late | empty)]
    cells = int(left[:, 1:].isnan().sum())
    counts = {
        "row # before --since": int(early.sum()),
        "row # after --until": int(late.sum()),
        "row # without a time or a measurement": int(empty.sum()),
        "single cell # without a measurement": cells,
    }
    told = [f"{n} {text.replace(' #', 's' if n > 1 else '')}" for text, n in counts.items() if n]
    if told:
        report.message(f"note: left out: {', '.join(told)}; rows that are fitted: {len(left)}")
    return left


def _picked(path: str, skip: int, time: str, values: list[str], gaps: bool) -> Table:
    """The times and then the measurements of a table, each column with a name, and with its unit if it has one."""
    try:
        table = read_table(path, skip, [time, *values] if values else (), gaps)
    except GapError as error:
        raise InputError(f"{error} The option --gaps leaves out cells without a number.") from error
    if values:
        at = [*range(1 + len(values))]
        names = table.names or tuple("time" if k == 0 else f"column {values[k - 1]}" for k in at)
    else:
        clock, width = table.column(time), table.numbers.shape[1]
        at = [clock, *(k for k in range(width) if k != clock)]
        names = table.names or tuple("time" if k == clock else f"column {k + 1}" for k in range(width))
    units = [unit.strip("()[]") for unit in table.units or [""] * len(names)]
    named = tuple(f"{names[k]} ({units[k]})" if units[k] else names[k] for k in at)
    return Table(table.path, table.numbers[:, at], named, ())
