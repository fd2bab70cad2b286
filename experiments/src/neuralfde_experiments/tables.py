"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from neuralfde.cli.experiment import Report


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]], numbers: int = 0) -> str:
    """A Markdown table without a final line break; the last ``numbers`` columns are right-aligned."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "\n".join("| " + " | ".join(str(cell) for cell in cells) + " |" for cells in [head, rule, *rows])


def keep_table(report: Report, name: str, text: str) -> None:
    """Show a table and write it as ``name.md`` into the report's folder, if it has one."""
    report.message(text)
    if report.folder is not None:
        (report.folder / f"{name}.md").write_text(text, encoding="utf-8")
