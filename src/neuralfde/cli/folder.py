"""A report that keeps everything in a folder, and can go on from what it finds there."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from .report import Report, Row


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
            write_json(out / "config.json", settings)

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

    @property
    def folder(self) -> Path:
        """See ``Report``."""
        return self.out

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
            write_json(self.out / "results.json", found)
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
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(plain(content), indent=indent) + "\n")
    os.replace(part, path)
