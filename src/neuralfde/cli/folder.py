"""A report that keeps everything in a folder, and can go on from what it finds there."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import json
import math
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from . import checkpoint
from .checkpoint import write_whole
from .report import Report, Row


class FolderReport(Report):
    """Keeps everything in a folder: ``config.json``, ``results.json``, pictures and ``checkpoint.pt``.

    With ``resume`` the folder's finished rows and checkpoint are used; its configuration must be the same. All of one
    run, resumed or not, have its name in them, so that what an earlier run left there is not taken for this one's.
    Without ``writes`` it reads, and keeps pictures: of several processes one writes, and each draws its own cases.

    Attributes:
        notes: what a person should know about what was found there.
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
        self.run, self.notes = uuid.uuid4().hex, list[str]()
        self.pictures: list[Path] = []
        settings = {"experiment": name, **dataclasses.asdict(config)}
        try:
            if resume:
                self._read(settings)
            out.mkdir(parents=True, exist_ok=True)
            if writes:
                write_json(out / "config.json", {**settings, "run": self.run})
        except OSError as error:
            raise InputError(
                f"the folder {out} cannot be used: {error.strerror or error}. Choose another one with --out."
            ) from error

    def _read(self, settings: Mapping[str, Any]) -> None:
        if not (self.out / "config.json").is_file():
            raise InputError(f"there is nothing to resume in {self.out}: it has no config.json. Leave out --resume.")
        before = _read_json(self.out / "config.json")
        changed = [k for k in settings if json.loads(json.dumps(settings[k])) != before.get(k)]
        if changed:
            raise InputError(
                f"the run in {self.out} had other settings: {', '.join(changed)}. Resume with the same ones, "
                "or choose another --out."
            )
        self.run = str(before.get("run", self.run))
        if (self.out / "results.json").is_file():
            self._old = self._rows(_read_json(self.out / "results.json"))
        state, note = checkpoint.newest(self.out / "checkpoint.pt")
        self.notes += [note] if note else []
        if isinstance(state, dict) and state.get("run") == self.run:
            self._state = state
        elif state is not None:
            self.notes.append(f"{self.out / 'checkpoint.pt'} is of another run and is not used.")

    def _rows(self, found: Mapping[str, Any]) -> dict[str, Row]:
        """The finished rows in ``results.json``, if they are of this run."""
        rows = found.get("rows")
        if found.get("run") != self.run:
            self.notes.append(f"{self.out / 'results.json'} is of another run and is not used.")
            return {}
        if not isinstance(rows, list) or found.get("checksum") != _checksum(rows):
            raise InputError(
                f"the rows in {self.out / 'results.json'} are not those that were written there. Delete the file to "
                "compute them again."
            )
        return {r["case"]: r for r in rows if isinstance(r, dict) and "case" in r}

    @property
    def folder(self) -> Path:
        """See ``Report``."""
        return self.out

    def figure(self, name: str, figure: Any) -> None:
        """See ``Report``."""
        path, drawn = self.out / f"{name}.png", io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130)
        write_whole(path, drawn.getvalue())
        self.pictures.append(path)

    def checkpoint(self, key: str, state: Mapping[str, Any]) -> None:
        """See ``Report``; written every few seconds, and once more when the run is interrupted."""
        # a copy, which the training does not change while it waits to be written
        self._pending = {"run": self.run, "case": key, "state": copy.deepcopy(dict(state))}
        if time.monotonic() - self._written >= self.every:
            self.flush()

    def flush(self) -> None:
        """Write the latest checkpoint now."""
        if self._pending is not None and self.writes:
            checkpoint.save(self.out / "checkpoint.pt", self._pending)
            self._written, self._pending = time.monotonic(), None

    def restored(self, key: str) -> dict[str, Any] | None:
        """See ``Report``."""
        return self._state["state"] if self._state is not None and self._state.get("case") == key else None

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
            "rows": plain(self.rows),
        }
        if self.writes:
            own = {"run": self.run, "checksum": _checksum(found["rows"])}
            write_json(self.out / "results.json", {**found, **own})
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


def write_json(path: Path, content: Any, indent: int = 2) -> None:
    """Write a JSON file that is whole at every moment: a reader finds the old content or the new."""
    write_whole(path, (json.dumps(plain(content), indent=indent) + "\n").encode())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}). Delete it, or the whole folder, to begin anew.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is not what a run writes there. Choose another --out.")
    return found


def _checksum(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
