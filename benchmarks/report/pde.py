"""Partial differential equations: fields from data, large linear problems, a reaction on a plane, steps on a GPU."""

from __future__ import annotations

from .markdown import measured, table
from .record import known, run


def calibration() -> str:
    """All seeds in one line."""
    found = run("pde", "calibration")
    rows = found["rows"]
    times = [r["processor seconds"] for r in rows]
    held, of = sum(r["held"] for r in rows), sum(r["of"] for r in rows)
    off = max(abs(r["order"] - 0.7) for r in rows)
    cells = [len(rows), f"{min(times):.1f} to {max(times):.1f} s", f"{100 * held / of:.1f} % of {of}", f"{off:.3f}"]
    head = ["seeds", "CPU time of a fit", "95 % intervals that contain the truth", "largest error of the order"]
    return f"{table(head, [cells], right=0)}\n\n{measured(found)}"


def linear() -> str:
    """Without steps, and with as many as give the same digits."""
    found = {"symmetric": run("pde", "linear"), "with transport": run("pde", "transport")}
    lines = []
    for matrix, each in found.items():
        for r in each["rows"]:
            off = [f"{r[k]:.1e}" if k in r else "" for k in ("off", "gradients off")]
            times = r["seconds"] / each["rows"][0]["seconds"]
            lines.append([matrix, r["steps"] or "none", f"{r['seconds']:.1f} s", f"{times:.1f}", *off])
    head = ["matrix", "steps", "values and gradients", "/ without steps", "error of values", "error of gradients"]
    worst = max(each["rows"][0]["told"] for each in found.values())
    told = f"The solutions without steps estimate their own error at {worst:.0e} or less."
    return f"{table(head, lines, right=1)}\n\n{told} {measured(*found.values())}"


def allen_cahn() -> str:
    """Each grid that was measured."""
    found = [r for r in known("pde") if r["part"].startswith("allen-cahn")]
    lines = []
    for r in (row for each in found for row in each["rows"]):
        bears = f"{r['explicit step']:.2g}" + ("" if r["explicit bears 0.8"] and not r["explicit bears 2"] else " (?)")
        cells = [f"{r['points']} × {r['points']}", bears, f"{r['times longer']:.0f}", f"{r['observed order']:.2f}"]
        lines.append([*cells, f"{r['float32 off by']:.0e}", r["steps"], f"{r['seconds']:.1f} s"])
    head = ["points", "largest stable explicit step", "longest IMEX step / that", "observed order"]
    more = ["error of float32", "steps", "values and gradients of the network"]
    return f"{table([*head, *more], lines, right=1)}\n\n{measured(*found)}"


PLACES = {"pde-calibration": calibration, "pde-linear": linear, "pde-allen-cahn": allen_cahn}
