"""What an experiment tells the world while it runs, and what it can go on from after an interruption."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError

Row = dict[str, Any]


def option(default: Any, help: str) -> Any:
    """A field of a ``Config`` with the text its command-line option shows."""
    return dataclasses.field(default=default, metadata={"help": help})


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

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def progress(self, task: str, done: int, total: int, loss: float | None = None, text: str = "") -> None:
        """``done`` of ``total`` in the part called ``task``."""

    def message(self, text: str) -> None:
        """A line for a person."""

    def table(self, title: str, rows: list[Row], columns: tuple[str, ...]) -> None:
        """A table for a person, in the middle of a run."""

    def figure(self, name: str, figure: Any) -> None:
        """A matplotlib figure, to be kept as ``name.png``."""

    def checkpoint(self, key: str, state: Mapping[str, Any]) -> None:
        """What the case ``key`` can go on from."""

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


class FolderReport(Report):
    """Keeps everything in a folder: ``config.json``, ``results.json``, pictures and ``checkpoint.pt``.

    With ``resume`` the folder's finished rows and checkpoint are used; its configuration must be the same. Without
    ``writes`` it reads, and keeps pictures: of several processes one writes, and each draws the cases that it computed.
    """

    wants_figures = True

    def __init__(
        self, out: Path, name: str, config: Any, resume: bool = False, every: float = 5.0, writes: bool = True
    ) -> None:
        super().__init__()
        self.out, self.name, self.every, self.writes = out, name, every, writes
        self.began, self._written = time.monotonic(), -math.inf
        self._pending: dict[str, Any] | None = None
        self._old: dict[str, Row] = {}
        self._state: dict[str, Any] | None = None
        self.pictures: list[Path] = []
        settings = {"experiment": name, **dataclasses.asdict(config)}
        if resume:
            self._read(settings)
        if writes:
            out.mkdir(parents=True, exist_ok=True)
            _write(out / "config.json", settings)

    def _read(self, settings: Mapping[str, Any]) -> None:
        if not (self.out / "config.json").is_file():
            raise InputError(f"there is nothing to resume in {self.out}: it has no config.json. Leave out --resume.")
        before = json.loads((self.out / "config.json").read_text())
        changed = [k for k in settings if json.loads(json.dumps(settings[k])) != before.get(k)]
        if changed:
            raise InputError(
                f"the run in {self.out} had other settings: {', '.join(changed)}. Resume with the same ones, "
                "or choose another --out."
            )
        if (self.out / "results.json").is_file():
            rows = json.loads((self.out / "results.json").read_text())["rows"]
            self._old = {r["case"]: r for r in rows if "case" in r}
        if (self.out / "checkpoint.pt").is_file():
            self._state = torch.load(self.out / "checkpoint.pt", weights_only=True)

    def figure(self, name: str, figure: Any) -> None:
        """See ``Report``."""
        path = self.out / f"{name}.png"
        self.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        self.pictures.append(path)

    def checkpoint(self, key: str, state: Mapping[str, Any]) -> None:
        """See ``Report``; written every few seconds, and once more when the run is interrupted."""
        self._pending = {"case": key, **state}
        if time.monotonic() - self._written >= self.every:
            self.flush()

    def flush(self) -> None:
        """Write the latest checkpoint now."""
        if self._pending is not None and self.writes:
            part = self.out / "checkpoint.pt.part"
            torch.save(self._pending, part)
            os.replace(part, self.out / "checkpoint.pt")
            self._written, self._pending = time.monotonic(), None

    def restored(self, key: str) -> dict[str, Any] | None:
        """See ``Report``."""
        return self._state if self._state is not None and self._state["case"] == key else None

    def known(self, key: str) -> Row | None:
        """See ``Report``."""
        return self._old.get(key)

    def row(self, row: Row) -> None:
        """See ``Report``."""
        self.finish("running")

    def finish(self, status: str) -> dict[str, Any]:
        """Write ``results.json`` with a status: running, done or interrupted."""
        self.flush()
        found = {
            "experiment": self.name,
            "status": status,
            "seconds": round(time.monotonic() - self.began, 3),
            "targets": self.verdicts,
            "rows": self.rows,
        }
        if self.writes:
            _write(self.out / "results.json", found)
        return found


def plain(value: Any) -> Any:
    """Numbers that JSON has no name for (NaN, infinity) as None; tensors as lists."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write(path: Path, content: Any) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(plain(content), indent=2) + "\n")
    os.replace(part, path)
