"""One training step on a GPU beside torchfde and torchdiffeq, and where ours spends its time."""

from __future__ import annotations

from typing import Any

from .markdown import measured, table
from .record import Row, known, run

TABLE, TIME = "training step", "where the time goes"


def rows(part: str) -> list[Row]:
    """Rows of one part; none where nothing was measured yet."""
    return next((r["rows"] for r in known("peers-gpu") if r["part"] == part), [])


def seconds(row: Row | None) -> str:
    """How long it took, in three digits."""
    if row is None or row.get("failed"):
        return "–"
    if row["seconds"] is None:
        return f"> {row['limit']:g} s"
    return f"{1e3 * row['seconds']:.3g} ms" if row["seconds"] < 0.9995 else f"{row['seconds']:.3g} s"


def two_digits(x: float) -> str:
    """Two digits of a number, written out."""
    return f"{float(f'{x:.2g}'):g}"


def off_by(row: Row) -> str:
    """The error of a gradient in per cent."""
    if row.get("error") is None:
        return ""
    error = 100 * row["error"]
    return f"{two_digits(error)} %" if error > 1e-2 else f"{error:.0e} %"


def memory(row: Row) -> str:
    """Peak memory."""
    return "" if row.get("mib") is None else f"{row['mib']:,.0f} MiB"


def ordered(found: list[Row]) -> list[Row]:
    """By work, steps and package, as they first came."""
    by = {k: list(dict.fromkeys(r[k] for r in found)) for k in ("work", "steps", "package")}
    return sorted(found, key=lambda r: [own.index(r[k]) for k, own in by.items()])


def every() -> str:
    """A table for each horizon."""
    found = ordered(rows(TABLE))
    counts = sorted({r["steps"] for r in found})
    return "\n\n".join([*(compared([r for r in found if r["steps"] == n]) for n in counts), about()] if found else [])


def short() -> str:
    """The shorter horizon, for the front page."""
    found = ordered(rows(TABLE))
    if not found:
        return ""
    fewest, most = min(r["steps"] for r in found), max(r["steps"] for r in found)
    name = found[0]["work"]
    long = {_way(r)[:2]: r for r in found if (r["steps"], r["work"]) == (most, name)}
    ours = list(dict.fromkeys(_way(r)[:2] for r in found))[:2]
    wanted = (*ours, ("torchdiffeq", "autograd"), ("torchdiffeq", "its adjoint"))
    peer = TORCHFDE if any(r["package"] == "torchfde" for r in found) else MISSING
    text = SHORT.format(fewest, f"{most:,}", name, *(seconds(long.get(way)) for way in wanted), peer)
    return f"{text}\n\n{compared([r for r in found if r['steps'] == fewest])}\n\n{about()}"


def compared(found: list[Row]) -> str:
    """A line for each package and a column for each equation, for one number of steps."""
    names = list(dict.fromkeys(r["work"] for r in found))
    lines = []
    packages = list(dict.fromkeys(r["package"] for r in found))
    for way in sorted(dict.fromkeys(map(_way, found)), key=lambda way: packages.index(way[0])):
        each = {r["work"]: r for r in found if _way(r) == way}
        name = f"{way[0]}, {way[1]}" + ("" if way[2] else "; order 1, no memory")
        lines.append([f"**{name}**" if way[0] == "neuralfde" else name, *(_cell(each.get(work)) for work in names)])
    return table([f"{found[0]['steps']:,} steps", *names], lines)


SHORT = """On one GPU, with the paper's image block as well: time, peak memory and gradient error of one training step
with {} solver steps. With {} solver steps of {}, the defaults take {} and `history="exponentials"` {};
torchdiffeq, which has no memory to sum, takes {} by autograd and {} by its adjoint. {}
[All figures](docs/performance.md#torchfde-and-torchdiffeq-on-a-gpu)."""

TORCHFDE = "torchfde loops over all pairs of steps, so it was measured with the smaller number of steps only."
MISSING = "torchfde is missing: the time of this run ended before its rows."


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    parts = filter(None, (seconds(row), memory(row), off_by(row)))
    return " · ".join(part.replace(" ", "\u00a0").replace("-", "\N{NON-BREAKING HYPHEN}") for part in parts)


def _plain(gradient: str) -> str:
    """Without where the rows are kept."""
    return gradient.split(" + ")[0]


def _way(row: Row) -> tuple[str, str, bool]:
    return row["package"], _plain(row["gradient"]), row["memory"]


def about() -> str:
    """Versions and machine."""
    found = run("peers-gpu", TABLE)
    return f"torchfde {found['torchfde']}; torchdiffeq {found['torchdiffeq']}. {measured(found)}"


ALT = "Shares of the time of one training step, for each stepper: func forward, func backward, history, and the host."
PARTS = {"forward": "func, forward", "backward": "func, backward", "history": "history and the rest", "host": "host"}
TOLD = """Shares of one training step, for each stepper, with its duration on the right. `func` is the time of its
kernels when it is called alone, once per step forward and, with its vector-Jacobian product, once per step backward.
The history is the time of all other kernels, and the host is the time in which no kernel runs. The launches of the
stepper `kernel` (hatched) contain both `func` and the history."""
FOLDED = '<details class="note" markdown="1">\n<summary>The table</summary>'


def spent() -> str:
    """The picture, its explanation and its figures."""
    found = rows(TIME)
    if not found:
        return ""
    lines = [[r["work"], r["steps"], f"`{r['stepper']}`", *(_ms(r[k]) for k in (*PARTS, "wall"))] for r in found]
    head = ["equation", "steps", "stepper", *(f"{name}, ms" for name in PARTS.values()), "in all, ms"]
    shown = f"### Where the time goes\n\n{TOLD}\n\n![{ALT}](figures/time-spent.svg)"
    folded = f"{FOLDED}\n\n{table(head, lines, right=3)}\n\n</details>"
    return f"{shown}\n\n{folded}\n\n{measured(run('peers-gpu', TIME))}"


def _ms(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def figure() -> Any:
    """A bar for each stepper, a panel for each equation."""
    from matplotlib.figure import Figure

    found = rows(TIME)
    names = list(dict.fromkeys(r["work"] for r in found))
    bars = [[r for r in found if r["work"] == name] for name in names]
    picture = Figure(figsize=(8.6, 1.5 + 0.55 * len(found)))
    panels = picture.subplots(len(names), 1, height_ratios=[len(own) for own in bars], squeeze=False, sharex=True)[:, 0]
    for axis, name, own in zip(panels, names, bars, strict=True):
        left = [0.0] * len(own)
        for k, (part, label) in enumerate(PARTS.items()):
            share = [100 * r[part] / sum(r[p] for p in PARTS) for r in own]
            drawn = axis.barh(range(len(own)), share, left=left, height=0.7, label=label, color=COLOURS[k])
            for bar, r in zip(drawn, own, strict=True):
                if r["stepper"] == "kernel" and part in ("forward", "backward"):
                    bar.set(hatch="///", edgecolor="#ffffff", linewidth=0)
            left = [a + b for a, b in zip(left, share, strict=True)]
        for y, r in enumerate(own):
            axis.text(101, y, f"{_ms(r['wall'])} ms", va="center")
        axis.set_yticks(range(len(own)), [r["stepper"] for r in own])
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_title(f"{name}, {own[0]['steps']} steps", loc="left")
    panels[-1].set_xlabel("per cent of a training step")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    picture.tight_layout(rect=(0, 0.5 / picture.get_figheight(), 1, 1))
    return picture


COLOURS = ("#4c8dff", "#2fb380", "#ff8c42", "#7d838d")
PLACES = {"peers-gpu": every, "peers-gpu-readme": short, "time-spent": spent}
FIGURES = {"time-spent.svg": ("peers-gpu", figure)}
