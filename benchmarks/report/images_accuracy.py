"""Accuracies of the image model: the recipes reported, what else was tried, and the digits."""

from __future__ import annotations

import statistics
from typing import Any

from . import paper
from .markdown import measured, table
from .record import Row, rows, run, runs

TARGET = {"mnist": 0.33, "fashion-mnist": 7.0}
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
#: The step of the solver for which the targets are set, the paper's.
STEP = 0.1


def errors(found: Row) -> list[float]:
    return [r["test_error"] for r in sorted(found["rows"], key=lambda r: r["seed"])]


def trained(dataset: str) -> list[Row]:
    """The runs of a set that were trained on all its images and tested."""
    every = [r for r in runs("images-accuracy") if r["part"].startswith(f"{dataset}: ")]
    return [r for r in every if "test_error" in r["rows"][0]]


def reported(dataset: str) -> Row:
    """The run that the page reports."""
    return next(r for r in trained(dataset) if r.get("reported"))


def accuracy(found: list[Row]) -> str:
    """Test errors of the seeds and their mean, beside the paper's."""
    lines = []
    for r in found:
        s = r["settings"]
        name, mean = s["dataset"], statistics.mean(errors(r))
        target = f"≤ {TARGET[name]:.2f}: {'reached' if mean < TARGET[name] + 1e-9 else '**missed**'}"
        what = f"{NAMES[name]}, T={s['t']:g}, β={s['order']:g}, h={s['step']:g}"
        cells = [", ".join(f"{e:.2f}" for e in errors(r)), f"{mean:.2f}", target if s["step"] == STEP else "none"]
        lines.append([what, *cells, "{:.2f}, {:.2f}".format(*paper.IMAGE_ERROR[name]), *_spent(r)])
    head = ["set", "test error of each seed, %", "mean, %", "our target", "**the paper's**: adjoint, direct"]
    return f"{table([*head, 'epochs', 'minutes, all at once'], lines, right=1)}\n\n{measured(*found)}"


def _spent(found: Row) -> list[str]:
    epochs = statistics.mean(r["epochs"] for r in found["rows"])
    return [f"{epochs:.0f}", f"{max(r['seconds'] for r in found['rows']) / 60:.1f}"]


def recipes() -> str:
    """Every recipe for MNIST that was trained to its end and tested."""
    lines = []
    for r in trained("mnist"):
        images = " then ".join(kind.split("+")[0] for kind in r["settings"]["augment"].split(","))
        each = ", ".join(f"{e:.2f}" for e in errors(r))
        cells = [r["settings"].get("views", 1), f"`{images}`", each, f"{statistics.mean(errors(r)):.2f}"]
        lines.append([r["part"].removeprefix("mnist: "), *cells, *_spent(r)])
    head = ["recipe", "views of an image", "images", "test error of each seed, %", "mean, %", "epochs", "minutes"]
    return f"{table(head, lines, right=3)}\n\n{measured(*trained('mnist'))}"


def compared(dataset: str) -> str:
    """Recipes compared on training images held out, as far as each came in the time."""
    found = run("images-accuracy", f"{dataset}: recipes compared on held-out images")
    lines = [
        [r["recipe"], r["epoch"], f"{r['loss']:.4f}", f"{r['held_out_accuracy']:.2f}", f"{r['last_five']:.2f}",
         f"{r['held_out_loss']:.4f}"]
        for r in found["rows"]
    ]  # fmt: skip
    head = ["recipe", "epochs", "training loss", "held-out accuracy, %", "mean of the last five, %", "held-out loss"]
    return f"{table(head, lines, right=1)}\n\n{measured(found)}"


def digits() -> str:
    """Test accuracies of the seeds on the digits, and what they took."""
    found = run("images-accuracy", "digits: five seeds")
    lines = [[r["seed"], f"{r['test_accuracy']:.2f}", f"{r['epochs']:g}", f"{r['seconds']:.1f}"] for r in found["rows"]]
    mean = {k: statistics.mean(r[k] for r in found["rows"]) for k in ("test_accuracy", "seconds")}
    lines.append(["mean", f"{mean['test_accuracy']:.2f}", "", f"{mean['seconds']:.1f}"])
    return f"{table(['seed', 'test accuracy, %', 'epochs', 's'], lines, right=1)}\n\n{measured(found)}"


def mean_error(dataset: str) -> str:
    return f"{statistics.mean(errors(reported(dataset))):.2f}"


def figure() -> Any:
    """Training loss and accuracy of every reported training over the epochs."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes = picture.subplots(1, 2)
    for colour, name in enumerate(NAMES):
        for k, r in enumerate(reported(name)["rows"]):
            style = {"color": f"C{colour}", "linewidth": 1.0, "label": None if k else NAMES[name]}
            for axis, field in zip(axes, ("loss", "accuracy"), strict=True):
                axis.plot(range(1, len(r["curve"][field]) + 1), r["curve"][field], **style)
    for axis, label in zip(axes, ("training loss", "training accuracy, %"), strict=True):
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3, linewidth=0.5)
    axes[0].legend(frameon=False, fontsize=9)
    return picture


PLACES = {
    "images-accuracy": lambda: accuracy([reported(name) for name in NAMES]),
    "images-recipes": recipes,
    "images-compared-mnist": lambda: compared("mnist"),
    "images-compared-fashion-mnist": lambda: compared("fashion-mnist"),
    "images-recipe-count": lambda: str(
        len(rows("images-accuracy", "fashion-mnist: recipes compared on held-out images"))
    ),
    "digits": digits,
}
FIGURES = {"images-accuracy.png": ("images-accuracy", figure)}
