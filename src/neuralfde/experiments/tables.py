"""A table for people: shown, and kept beside the other results where there is a folder for them."""

from __future__ import annotations

from pathlib import Path

from .runtime import Report


def table(report: Report, name: str, markdown: str) -> None:
    """Show a Markdown table and write it as ``name.md`` into the report's folder, if it has one."""
    report.message(markdown)
    folder = getattr(report, "out", None)
    if folder is not None:
        (Path(folder) / f"{name}.md").write_text(markdown, encoding="utf-8")
