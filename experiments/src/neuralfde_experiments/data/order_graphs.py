"""Graphs on which the order of the derivative may matter: Airport, and five heterophilous graphs.

Airport (Chami et al., "Hyperbolic graph convolutional neural networks", NeurIPS 2019) has random splits, 70 % of the
nodes to train, 15 % to validate and 15 % to test, which share no node. The published code, and FROND's, draws its split
as if there were two classes: a node of the other two is drawn twice, and half the test nodes are training nodes too.
``airport-overlapping`` has such a split, the same for every seed, so that published accuracies can be compared.

The heterophilous graphs (Platonov et al., "A critical look at the evaluation of GNNs under heterophily", ICLR 2023)
come with ten splits; those that are measured by the area under the ROC curve have two classes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .files import missing, read_checked

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class OrderGraph:
    """A file, its sha256, and whether the measure is the area under the ROC curve."""

    file: str
    sum: str
    auc: bool = False


_AIRPORT = OrderGraph("Airport/airport.npz", "937a128d2c1ae64ea2a67ce8ccaf8f145a64ae7f008cbb242f03d96706bf3ebf")
ORDER_GRAPHS = {
    "airport": _AIRPORT,
    "airport-overlapping": _AIRPORT,
    "chameleon": OrderGraph(
        "heterophilous/chameleon_filtered.npz", "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5"
    ),
    "squirrel": OrderGraph(
        "heterophilous/squirrel_filtered.npz", "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7"
    ),
    "actor": OrderGraph("heterophilous/actor.npz", "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816"),
    "minesweeper": OrderGraph(
        "heterophilous/minesweeper.npz", "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3", auc=True
    ),
    "tolokers": OrderGraph(
        "heterophilous/tolokers.npz", "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667", auc=True
    ),
}
DEGREES = 5
"""Nodes of more neighbours than this count as having so many."""
SHARES = (0.70, 0.15)
"""Of Airport's nodes: to train on, to validate on."""


def load_order_graph(name: str, root: Path) -> Data:
    """The graph, undirected and without self loops, with the first of its splits."""
    from .graphs import data_class, undirected  # imports this module

    entry = ORDER_GRAPHS[name]
    path = root / entry.file
    if not path.exists():
        raise missing(name, [path], "Put the file there, or give another data folder.")
    arrays = np.load(io.BytesIO(read_checked(path, (entry.sum,))), allow_pickle=False)
    prefix = "" if "labels" in arrays else "node_"
    x, y = (torch.from_numpy(arrays[prefix + part]) for part in ("features", "labels"))
    edges = undirected(torch.from_numpy(arrays["edges"].T.astype(np.int64)), len(y))
    data = data_class()(x=x.float(), y=y.long(), edge_index=edges, name=name, num_classes=int(y.max()) + 1)
    if "train_masks" in arrays:
        data.splits = torch.from_numpy(np.stack([arrays[f"{part}_masks"] for part in ("train", "val", "test")]))
    else:
        data.x = torch.cat([data.x, _degrees(edges, len(y)), torch.ones(len(y), 1)], 1)
    set_order_split(data, 0)
    return data


def set_order_split(data: Data, seed: int) -> None:
    """Set the masks of the split ``seed``: for Airport drawn with it, for the others the split of its last digit."""
    if "splits" in data:
        data.train_mask, data.val_mask, data.test_mask = data.splits[:, seed % data.splits.shape[1]]
        return
    nodes = len(data.y)
    if data.name == "airport-overlapping":
        parts = _overlapping(data.y.cpu().numpy(), np.random.RandomState(1234))
    else:
        bounds = [round(SHARES[0] * nodes), round(sum(SHARES) * nodes)]
        parts = np.split(np.random.RandomState(seed).permutation(nodes), bounds)
    data.train_mask, data.val_mask, data.test_mask = (
        torch.zeros(nodes, dtype=torch.bool).index_fill(0, torch.from_numpy(part), True) for part in parts
    )


def _overlapping(labels: np.ndarray, draw: np.random.RandomState) -> list[np.ndarray]:
    """Nodes whose class is not 0 and nodes whose class is not 1, each shuffled and split as if they were disjoint."""
    lists = [draw.permutation(np.flatnonzero(labels != c)) for c in (0, 1)]
    share = round((1 - SHARES[0]) / 2 * min(map(len, lists)))
    cut = [np.split(one, [share, 2 * share]) for one in lists]
    val, test, train = (np.concatenate([one[k] for one in cut]) for k in range(3))
    return [train, val, test]


def _degrees(edges: Tensor, nodes: int) -> Tensor:
    """The degree of each node as one of six features, as in the paper that introduced the graph."""
    return torch.nn.functional.one_hot(edges[0].bincount(minlength=nodes).clamp(max=DEGREES), DEGREES + 1).float()
