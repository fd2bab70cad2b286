"""What a training of F-GRAND-l makes of its filter, and what changes of the training do to that, on Cora.

    python benchmarks/graph_filter.py --data DIR --out OUT

The model's equation is a filter: the state at the end is a sum of powers of attention, and the power zero is the share
of each node's own features. Only validation nodes of splits that are never reported are looked at. Of each change:

    best      the best validation accuracy of an epoch
    other     the same with the epoch chosen by one half of the validation nodes and judged by the other
    after     the mean of the epochs from the best on
    own       the share of own features in the sum of absolute coefficients, early and at the end
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralfde.cli.experiment import write_json
from neuralfde.cli.measuring import machine
from neuralfde.models.powers import coefficients
from neuralfde_experiments.graph_settings import FROND, Settings
from neuralfde_experiments.graph_training import Training

SPLITS = (100, 101, 102, 103)
EPOCHS, EARLY = 120, 16
START = replace(FROND["cora"], hidden=128, t=16.0, dropout=0.5, attention_decay=0.001)
CHANGES: dict[str, dict[str, Any]] = {
    "rate and source learned": {},
    "the mean of the weights": {"average": 0.9},
    "rare words count more": {"idf": True},
    "no self loops": {"loops": False},
    "source without a gradient": {"source": "held"},
    "no source": {"source": False},
    "no source, steady rate": {"source": False, "steady": True},
    "no source, steady rate, 256 components": {"source": False, "steady": True, "components": 256},
}


def own_share(training: Training) -> float:
    """The share of each node's own features in what the filter adds up."""
    model, s = training.model, training.s
    func: Any = model.block.func
    c = coefficients(torch.sigmoid(func.a), func.b, s.t, s.step, model.order, True)
    return float(c[0].detach().abs() / c.detach().abs().sum())


def right(training: Training) -> Tensor:
    """Which validation nodes are right."""
    nodes, model = training.masks[1][0], training.model if training.mean is None else training.mean.module
    model.eval()
    with torch.no_grad():
        return model(training.data)[nodes].argmax(1) == training.data.y[nodes]


def judged(each: Tensor, seed: int) -> dict[str, float]:
    """Accuracies in per cent from ``each`` ``(epochs, nodes)``: whether a node was right after an epoch."""
    half = torch.rand(each.shape[1], generator=torch.Generator().manual_seed(seed)) < 0.5
    one, two, whole = (100 * part.double().mean(1) for part in (each[:, half], each[:, ~half], each))
    best = int(whole.argmax())
    other = (two[one.argmax()] + one[two.argmax()]) / 2
    return {"best": float(whole[best]), "other": float(other), "after": float(whole[best:].mean()), "epoch": best + 1}


def train(s: Settings, seed: int, data: str) -> dict[str, float]:
    """One training for all its epochs, without an early end."""
    training, marks, shares = Training("cora", s, [seed], [s], root=data), [], []
    for _ in range(EPOCHS):
        training.update()
        if training.mean is not None:
            training.mean.update_parameters(training.model)
        marks.append(right(training))
        shares.append(own_share(training))
    return judged(torch.stack(marks), seed) | {"own early": shares[EARLY - 1], "own late": shares[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the graphs")
    parser.add_argument("--out", type=Path, required=True, help="folder for graph-filter.json")
    args = parser.parse_args()
    rows = []
    for name, change in CHANGES.items():
        each = [train(replace(START, **change), seed, args.data) for seed in SPLITS]
        found = {key: round(statistics.fmean(one[key] for one in each), 3) for key in each[0]}
        rows.append({"training": name, "change": change, **found})
        print(rows[-1], flush=True)
        told = {
            "machine": machine(torch.device("cpu")),
            "settings": {"splits": SPLITS, "epochs": EPOCHS, "early": EARLY},
        }
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / "graph-filter.json", {**told, "rows": rows}, indent=1)


if __name__ == "__main__":
    main()
