"""Finding equations from data: parameters, orders, intervals, and the relaxation of fish muscle."""

from __future__ import annotations

from .markdown import measured, table
from .record import Row, rows, run, runs

HEAD = ["figure", "target", "measured"]
PARTS = ("clean", "order", "intervals")


def lotka_volterra() -> list[list[str]]:
    """Parameters, order and intervals of a predator-prey system."""
    lines = []
    for r, target in zip(rows("discovery", "clean"), ("≤ 1 %", "reported"), strict=True):
        found = f"{100 * r['worst_error']:.2g} % (median {100 * r['median_error']:.2g} %)"
        what = f"clean data, {r['adjoint']} adjoint, worst parameter error of {len(r['errors'])} seeds"
        lines.append([what, target, f"{found}, {r['cpu_seconds_per_run']:.0f} s CPU a run"])
    (o,), (i,) = rows("discovery", "order"), rows("discovery", "intervals")
    found = f"{o['median_order_error']:.4f} (worst {o['worst_order_error']:.4f})"
    each = ", ".join(f"{n} {100 * v:.0f} %" for n, v in i["coverage"].items())
    return [
        *lines,
        ["order unknown, 1 % noise: median order error", "≤ 0.01", found],
        ["the same: worst parameter error", "≤ 3 %", f"{100 * o['worst_parameter_error']:.2f} %"],
        ["the same, paper adjoint", "reported", "has no gradient for the order"],
        [f"95 % intervals cover the truth, {i['repeats']} repeats", "90 to 98 %",
         f"mean {100 * i['mean_coverage']:.1f} % ({each})"],
    ]  # fmt: skip


def muscle() -> list[list[str]]:
    """Models of the relaxation of fish muscle."""
    return [
        [
            f"fish muscle, {r['model']}",
            "order within 0.02 of the slope, R² ≥ 0.995",
            f"order {r['order']:.4f}, R² {r['r_squared_log']:.5f}; {r['difference']:.4f} from the slope of the "
            f"power-law range, {r['difference_all']:.4f} from that of all times",
        ]
        for r in rows("discovery", "relaxation")
    ]


def of_the_muscle(found: list[Row]) -> str:
    """What the two slopes are, and which models meet both figures."""

    def met(key: str) -> str:
        return ", ".join(r["model"] for r in found if r[key] <= 0.02 and r["r_squared_log"] >= 0.995) or "no model"

    first = found[0]
    return (
        "Fish muscle: the power-law range is the longest from the first time on where a straight line on log-log axes "
        f"has R² ≥ 0.995; it ends at t = {first['until']:.3g}, with slope {first['slope']:.4f}. Over all times the "
        f"data bend, and the slope is {first['slope_all']:.4f}. Both figures are met against the slope of the "
        f"power-law range by: {met('difference')}; against the slope of all times by: {met('difference_all')}."
    )


def settings() -> str:
    """The settings of each part, as a list."""
    found = [run("discovery", part) for part in PARTS]
    return "\n".join(f"- {r['part']}: seeds {r['seeds'][0]} to {r['seeds'][1]}; {r['setting']}." for r in found)


def in_short() -> str:
    return f"{table(HEAD, lotka_volterra())}\n\n{measured(*(run('discovery', part) for part in PARTS))}"


def discovery() -> str:
    """Everything, with settings."""
    told = [table(HEAD, lotka_volterra() + muscle()), of_the_muscle(rows("discovery", "relaxation"))]
    return "\n\n".join([*told, settings(), measured(*runs("discovery"))])


PLACES = {"discovery": discovery, "lotka-volterra": in_short}
