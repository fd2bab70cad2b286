"""Pages that need no other file: their style, tables and figures. Needs matplotlib, from the extra ``cli``."""

from __future__ import annotations

import html
import io
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .checkpoint import write_whole

BLUE, ORANGE = "#4c8dff", "#ff8c42"  # both are read on white and on black
INK = "#020301"  # in a drawn figure: the colour of the text around it
_STYLE = """:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:74rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #8884}
th:first-child,td:first-child{text-align:left}td{white-space:nowrap}
svg{max-width:100%;height:auto}h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem}p.note{opacity:.7}
section{display:grid;gap:0 2rem;align-items:start}section h2,section p,section.wide>*{grid-column:1/-1}
p{max-width:54rem}
@media(min-width:60rem){section{grid-template-columns:minmax(min-content,max-content) minmax(20rem,34rem)}}
@media(max-width:40rem){td,th{padding:.3rem .25rem;font-size:.75rem}td:first-child{white-space:normal}}
@media(prefers-color-scheme:dark){body{color:#d8dbe2;background:#1e2129}}"""


def write_html(path: Path, title: str, body: list[str]) -> Path:
    """A page that needs no other file."""
    text = "\n".join(body)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{text}\n</body></html>\n"
    )
    write_whole(path, page.encode())
    return path


def html_table(head: list[str], lines: list[list[str]]) -> str:
    """A table of texts."""
    cells = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in line) + "</tr>" for line in lines)
    return f"<table><tr>{cells}</tr>{rows}</table>"


def figure_style() -> AbstractContextManager[None]:
    """The look of figures that ``drawn`` puts into a page."""
    import matplotlib as mpl
    from cycler import cycler  # comes with matplotlib

    coloured = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    settings: Any = {
        **dict.fromkeys(coloured, INK),
        "axes.facecolor": "none",
        "axes.prop_cycle": cycler(color=(BLUE, ORANGE, "#2fb380", "#a371f7")),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 10,
        "figure.facecolor": "none",
        "legend.frameon": False,
        "svg.hashsalt": "neuralfde",
    }
    return mpl.rc_context(settings)


def drawn(figure: Any, alt: str) -> str:
    """A figure as a part of the page, in the colour of the text around it."""
    kept = io.StringIO()
    figure.savefig(kept, format="svg", metadata={"Date": None})
    svg = kept.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S).replace(INK, "currentColor")
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # a page needs none
    svg = re.sub(r' id="([^"]+)"', lambda m: m[0] if f"#{m[1]}" in svg else "", svg)  # two figures would share them
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt)}"', 1)
