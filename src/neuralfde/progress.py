"""Progress bars for ``callback=``, one for the forward and one for the backward pass of a solve."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

#: ``callback(step, total)``, called after every step of a pass.
Callback = Callable[[int, int], None]


class Meter:
    """Turns ``callback(step, total)`` into one bar per pass; a step lower than the last one begins a new pass.

    A copy, or a meter from a file, begins with a new bar.
    """

    def __init__(self, begin: Callable[[int], Any], move: Callable[[Any, int], None], end: Callable[[Any], None]):
        self._begin, self._move, self._end = begin, move, end
        self._bar: Any = None
        self._at = -1

    def __call__(self, step: int, total: int) -> None:
        """Move to ``step`` of ``total``."""
        if self._bar is None or step <= self._at:
            self.close()
            self._bar, self._at = self._begin(total), 0
        self._move(self._bar, step - self._at)
        self._at = step
        if step == total:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without the bar, which belongs to this process."""
        return {**self.__dict__, "_bar": None, "_at": -1}

    def close(self) -> None:
        """End the current bar, if there is one."""
        if self._bar is not None:
            self._end(self._bar)
        self._bar, self._at = None, -1


def tqdm_meter(**options: Any) -> Meter:
    """A `tqdm` bar; options are tqdm's own (``desc``, ``leave``, ``file``, …)."""
    importlib.import_module("tqdm.auto")  # or say now that it is missing
    return Meter(partial(_begin_tqdm, options), _move_tqdm, _end_tqdm)


def _begin_tqdm(options: dict[str, Any], total: int) -> Any:
    return importlib.import_module("tqdm.auto").tqdm(total=total, **options)


def _move_tqdm(bar: Any, by: int) -> None:
    bar.update(by)


def _end_tqdm(bar: Any) -> None:
    bar.close()


def rich_meter(description: str = "solve", **options: Any) -> Meter:
    """A `rich` bar; options are those of ``rich.progress.Progress``."""
    importlib.import_module("rich.progress")
    return Meter(partial(_begin_rich, description, options), _move_rich, _end_rich)


def _begin_rich(description: str, options: dict[str, Any], total: int) -> Any:
    bar = importlib.import_module("rich.progress").Progress(**options)
    bar.start()
    return bar, bar.add_task(description, total=total)


def _move_rich(bar: Any, by: int) -> None:
    bar[0].advance(bar[1], by)


def _end_rich(bar: Any) -> None:
    bar[0].stop()
