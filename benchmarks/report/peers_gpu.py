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
    """The error of a gradient; in per cent where it can be seen."""
    if row.get("error") is None:
        return ""
    return f"{two_digits(100 * row['error'])} %" if row["error"] > 1e-4 else f"{row['error']:.0e}"


def memory(row: Row) -> str:
    """Peak memory."""
    return "" if row.get("mib") is None else f"{row['mib']:,.0f} MiB"


def ordered(found: list[Row]) -> list[Row]:
    """By work, steps and package, as they first came."""
    by = {k: list(dict.fromkeys(r[k] for r in found)) for k in ("work", "steps", "package")}
    return sorted(found, key=lambda r: [own.index(r[k]) for k, own in by.items()])


def every() -> str:
    """Each package on each equation, over both horizons."""
    found, lines = ordered(rows(TABLE)), []
    if not found:
        return ""
    for r in found:
        first = next(o for o in found if (o["work"], o["steps"]) == (r["work"], r["steps"]))
        ratio = two_digits(r["seconds"] / first["seconds"]) if r["seconds"] and first["seconds"] else ""
        cells = [r["work"], r["steps"], f"{r['package']}, {r['gradient']}", "fractional" if r["memory"] else "order 1"]
        lines.append([*cells, seconds(r), ratio, memory(r), off_by(r)])
    head = [
        "equation",
        "steps",
        "solved by",
        "its order",
        "a training step",
        "/ ours",
        "peak memory",
        "gradient error",
    ]
    return f"{table(head, lines, right=4)}\n\n{about()}"


def short() -> str:
    """The same for the front page: a line for each package, a column for each equation, the shorter horizon."""
    found = ordered(rows(TABLE))
    if not found:
        return ""
    fewest, most = min(r["steps"] for r in found), max(r["steps"] for r in found)
    names = list(dict.fromkeys(r["work"] for r in found))
    ways = list(dict.fromkeys((r["package"], _plain(r["gradient"]), r["memory"]) for r in found))
    lines = []
    for way in ways:
        each = {r["work"]: r for r in found if r["steps"] == fewest and _way(r) == way}
        name = f"{way[0]}, {way[1]}" + ("" if way[2] else "; order 1, no memory")
        lines.append([f"**{name}**" if way[0] == "neuralfde" else name, *(_cell(each.get(work)) for work in names)])
    long = {_way(r)[:2]: r for r in found if r["steps"] == most and r["work"] == names[0]}
    wanted = (ways[1][:2], ("torchdiffeq", "autograd"), ("torchdiffeq", "its adjoint"))
    peer = TORCHFDE if any(r["package"] == "torchfde" for r in found) else MISSING
    text = SHORT.format(fewest, f"{most:,}", names[0], *(seconds(long.get(way)) for way in wanted), peer)
    return f"{text}\n\n{table([f'{fewest} steps', *names], lines)}\n\n{about()}"


SHORT = """On one GPU, with the paper's image block as well: time, peak memory and gradient error of one training step
with {} solver steps. With {} solver steps of {}, ours takes {}; torchdiffeq, which has no memory to sum, takes {} by
autograd and {} by its adjoint. {}
[All figures](docs/performance.md#torchfde-and-torchdiffeq-on-a-gpu)."""

TORCHFDE = "torchfde loops over all pairs of steps, so it was measured for the shorter horizon only."
MISSING = "torchfde is missing: the time of this run ended before its rows."


def _cell(row: Row | None) -> str:
    return "" if row is None else " · ".join(filter(None, (seconds(row), memory(row), off_by(row))))


def _plain(gradient: str) -> str:
    """Where the rows are kept is told on the other page."""
    return gradient.split(" + ")[0]


def _way(row: Row) -> tuple[str, str, bool]:
    return row["package"], _plain(row["gradient"]), row["memory"]


def about() -> str:
    """Versions and machine."""
    found = run("peers-gpu", TABLE)
    return f"torchfde {found['torchfde']}; torchdiffeq {found['torchdiffeq']}. {measured(found)}"


ALT = "Shares of the time of one training step, for each stepper: func forward, func backward, history, and the host."
PARTS = {"forward": "func, forward", "backward": "func, backward", "history": "history and the rest", "host": "host"}
TOLD = """Shares of one training step, by stepper; how long it takes stands at the right. `func` has what its kernels
take when it is called alone, once a step forward and, with its vector-Jacobian product, once a step backward; the
history has what other kernels take; the host has the time in which no kernel runs. In the stepper `kernel` (hatched)
the two launches hold `func` and the history together."""


def spent() -> str:
    """The picture, its explanation and its figures."""
    found = rows(TIME)
    if not found:
        return ""
    lines = [[r["work"], r["steps"], f"`{r['stepper']}`", *(_ms(r[k]) for k in (*PARTS, "wall"))] for r in found]
    head = ["equation", "steps", "stepper", *(f"{name}, ms" for name in PARTS.values()), "in all, ms"]
    shown = f"### Where the time goes\n\n{TOLD}\n\n![{ALT}](figures/time-spent.svg)"
    return f"{shown}\n\n{table(head, lines, right=3)}\n\n{measured(run('peers-gpu', TIME))}"


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
