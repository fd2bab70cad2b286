"""The picture and the self-contained page the demo leaves behind. Needs matplotlib, from the extra ``cli``."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

from .checkpoint import write_whole
from .pelts import draw as draw_lynx
from .predator_prey import TRUTH
from .report import Row

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left}img{max-width:100%;height:auto}h1{font-size:1.6rem}h2{font-size:1.2rem}
p.note{color:#555}"""
_COLOURS = {"exact": "#0072B2", "paper": "#D55E00"}


def write_page(folder: Path, rows: list[Row], fits: dict[str, Any], seconds: float) -> Path:
    """Draw the picture, write ``demo.png`` and ``report.html``; returns the page."""
    pictures = []
    if {"exact path", "paper path", "wrong: best fit", "wrong: exact", "wrong: paper"} <= set(fits):
        picture = _picture(rows, fits)
        picture.savefig(folder / "demo.png", dpi=120)
        pictures.append(("Why the gradient matters", picture))
    if "order" in fits:
        pictures.append(("Parameters and order from noisy data", fits["order"].plot(labels=["prey", "predator"])))
    if "integer" in fits and "fractional" in fits:
        lynx = {k: fits[k] for k in ("integer", "fractional")}
        pictures.append(("Lynx and hare, 1900 to 1920", draw_lynx(lynx, 1914)))
    body = [
        "<h1>neuralfde: what it does, in one page</h1>",
        f'<p class="note">Made by <code>neuralfde demo</code> in {seconds:.0f} s.</p>',
        *_gradients(rows),
        *_recovery(rows),
        *_order(rows),
        *_lynx(rows),
    ]
    for title, figure in pictures:
        body += [f"<h2>{html.escape(title)}</h2>", f'<img alt="{html.escape(title)}" src="{inline(figure)}">']
    return write_html(folder / "report.html", "neuralfde demo", body)


def write_html(path: Path, title: str, body: list[str]) -> Path:
    """A page that needs no other file."""
    text = "\n".join(body)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{text}\n</body></html>\n"
    )
    write_whole(path, page.encode())
    return path


def html_table(head: list[str], lines: list[list[str]]) -> str:
    """A table of texts."""
    cells = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in line) + "</tr>" for line in lines)
    return f"<table><tr>{cells}</tr>{rows}</table>"


def _gradients(rows: list[Row]) -> list[str]:
    lines = [
        [f"{r['true_order']:g}", f"{r['exact_error']:.1e}", f"{100 * r['paper_error']:.0f} %"]
        for r in rows
        if r.get("part") == "gradient"
    ]
    return [
        "<h2>The gradient</h2><p>Error of the gradient of a trajectory loss in the four parameters of a predator-prey "
        "equation, relative to direct differentiation. The exact adjoint is exact to rounding; the paper's "
        "leaves out the singular part of the multiplier.</p>",
        html_table(["order", "exact adjoint", "paper's adjoint"], lines),
    ]


def _recovery(rows: list[Row]) -> list[str]:
    lines = [
        [
            r["case"],
            *(f"{r['estimates'][n]:.4f}" for n in TRUTH),
            f"{100 * r['error']:.2f} %",
            f"{r['seconds']:.1f}",
        ]
        for r in rows
        if r.get("part") == "recovery"
    ]
    lines.append(["truth", *(f"{v:.4f}" for v in TRUTH.values()), "", ""])
    wrong = [
        [
            r["case"].split(": ")[-1],
            *(f"{r['estimates'][n]:.4f}" for n in TRUTH),
            f"{r['loss']:.6f}",
            f"{100 * r['error']:.2f} %",
        ]
        for r in rows
        if r.get("part") == "wrong model"
    ]
    return [
        "<h2>Four parameters from clean data</h2><p>Same data, same first guess, same optimiser (Adam, learning rate "
        "0.01); only the gradient differs. Where the model fits the data perfectly both arrive: a wrong gradient "
        "vanishes too where there is no error left.</p>",
        html_table(["", *TRUTH, "worst error", "seconds"], lines),
        "<h2>When the model is not quite right</h2><p>The order is taken to be 0.9 and is 0.6, so an error remains, as "
        "it does with every real measurement. The exact gradient leads to the least-squares fit; the paper's stops "
        "elsewhere.</p>",
        html_table(["", *TRUTH, "loss", "distance from the best fit"], wrong),
    ]


def _order(rows: list[Row]) -> list[str]:
    found = next((r for r in rows if r.get("part") == "order"), None)
    if found is None:
        return []
    lines = [
        [n, f"{v:.4f}", "[{:.4f}, {:.4f}]".format(*found["intervals"][n]), f"{found['truth'][n]:g}"]
        for n, v in found["estimates"].items()
    ]
    return [
        "<h2>Parameters and order from noisy data</h2><p>Eight noisy trajectories, fitted by "
        "Levenberg-Marquardt on Jacobians of the solution.</p>",
        html_table(["unknown", "estimate", "95 % interval", "truth"], lines),
    ]


def _lynx(rows: list[Row]) -> list[str]:
    mine = [r for r in rows if r.get("part") == "lynx"]
    if not mine:
        return []
    lines = [
        [r["case"], f"{r['order']:.3f}", f"{r['train_rmse_log']:.3f}", f"{r['held_out_rmse_log']:.3f}"] for r in mine
    ]
    return [
        "<h2>Lynx and hare</h2><p>Fitted to 1900-1914 on the log scale, forecast to 1920. Data: "
        "stan-dev/example-models, new BSD licence.</p>",
        html_table(["model", "order", "error, fitted years", "error, forecast years"], lines),
    ]


def _picture(rows: list[Row], fits: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    shown = [r for r in rows if r.get("part") == "gradient"]
    for name, colour in _COLOURS.items():
        axes[0].semilogy(
            [r["true_order"] for r in shown], [max(r[f"{name}_error"], 1e-17) for r in shown], "o-", color=colour,
            label=f"{name} adjoint",
        )  # fmt: skip
        path = fits[f"{name} path"]
        worst = [max(abs(v / t - 1) for v, t in zip(p, TRUTH.values(), strict=True)) for p in path]
        axes[1].semilogy(range(1, len(worst) + 1), [100 * max(w, 1e-8) for w in worst], color=colour, label=name)
        excess = [max(v / fits["wrong: best fit"][-1] - 1, 1e-10) for v in fits[f"wrong: {name}"]]
        axes[2].semilogy(range(1, len(excess) + 1), [100 * e for e in excess], color=colour, label=name)
    axes[0].set(xlabel="order", ylabel="relative error", title="error of the gradient")
    axes[1].set(xlabel="epoch", ylabel="worst parameter error (%)", title="clean data: four parameters")
    axes[2].set(xlabel="epoch", ylabel="loss above the least-squares minimum (%)", title="model not quite right")
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
    return figure


def inline(figure: Any) -> str:
    """A picture as the address of itself."""
    kept = io.BytesIO()
    figure.savefig(kept, format="png", dpi=100)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()
