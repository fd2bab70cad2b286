"""The campaign: how many cases, what came of them, and why some were refused."""

from __future__ import annotations

from collections import Counter

from .markdown import measured, table
from .record import rows, runs

WHAT = {
    "reference": ("random problems against the independent textbook solver: values and all gradients", "≥ 20,000"),
    "courses": (
        "jumps, events, pasts, lags, linear parts, tolerances, times per sample, complex states: likewise",
        "—",
    ),
    "fits": ("every way to call `fit`: residuals and covariances against the textbook solver", "—"),
    "commands": ("`neuralfde solve` and `neuralfde fit`: the numbers they print against the textbook solver", "—"),
    "steppers": ("every stepper, forced, against `single`: values and all gradients", "≥ 10,000"),
    "programs": (
        "random functions, written in many operations of PyTorch, against autograd through plain calls: likewise",
        "—",
    ),
    "laws": (
        "scale, batch, causality, hooks, resuming, functions that keep state, write in place or draw random numbers",
        "—",
    ),
    "transforms": ("`torch.func`, double backward, `torch.compile`, checkpoints: the right number or an error", "—"),
    "inputs": ("bad inputs to every public call and to the command line: a typed error with a remedy in 3 s", "≥ 300"),
    "special": ("`mittag_leffler` and its derivative against mpmath", "—"),
    "concurrency": ("threads, interleaved, fork, spawn, loaders, compiled, deterministic: equal to serial", "—"),
    "leak": ("1,000 training steps in a separate process: growth of at most 1 MiB", "≤ 1 MiB"),
}


def campaign() -> str:
    """A line for each part."""
    lines = []
    for name, (what, target) in WHAT.items():
        (r,) = rows("campaign", name)
        counts = [f"{r[kind]:,}" for kind in ("cases", "checked", "refused", "failed")]
        lines.append([f"`{name}`", what, target, *counts, f"{100 * r['share']:.0f} %"])
    head = ["part", "what is tried", "target", "cases", "right", "refused", "wrong", "most used of what is allowed"]
    return f"{table(head, lines, right=3)}\n\n{measured(*runs('campaign'))}"


def refusals() -> str:
    """What random problems were refused for, most frequent first."""
    found: Counter[str] = Counter()
    for name in ("reference", "steppers"):
        found.update(rows("campaign", name)[0]["refusals"])
    return table(["what the error says", "cases"], [[text, f"{n:,}"] for text, n in found.most_common()], right=1)


def cost() -> str:
    """Training steps of the revision without the checks and of the current one."""
    found = rows("campaign", "cost of the checks")
    lines = [
        [
            r["solve"],
            f"{1e3 * r['before']:.1f} ms",
            f"{1e3 * r['now']:.1f} ms",
            f"{r['ratio']:.2f}",
            f"{r['median']:.2f}",
        ]
        for r in found
    ]
    return table(["one training step", "without", "with", "with / without", "median of pairs"], lines, right=1)


PLACES = {"campaign": campaign, "campaign-refusals": refusals, "campaign-cost": cost}
