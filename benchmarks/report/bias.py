"""How far off the gradient of the paper's adjoint is."""

from __future__ import annotations

from .markdown import measured, table
from .record import Row, rows, run


def found() -> list[Row]:
    """Errors as fractions: of a small network for each step, and of the paper's image model for each horizon.

    Those of the image model are against the exact adjoint on the same grid, in float32, and so it has no error itself.
    """
    images = [r for r in rows("horizons", "image model, GPU") if r["name"] == "paper"]
    return rows("bias", "small network") + [
        {"problem": f"image model, T = {r['t']:g}", "order": r["order"], "steps": r["steps"], "exact": None,
         "paper": r["gradient_error"]}
        for r in sorted(images, key=lambda r: r["t"])
    ]  # fmt: skip


def bias() -> str:
    """Errors of both adjoints."""
    lines = [
        [
            r["problem"],
            r["order"],
            r["steps"],
            _share(r["exact"]) if r["exact"] else "the reference",
            _share(r["paper"]),
        ]
        for r in found()
    ]
    both = measured(run("bias", "small network"), run("horizons", "image model, GPU"))
    return f"{table(['problem', 'β', 'steps', 'exact', 'paper'], lines)}\n\n{both}"


def _share(error: float) -> str:
    return f"{100 * error:.2g} %" if error < 1 else f"{100 * error:.0f} %"


def of_network() -> str:
    """The smallest and the largest error of the paper's gradient for the small network."""
    each = [100 * r["paper"] for r in found() if r["problem"].startswith("small network")]
    return f"{min(each):.0f} % to {max(each):.0f} %"


def of_images() -> str:
    """The same for the image model, as multiples of the true gradient."""
    each = [r["paper"] for r in found() if r["problem"].startswith("image model")]
    return f"{min(each):.2g} to {max(each):.2g} times the length of the true one"


PLACES = {"bias": bias, "bias-network": of_network, "bias-images": of_images}
