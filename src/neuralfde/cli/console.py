"""Progress bars and tables for people. Needs rich, from the extra ``cli``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .report import Report, Row


class ConsoleReport(Report):
    """Shows bars with their latest values and the time left, and hands everything on to a report that keeps it.

    ``quiet``: no bars and no tables on the way, and messages go to stderr; ``silent``: no messages either.

    Once a signal is in ``arrived``, nothing more is kept: what it was raised into may have caught it, and gone on with
    something broken.
    """

    def __init__(
        self, kept: Report, console: Console, quiet: bool = False, silent: bool = False, arrived: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.kept, self.arrived = kept, arrived
        self.console = console
        self.wants_figures = kept.wants_figures
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),  # a name and a value fit beside it into 80 columns
            MofNCompleteColumn(),
            TextColumn("{task.fields[value]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or silent,
        )
        self.quiet, self.silent = quiet or silent, silent
        self.aside = Console(stderr=True) if quiet else console
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> ConsoleReport:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def _go_on(self) -> None:
        if self.arrived:
            raise KeyboardInterrupt

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        """See ``Report``."""
        self._go_on()
        told = "" if loss is None else f"loss {loss:.3e}"
        value = escape(", ".join(filter(None, (told, text))))
        if task not in self._tasks:
            self._tasks[task] = self.bars.add_task(escape(task), total=total, value=value)
        self.bars.update(self._tasks[task], completed=done, total=total, value=value)
        self.kept.progress(task, done, total, loss, text)

    def message(self, text: str) -> None:
        """See ``Report``."""
        if not self.silent:  # what is doubtful about a result is told without bars too
            self.aside.print(escape(text), highlight=False)
        self.kept.message(text)

    def table(self, title: str, rows: list[Row], columns: tuple[str, ...]) -> None:
        """See ``Report``."""
        if not self.quiet:
            self.console.print(table(rows, title, columns))

    def figure(self, name: str, figure: Any) -> None:
        """See ``Report``."""
        self.kept.figure(name, figure)

    def checkpoint(self, key: str, state: Any) -> None:
        """See ``Report``."""
        self._go_on()
        self.kept.checkpoint(key, state)

    def restored(self, key: str) -> dict[str, Any] | None:
        """See ``Report``."""
        return self.kept.restored(key)

    def known(self, key: str) -> Row | None:
        """See ``Report``."""
        return self.kept.known(key)

    def row(self, row: Row) -> None:
        """See ``Report``."""
        self._go_on()
        self.kept.rows.append(row)
        self.kept.row(row)

    def verdict(self, name: str, reached: bool, text: str = "") -> None:
        """See ``Report``."""
        super().verdict(name, reached, text)
        self.kept.verdicts[name] = bool(reached)

    @property
    def folder(self) -> Path | None:
        """See ``Report``."""
        return self.kept.folder


def table(rows: list[Row], title: str, columns: tuple[str, ...] = ()) -> Table:
    """Rows as a table: the columns asked for, or else every scalar; estimates are spread over columns."""
    flat = [_flat(row) for row in rows]
    if not columns:
        columns = tuple(dict.fromkeys(k for row in flat for k in row))[:9]
    columns = tuple(c for c in columns if any(row.get(c) is not None for row in flat))
    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)  # nine columns fit into 80
    for name in columns:
        number = all(isinstance(row.get(name), int | float | None) for row in flat)
        found.add_column(name.replace("_", " "), overflow="fold", justify="right" if number else "left")
    for row in flat:
        if sum(row.get(name) is not None for name in columns) < 2 < len(columns):
            continue  # a row of another kind, shown elsewhere
        found.add_row(*[_text(row.get(name)) for name in columns])
    return found


def _flat(row: Row) -> Row:
    found: Row = {}
    for key, value in row.items():
        if isinstance(value, dict):
            if key == "estimates":
                found.update({k: v for k, v in value.items() if isinstance(v, int | float)})
        elif not isinstance(value, list | tuple):
            found[key] = value
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))
