"""How well equations are found from data: parameters, order, intervals, fish muscle.

    python benchmarks/discovery.py --part clean --part order --part intervals --part relaxation [--muscle FILE]

Seeds start at 200 (``--first``); settings were chosen on seeds 0 to 3. Writes benchmarks/results/discovery.json; other
parts keep their earlier figures.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median

import torch
from report.discovery import discovery
from report.record import here, put

from neuralfde.cli.experiment import plain
from neuralfde_experiments import lotka_volterra as lv
from neuralfde_experiments import relaxation

#: Order unknown: eight noisy trajectories made on a grid four times finer than the fit uses.
ORDER = lv.Config(
    optimiser="lm", learn_order=True, noise=0.01, trajectories=8, horizon=8.0, samples=32, steps=128, method="abm",
    refine=4,
)  # fmt: skip
#: Intervals: data and fit share the grid, so that the noise is the only error and the statistics are what is tested.
INTERVALS = replace(ORDER, trajectories=4, horizon=4.0, samples=16, steps=64, refine=1)
SETTINGS = {
    "clean": "30 epochs, Adam, lr 0.01, 400 trajectories, minibatches of 4, horizon 1, 10 samples, order 0.8 given, "
    "data and fit on the same grid",
    "order": "1 % noise, 8 trajectories, horizon 8, 32 samples, data on a 4 times finer grid",
    "intervals": "1 % noise, 4 trajectories, horizon 4, 16 samples, order unknown, data and fit on the same grid",
}


def clean(first: int, seeds: int) -> list[dict]:
    """The paper's budget on clean data, with exact and paper gradients."""
    found = []
    for adjoint in ("exact", "paper"):
        rows, spent = [], []
        for seed in range(first, first + seeds):
            began = time.process_time()
            rows.append(lv.run(lv.Config(adjoint=adjoint, seed=seed, intervals="none"))[0])
            spent.append(time.process_time() - began)
            print(adjoint, seed, rows[-1]["worst_error"], round(spent[-1], 1), flush=True)
        worst = [r["worst_error"] for r in rows]
        row = {"adjoint": adjoint, "worst_error": max(worst), "median_error": median(worst), "errors": worst}
        seconds = median(r["seconds"] for r in rows)
        found.append(row | {"cpu_seconds_per_run": median(spent), "wall_seconds_per_run": seconds})
    return found


def order(first: int, seeds: int) -> dict:
    """Order and parameters from data with 1 % noise; the paper's adjoint has no gradient for the order."""
    rows = []
    for seed in range(first, first + seeds):
        rows.append(lv.run(replace(ORDER, seed=seed))[0])
        print("order", seed, rows[-1]["order_error"], rows[-1]["worst_error"], rows[-1]["seconds"], flush=True)
    return {
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
        "repeats": repeats,
        "coverage": shares,
        "mean_coverage": sum(shares.values()) / len(shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=["clean", "order", "intervals", "relaxation"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=200, help="the first seed")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--muscle", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for part in given.part or ["clean", "order", "intervals"]:
        made = {
            "clean": lambda: clean(given.first, given.seeds),
            "order": lambda: order(given.first, given.seeds),
            "intervals": lambda: intervals(given.first, given.repeats),
            "relaxation": lambda: relaxation.run(relaxation.Config(path=given.muscle)),
        }[part]()
        rows = plain(made if isinstance(made, list) else [made])
        told, command = {}, f"python benchmarks/discovery.py --part {part}"
        if part in SETTINGS:
            count = given.repeats if part == "intervals" else given.seeds
            command += f" --first {given.first} --{'repeats' if part == 'intervals' else 'seeds'} {count}"
            told = {"seeds": [given.first, given.first + count - 1], "setting": SETTINGS[part]}
        put("discovery", part, rows, **here(), command=command, **told)
    print(discovery())


if __name__ == "__main__":
    main()
