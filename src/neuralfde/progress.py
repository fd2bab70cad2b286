"""Progress bars for ``callback=``, one for the forward and one for the backward pass of a solve."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

#: ``callback(step, total)``, called after every step of a pass.
Callback = Callable[[int, int], None]


class Meter:
    """Turns ``callback(step, total)`` into one bar per pass; a step lower than the last one begins a new pass."""

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

    def close(self) -> None:
        """End the current bar, if there is one."""
        if self._bar is not None:
            self._end(self._bar)
        self._bar, self._at = None, -1


def tqdm_meter(**options: Any) -> Meter:
    """A `tqdm` bar; options are tqdm's own (``desc``, ``leave``, ``file``, …)."""
    tqdm = importlib.import_module("tqdm.auto").tqdm
    return Meter(lambda total: tqdm(total=total, **options), lambda bar, by: bar.update(by), lambda bar: bar.close())


def rich_meter(description: str = "solve", **options: Any) -> Meter:
    """A `rich` bar; options are those of ``rich.progress.Progress``."""
    progress = importlib.import_module("rich.progress").Progress

    def begin(total: int) -> Any:
        bar = progress(**options)
        bar.start()
        return bar, bar.add_task(description, total=total)

    return Meter(begin, lambda bar, by: bar[0].advance(bar[1], by), lambda bar: bar[0].stop())
