"""One look for every figure: readable on a light and on a dark page."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, PURPLE, GREY = "#4c8dff", "#ff8c42", "#2fb380", "#a371f7", "#8a8f98"


def panels(count: int, height: float = 3.4) -> tuple[Any, Any]:
    """A row of axes with the common look."""
    plt.rcParams.update(
        {
            "font.size": 10,
            "svg.fonttype": "path",
            "svg.hashsalt": "neuralfde",
            "text.color": GREY,
            "axes.labelcolor": GREY,
            "axes.edgecolor": GREY,
            "axes.titlesize": 10,
            "axes.titlecolor": GREY,
            "xtick.color": GREY,
            "ytick.color": GREY,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "lines.linewidth": 2,
            "figure.constrained_layout.use": True,
        }
    )
    fig, axes = plt.subplots(1, count, figsize=(4.6 * count, height))
    return fig, axes


def save(fig: Any, name: str) -> None:
    """Write ``name.svg`` next to the scripts, without a date in it."""
    fig.savefig(HERE / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(fig)
