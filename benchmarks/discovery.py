"""How well equations are found from data: parameters, order, intervals, fish muscle.

    python benchmarks/discovery.py --part clean --part order --part intervals --part relaxation [--muscle FILE]

Seeds start at 200 (``--first``); settings were chosen on seeds 0 to 3. Writes benchmarks/results/discovery.json and
discovery.md; parts that are not asked for keep their earlier figures.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from neuralfde.cli.experiment import plain
from neuralfde.cli.measuring import machine
from neuralfde_experiments import lotka_volterra as lv
from neuralfde_experiments import relaxation, tables

RESULTS = Path(__file__).parent / "results"
#: Order unknown: eight noisy trajectories made on a grid four times finer than the fit uses.
ORDER = lv.Config(
    optimiser="lm", learn_order=True, noise=0.01, trajectories=8, horizon=8.0, samples=32, steps=128, method="abm",
    refine=4,
)  # fmt: skip
#: Intervals: data and fit share the grid, so that the noise is the only error and the statistics are what is tested.
INTERVALS = replace(ORDER, trajectories=4, horizon=4.0, samples=16, steps=64, refine=1)


def clean(first: int, seeds: int) -> dict:
    """The paper's budget on clean data, with exact and paper gradients."""
    found: dict = {
        "setting": "30 epochs, Adam, lr 0.01, 400 trajectories, minibatches of 4, horizon 1, 10 samples, "
        "order 0.8 given, data and fit on the same grid",
        "seeds": [first, first + seeds - 1],
    }
    for adjoint in ("exact", "paper"):
        rows, spent = [], []
        for seed in range(first, first + seeds):
            began = time.process_time()
            rows.append(lv.run(lv.Config(adjoint=adjoint, seed=seed, intervals="none"))[0])
            spent.append(time.process_time() - began)
            print(adjoint, seed, rows[-1]["worst_error"], round(spent[-1], 1), flush=True)
        worst = [r["worst_error"] for r in rows]
        found[adjoint] = {
            "worst_error": max(worst),
            "median_error": median(worst),
            "errors": worst,
            "cpu_seconds_per_run": median(spent),
            "wall_seconds_per_run": median(r["seconds"] for r in rows),
        }
    return found


def order(first: int, seeds: int) -> dict:
    """Order and parameters from data with 1 % noise; the paper's adjoint has no gradient for the order."""
    rows = []
    for seed in range(first, first + seeds):
        rows.append(lv.run(replace(ORDER, seed=seed))[0])
        print("order", seed, rows[-1]["order_error"], rows[-1]["worst_error"], rows[-1]["seconds"], flush=True)
    return {
        "seeds": [first, first + seeds - 1],
        "setting": "1 % noise, 8 trajectories, horizon 8, 32 samples, data on a 4 times finer grid",
        "median_order_error": median(r["order_error"] for r in rows),
        "worst_order_error": max(r["order_error"] for r in rows),
        "worst_parameter_error": max(r["worst_error"] for r in rows),
        "median_parameter_error": median(r["worst_error"] for r in rows),
        "identifiable": sum(bool(r["identifiable"]) for r in rows),
        "wall_seconds_per_run": median(r["seconds"] for r in rows),
        "paper": "no gradient for the order",
    }


def intervals(first: int, repeats: int) -> dict:
    """How often 95 % intervals cover the truth, for each unknown."""
    counts: dict[str, int] = {}
    for seed in range(first, first + repeats):
        covered = lv.run(replace(INTERVALS, seed=seed))[0]["covered"]
        for name, inside in covered.items():
            counts[name] = counts.get(name, 0) + bool(inside)
        if seed % 10 == 9:
            print("intervals", seed - first + 1, counts, flush=True)
    shares = {n: c / repeats for n, c in counts.items()}
    return {
        "seeds": [first, first + repeats - 1],
        "setting": "1 % noise, 4 trajectories, horizon 4, 16 samples, order unknown, data and fit on the same grid",
        "repeats": repeats,
        "coverage": shares,
        "mean_coverage": sum(shares.values()) / len(shares),
    }


def muscle(path: str) -> dict:
    """Fractional models of the relaxation of fish muscle."""
    return {r["model"]: r for r in relaxation.run(relaxation.Config(path=path))}


def markdown(found: dict) -> str:
    rows: list[tuple[str, str, str]] = []
    if "clean" in found:
        c = found["clean"]
        for adjoint, target in (("exact", "≤ 1 %"), ("paper", "reported")):
            r = c[adjoint]
            what = f"clean data, {adjoint} adjoint, worst parameter error of {len(r['errors'])} seeds"
            worst = f"{100 * r['worst_error']:.2g} % (median {100 * r['median_error']:.2g} %)"
            rows.append((what, target, f"{worst}, {r['cpu_seconds_per_run']:.0f} s CPU a run"))
    if "order" in found:
        o = found["order"]
        measured = f"{o['median_order_error']:.4f} (worst {o['worst_order_error']:.4f})"
        rows.append(("order unknown, 1 % noise: median order error", "≤ 0.01", measured))
        rows.append(("the same: worst parameter error", "≤ 3 %", f"{100 * o['worst_parameter_error']:.2f} %"))
        rows.append(("the same, paper adjoint", "reported", "has no gradient for the order"))
    if "intervals" in found:
        i = found["intervals"]
        each = ", ".join(f"{n} {100 * v:.0f} %" for n, v in i["coverage"].items())
        measured = f"mean {100 * i['mean_coverage']:.1f} % ({each})"
        rows.append((f"95 % intervals cover the truth, {i['repeats']} repeats", "90 to 98 %", measured))
    for name, r in found.get("relaxation", {}).items():
        measured = (
            f"order {r['order']:.4f}, R² {r['r_squared_log']:.5f}; {r['difference']:.4f} from the slope of the "
            f"power-law range, {r['difference_all']:.4f} from that of all times"
        )
        rows.append((f"fish muscle, {name}", "order within 0.02 of the slope, R² ≥ 0.995", measured))
    lines = ["# Discovery", "", "Written by `python benchmarks/discovery.py`; as measured.", ""]
    lines.append(tables.markdown(("figure", "target", "measured"), rows))
    if "relaxation" in found:
        lines += ["", _of_the_muscle(list(found["relaxation"].values()))]
    for part in ("clean", "order", "intervals"):
        if part in found:
            seeds = "seeds {} to {}; ".format(*found[part]["seeds"]) if "seeds" in found[part] else ""
            lines += ["", f"{part}: {seeds}{found[part]['setting']}."]
    lines += ["", f"Machine: {found['machine']}.", ""]
    return "\n".join(lines)


def _of_the_muscle(rows: list[dict]) -> str:
    first = rows[0]
    met = [r["model"] for r in rows if r["difference"] <= 0.02 and r["r_squared_log"] >= 0.995]
    met_all = [r["model"] for r in rows if r["difference_all"] <= 0.02 and r["r_squared_log"] >= 0.995]
    return (
        "fish muscle: the power-law range is the longest from the first time on where a straight line on log-log axes "
        f"has R² ≥ 0.995; it ends at t = {first['until']:.3g}, with slope {first['slope']:.4f}. Over all times the "
        f"data bend, and the slope is {first['slope_all']:.4f}. Both figures are met against the slope of the "
        f"power-law range by: {', '.join(met) or 'no model'}; against the slope of all times by: "
        f"{', '.join(met_all) or 'no model'}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=["clean", "order", "intervals", "relaxation"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=200, help="the first seed")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--muscle", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = RESULTS / "discovery.json"
    for part in given.part or ["clean", "order", "intervals"]:
        made = {
            "clean": lambda: clean(given.first, given.seeds),
            "order": lambda: order(given.first, given.seeds),
            "intervals": lambda: intervals(given.first, given.repeats),
            "relaxation": lambda: muscle(given.muscle),
        }[part]()
        RESULTS.mkdir(exist_ok=True)
        found = json.loads(kept.read_text()) if kept.is_file() else {}
        at = machine(torch.device("cpu"))
        found["machine"] = f"{at['cpu']}, one thread, torch {at['torch']}, {at['date']}"
        found[part] = plain(made)
        kept.write_text(json.dumps(found, indent=2) + "\n")
        (RESULTS / "discovery.md").write_text(markdown(found))


if __name__ == "__main__":
    main()
