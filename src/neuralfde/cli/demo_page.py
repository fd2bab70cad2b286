"""The page that the demo leaves behind: each part with its table and its figure. Needs matplotlib."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import torch

from . import material
from .page import BLUE, ORANGE, drawn, figure_style, html_table, write_html
from .pelts import draw as draw_lynx
from .predator_prey import TRUTH
from .report import Row

_COLOURS = {"exact": BLUE, "paper": ORANGE}
Fits = dict[str, Any]


def write_page(folder: Path, rows: list[Row], fits: Fits, seed: int, seconds: float) -> Path:
    """Write ``report.html``; a resumed run draws what it fitted itself."""
    body = [
        "<h1>neuralfde: what it does, in one page</h1>",
        f'<p class="note">Made by <code>neuralfde demo</code> in {seconds:.0f} s.</p>',
    ]
    with figure_style():
        body += [_gradients(rows), _recovery(rows, fits), _wrong_model(rows, fits), _order(rows, fits)]
        body += [_lynx(rows, fits), _material(rows, fits, seed)]
    return write_html(folder / "report.html", "neuralfde demo", body)


def _of(rows: list[Row], part: str) -> list[Row]:
    return [r for r in rows if r.get("part") == part]


def _section(title: str, text: str, table: str, figure: Any) -> str:
    shown = "" if figure is None else drawn(figure, title)
    wide = ' class="wide"' if figure is not None and figure.get_figwidth() > 8 else ""
    return f"<section{wide}><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{table}{shown}</section>"


def _axis(**labels: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 3), layout="constrained")
    axis = figure.subplots()
    axis.set(**labels)
    axis.grid(alpha=0.25)
    return figure, axis


def _gradients(rows: list[Row]) -> str:
    mine = _of(rows, "gradient")
    figure, axis = _axis(xlabel="order", ylabel="relative error", title="error of the gradient")
    for name, colour in _COLOURS.items():
        errors = [max(r[f"{name}_error"], 1e-17) for r in mine]
        axis.semilogy([r["true_order"] for r in mine], errors, "o-", color=colour, label=f"{name} adjoint")
    axis.legend()
    lines = [[f"{r['true_order']:g}", f"{r['exact_error']:.1e}", f"{100 * r['paper_error']:.0f} %"] for r in mine]
    text = (
        "Error of the gradient of a trajectory loss in the four parameters of a predator-prey equation, relative to "
        "direct differentiation. The exact adjoint is exact to rounding; the paper's leaves out the singular part of "
        "the multiplier."
    )
    return _section("The gradient", text, html_table(["order", "exact adjoint", "paper's adjoint"], lines), figure)


def _estimates(row: Row) -> list[str]:
    return [f"{row['estimates'][n]:.4f}" for n in TRUTH]


def _recovery(rows: list[Row], fits: Fits) -> str:
    lines = [[r["case"], *_estimates(r), f"{100 * r['error']:.2f} %"] for r in _of(rows, "recovery")]
    lines.append(["truth", *(f"{v:.4f}" for v in TRUTH.values()), ""])
    figure = None
    if {"exact path", "paper path"} <= set(fits):
        figure, axis = _axis(xlabel="epoch", ylabel="worst parameter error (%)", title="on the way to the parameters")
        for name, colour in _COLOURS.items():
            paths = torch.tensor(fits[f"{name} path"]) / torch.tensor(list(TRUTH.values()))
            worst = 100 * (paths - 1).abs().amax(1)
            axis.semilogy(range(1, len(worst) + 1), worst, color=colour, label=name)
        axis.legend()
    text = (
        "Same data, same first guess, same optimiser (Adam, learning rate 0.01); only the gradient differs. The data "
        "come from a grid 25 times finer than that of the fit, whose own error is what remains. Where the model fits "
        "the data, both gradients arrive: a wrong one vanishes too where there is no error left."
    )
    table = html_table(["", *TRUTH, "worst error"], lines)
    return _section("Four parameters from clean data", text, table, figure)


def _wrong_model(rows: list[Row], fits: Fits) -> str:
    lines = [
        [r["case"].split(": ")[-1], *_estimates(r), f"{r['loss']:.6f}", f"{100 * r['error']:.2f} %"]
        for r in _of(rows, "wrong model")
    ]
    figure = None
    if fits.get("wrong: best fit"):
        figure, axis = _axis(xlabel="epoch", ylabel="loss above its minimum (%)", title="where each gradient stops")
        least = fits["wrong: best fit"][-1]
        for name, colour in _COLOURS.items():
            excess = [100 * max(v / least - 1, 1e-10) for v in fits.get(f"wrong: {name}", [])]
            axis.semilogy(range(1, len(excess) + 1), excess, color=colour, label=name)
        axis.legend()
    text = (
        "The order is taken to be 0.9 and is 0.6, so an error remains, as it does with every real measurement. The "
        "exact gradient leads to the least-squares fit; the paper's stops elsewhere."
    )
    table = html_table(["", *TRUTH, "loss", "from the best fit"], lines)
    return _section("When the model is not quite right", text, table, figure)


def _order(rows: list[Row], fits: Fits) -> str:
    (found,) = _of(rows, "order")
    lines = [
        [n, f"{v:.4f}", "[{:.4f}, {:.4f}]".format(*found["intervals"][n]), f"{found['truth'][n]:g}"]
        for n, v in found["estimates"].items()
    ]
    figure = fits["order"].plot(labels=["prey", "predator"]) if "order" in fits else None
    text = "Eight noisy trajectories, fitted by Levenberg-Marquardt on Jacobians of the solution."
    table = html_table(["unknown", "estimate", "95 % interval", "truth"], lines)
    return _section("Parameters and order from noisy data", text, table, figure)


def _forecasts(rows: list[Row]) -> str:
    lines = [
        [
            r["case"].removeprefix("material: "),
            str(r["fitted"]),
            f"{r['found_order']:.3f}",
            f"{r['train_rmse_log']:.3f}",
            f"{r['held_out_rmse_log']:.3f}",
        ]
        for r in rows
    ]
    return html_table(["model", "numbers fitted", "order", "error, fitted", "error, forecast"], lines)


def _lynx(rows: list[Row], fits: Fits) -> str:
    mine = _of(rows, "lynx")
    if not mine:
        return ""
    integer, free = (r["held_out_rmse_log"] for r in mine)
    told = (
        "Order 1 forecasts better, though the other is nearer to the fitted years, with one number more: an order "
        "below 1 damps the oscillation, which the first fifteen years suggest and the next six do not bear out."
        if integer < free
        else "The fractional order forecasts better."
    )
    text = (
        "Fitted to 1900-1914 on the log scale, forecast to 1920; same years, same first guesses, errors of the "
        f"logarithm. {told} Data: stan-dev/example-models, new BSD licence."
    )
    kinds = [k for k in ("integer", "fractional") if k in fits]
    figure = draw_lynx({k: fits[k] for k in kinds}, 1914) if kinds else None
    return _section("Lynx and hare", text, _forecasts(mine), figure)


def _material(rows: list[Row], fits: Fits, seed: int) -> str:
    text = (
        "The stress of a material that relaxes with sixty times spread over eight decades (a simulation; none of the "
        "models is its own). Each model sees three decades and forecasts the next one. An exponential forgets at one "
        "pace until a rest is left, two exponentials at two; an order below 1 forgets at all of them, with no more "
        "numbers. Errors are of the logarithm, means over three sets of noise."
    )
    known = {name: fits[f"material: {name}"] for name in material.MODELS if f"material: {name}" in fits}
    figure = material.draw(known, seed) if known else None
    return _section("A forecast that needs a memory", text, _forecasts(_of(rows, "material")), figure)
