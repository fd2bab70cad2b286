"""Put measured tables where people read them: ``python benchmarks/readme.py`` after a benchmark has run."""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent


def between(path: Path, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- mark:start -->`` and ``<!-- mark:end -->``."""
    page = path.read_text()
    pattern = re.compile(rf"(<!-- {mark}:start -->\n).*?(<!-- {mark}:end -->)", re.S)
    if not pattern.search(page):
        raise SystemExit(f"{path.name} has no place marked {mark!r}")
    path.write_text(pattern.sub(lambda m: m[1] + "\n" + text.strip() + "\n\n" + m[2], page))


def core() -> str:
    """The table of the core, with the machine it was measured on."""
    machine = json.loads((HERE / "results" / "core.json").read_text())["machine"]
    where = f"{machine['cpu']}, {machine['cores']} threads, torch {machine['torch']}, {machine['date']}"
    return (HERE / "results" / "core.md").read_text() + f"\nMeasured by `python benchmarks/core.py` on: {where}."


def main() -> None:
    between(HERE / "README.md", "core", core())
    between(ROOT / "README.md", "benchmarks", core())


if __name__ == "__main__":
    main()
