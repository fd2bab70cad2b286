"""What an experiment tells the world while it runs, and what it can go on from after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Report:
    """Keeps rows and verdicts in memory and shows nothing; the base of all others.

    An experiment calls ``case`` for each of its rows, ``progress`` inside long loops, ``checkpoint`` where
    it can go on from, ``figure`` for pictures and ``verdict`` for targets it set itself.
    """

    #: Whether pictures are kept; drawing one needs matplotlib.
    wants_figures = False

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.verdicts: dict[str, bool] = {}

    @property
    def folder(self) -> Path | None:
        """Where everything is kept; None where nothing is."""
        return None

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        """``done`` of ``total`` in the part called ``task``; a bar shows the loss or the text, the latest value."""

    def message(self, text: str) -> None:
        """A line for a person."""

    def table(self, title: str, rows: list[Row], columns: tuple[str, ...]) -> None:
        """A table for a person, in the middle of a run."""

    def figure(self, name: str, figure: Any) -> None:
        """A matplotlib figure, to be kept as ``name.png``."""

    def checkpoint(self, key: str, state: Mapping[str, Any]) -> None:
        """What the case ``key`` can go on from; tensors, numbers, texts, lists and dicts, copied at once."""

    def restored(self, key: str) -> dict[str, Any] | None:
        """The checkpoint of the case ``key`` from an earlier, interrupted run."""
        return None

    def known(self, key: str) -> Row | None:
        """The row of a case that an earlier run finished."""
        return None

    def case(self, key: str, compute: Callable[[], Row]) -> Row:
        """The row called ``key``: from an earlier run if that is resumed, otherwise computed and kept at once."""
        row = self.known(key)
        row = {"case": key, **compute()} if row is None else row
        self.rows.append(row)
        self.row(row)
        return row

    def row(self, row: Row) -> None:
        """Called once for each finished row."""

    def verdict(self, name: str, reached: bool, text: str = "") -> None:
        """Whether a target was reached; one that was not makes the command end with status 3."""
        self.verdicts[name] = bool(reached)
        self.message(f"{'reached' if reached else 'NOT reached'}: {name}{' - ' + text if text else ''}")
