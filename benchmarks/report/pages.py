"""Pages hold places, ``<!-- name:start -->...<!-- name:end -->``, within a line or on lines of their own.

What stands between is replaced by what the function of that name makes of the result files. Pictures are drawn from
them too, and name the rows they were drawn from by a digest, so that a stale one is noticed.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import (
    adaptive,
    bias,
    campaign,
    discovery,
    engine,
    faults,
    forecasting,
    graphs_accuracy,
    graphs_cost,
    graphs_filter,
    graphs_order,
    horizons,
    image_stages,
    images_accuracy,
    images_cost,
    kernel,
    markdown,
    pde,
    peers,
    peers_gpu,
    solver,
    summary,
    work_precision,
)
from .record import RESULTS

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "figures"
PLACE = re.compile(r"<!-- (?P<name>[\w-]+):start -->(?P<old>.*?)<!-- (?P=name):end -->", re.S)
MODULES = (adaptive, bias, campaign, discovery, engine, faults, forecasting, graphs_accuracy, graphs_cost,
           graphs_filter, graphs_order, horizons, image_stages, images_accuracy, images_cost, kernel, markdown, pde,
           peers, peers_gpu, solver, summary, work_precision)  # fmt: skip
PLACES: dict[str, Callable[[], str]] = {k: v for m in MODULES for k, v in m.PLACES.items()}
#: by the name of the picture: the question it shows, and what draws it
FIGURES: dict[str, tuple[str, Callable[[], Any]]] = {
    k: v for m in MODULES for k, v in getattr(m, "FIGURES", {}).items()
}


def pages() -> list[Path]:
    """Every page with places."""
    return [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(page: str) -> str:
    """The page with every place filled anew."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in PLACES:
            raise SystemExit(f"there is no place {name!r}; known: {', '.join(PLACES)}")
        text = PLACES[name]().strip()
        text = f"\n\n{text}\n\n" if match["old"].startswith("\n") else text
        return f"<!-- {name}:start -->{text}<!-- {name}:end -->"

    return PLACE.sub(fill, page)


def digest(question: str) -> str:
    """What a picture of this question has to name."""
    return f"{question} {hashlib.sha256((RESULTS / f'{question}.json').read_bytes()).hexdigest()[:16]}"


def draw(name: str) -> None:
    """Draw a picture anew; the digest is in its metadata."""
    import matplotlib as mpl

    sys.path.append(str(PICTURES))
    import style  # beside the pictures

    question, figure = FIGURES[name]
    about: dict[str, Any] = {"Description": digest(question)}
    if name.endswith(".svg"):
        about["Date"] = None
    with mpl.rc_context({**style.look(style.GREY), "figure.constrained_layout.use": False}):  # on light and dark pages
        figure().savefig(PICTURES / name, dpi=130, metadata=about, transparent=True)


def stale_pictures() -> list[str]:
    """Pictures that were drawn from other rows than those of today; nothing to draw is none."""
    return [
        name
        for name, (question, _) in FIGURES.items()
        if (RESULTS / f"{question}.json").is_file()
        and (not (PICTURES / name).is_file() or digest(question).encode() not in (PICTURES / name).read_bytes())
    ]
