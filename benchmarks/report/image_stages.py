"""Three fractional stages trained with three kinds of gradients, and the figure of the front pages that shows them."""

from __future__ import annotations

from typing import Any

from neuralfde_experiments import image_stages

from .markdown import measured
from .record import Row, known, runs

QUESTION = "image-stages"
#: The part that the front pages show, once it was measured.
SHOWN = "fashion-mnist, β = 0.6"
LEFT = "Left: the lower the order, the longer the memory."
RIGHT = {
    False: "Right: gradient descent with the exact adjoint reaches the minimum;\nwith the adjoint of the paper it "
    "stops above it.",
    True: "Right: a network with three\nfractional stages trained on Fashion-MNIST. The exact adjoint trains as well "
    "as direct differentiation; the adjoint\nof the paper falls behind.",
}


def shown() -> list[Row]:
    """The rows that the front pages show; none where they were not measured yet."""
    return [row for run in known(QUESTION) if run["part"] == SHOWN for row in run["rows"]]


def table() -> str:
    """All that was trained."""
    found = [row | {"dataset": of(run, row)} for run in runs(QUESTION) for row in run["rows"]]
    return f"{image_stages.markdown(found)}\n\n{measured(*runs(QUESTION))}"


def of(run: Row, row: Row) -> str:
    """The images of a training and what else tells its part from others."""
    return str(run["part"]).replace(f", β = {row['order']:g}", "")


def hero(folder: str) -> str:
    """The figure of a front page, with what it says to those who cannot see it."""
    return f"![{LEFT} {RIGHT[bool(shown())]}]({folder}/hero.svg)"


def hero_figure() -> Any:
    import hero as beside  # a script in docs/figures

    return beside.picture(shown())


PLACES = {
    "image-stages": table,
    "hero-readme": lambda: hero("docs/figures"),
    "hero-home": lambda: hero("figures"),
}
FIGURES = {"image-stages.png": (QUESTION, lambda: image_stages.figure(shown() or runs(QUESTION)[0]["rows"]))}
if shown():
    FIGURES["hero.svg"] = (QUESTION, hero_figure)
