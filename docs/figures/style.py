"""One look for every figure: readable on a light and on a dark page."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from neuralfde.cli.page import INK, drawn

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, PURPLE, GREY = (
    "#4c8dff",
    "#ff8c42",
    "#2fb380",
    "#a371f7",
    "#7d838d",
)
MORE = "#e5559d", "#c9a227", "#17a2b8", "#a0724e", "#e5484d", "#8fa3bf"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, *MORE)


def look(ink: str) -> dict[str, Any]:
    """Settings of matplotlib, with this colour for text and axes."""
    coloured = (
        "text.color",
        "axes.labelcolor",
        "axes.edgecolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    return {
        **dict.fromkeys(coloured, ink),
        "font.size": 10,
        "svg.fonttype": "path",
        "svg.hashsalt": "neuralfde",
        "axes.prop_cycle": mpl.cycler(color=COLOURS),
        "axes.titlesize": 10,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "none",
        "figure.figsize": (6, 3),
        "legend.frameon": False,
        "lines.linewidth": 2,
        "figure.constrained_layout.use": True,
    }


def for_pages() -> AbstractContextManager[None]:
    """The look of figures that a page draws itself."""
    return mpl.rc_context(look(INK))  # type: ignore[no-any-return]


def in_page(figure: Any) -> str:
    """A figure as a part of a page; its titles are what a screen reader says."""
    said = "; ".join(title for ax in figure.axes if (title := ax.get_title()))
    return drawn(figure, said or "figure").replace("<svg", '<svg class="drawn"', 1)


def panels(count: int, height: float = 3.4) -> tuple[Any, Any]:
    """A row of axes with the common look."""
    plt.rcParams.update(look(GREY))
    fig, axes = plt.subplots(1, count, figsize=(4.6 * count, height))
    return fig, axes


def save(fig: Any, name: str) -> None:
    """Write ``name.svg`` next to the scripts, without a date in it."""
    fig.savefig(HERE / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(fig)
