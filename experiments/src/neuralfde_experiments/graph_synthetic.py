"""Generated graphs of the size of ogbn-arxiv and ogbn-products, for cost measurements where the real ones are absent.

They are **not** the real graphs, and every ``Data`` made here is named ``synthetic-…``. What they share with them: the
number of nodes, edges, features and classes, communities along the classes, degrees with a heavy tail, and the sizes of
the three parts of the split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from neuralfde.errors import InputError, nearest

from .data.graphs import data_class, load_graph

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class GraphSize:
    """Size of a graph: ``edges`` counts undirected ones, each of which is listed in both directions.

    ``train`` and ``val`` are the fractions of nodes in the official split; ``homophily`` is the chance that an edge is
    drawn inside a class.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    train: float
    val: float
    homophily: float


SIZES = {
    "arxiv": GraphSize(169_343, 1_166_243, 128, 40, 90_941 / 169_343, 29_799 / 169_343, 0.65),
    "products": GraphSize(2_449_029, 61_859_140, 100, 47, 196_615 / 2_449_029, 39_323 / 2_449_029, 0.8),
}
TAIL = 2.5
"""Exponent of the degree distribution's power law."""


def named_graph(name: str, root: str | None = None, *, scale: float = 1.0, seed: int = 0) -> Data:
    """A graph by name: ``synthetic-arxiv`` and ``synthetic-products`` are generated, all others are loaded."""
    if name.startswith("synthetic-"):
        return synthetic_graph(name.removeprefix("synthetic-"), scale=scale, seed=seed)
    return load_graph(name, root, seed=seed)


def synthetic_graph(like: str | GraphSize, *, scale: float = 1.0, seed: int = 0) -> Data:
    """Generate a degree-corrected planted-partition graph (Karrer and Newman, Phys. Rev. E 83, 2011).

    Each node has a class ``y`` and a propensity ``θ`` with density ``∝ θ^{-2.5}``. An edge takes its first end with
    probability ``∝ θ``; its second end likewise, among the nodes of the same class with probability ``homophily``,
    among all nodes otherwise. Loops and repeats are drawn again until the number of edges is exact. Features are the
    class's random centre plus unit noise, centres about 0.4 noise lengths apart in each coordinate.

    Args:
        like: ``"arxiv"``, ``"products"`` or a :class:`GraphSize`.
        scale: multiplies the number of nodes and edges.
        seed: names the graph, split included.

    Shapes:
        as :func:`neuralfde_experiments.data.graphs.load_graph`.
    """
    make = data_class()
    if isinstance(like, str) and like not in SIZES:
        raise InputError(f"like={like!r} is no size of a graph. {nearest(like, SIZES)}")
    name = f"synthetic-{like}" if isinstance(like, str) else "synthetic"
    size = SIZES[like] if isinstance(like, str) else like
    nodes, edges = round(size.nodes * scale), round(size.edges * scale)
    if nodes < 4 * size.classes or edges > nodes * (nodes - 1) // 8:
        raise InputError(
            f"scale={scale:g} gives {nodes} nodes and {edges} edges: too few nodes for {size.classes} classes and as "
            f"many distinct edges. Use a larger scale."
        )
    draw = torch.Generator().manual_seed(seed)
    # Nodes are laid out class by class while edges are drawn, then renamed at random.
    y, weight = _classes(nodes, size.classes, draw), _propensities(nodes, draw)
    rename = torch.randperm(nodes, generator=draw)
    pairs = _edges(y, weight, edges, size.homophily, draw)
    edge_index = _both_directions(rename[pairs // nodes], rename[pairs % nodes], nodes)
    labels = torch.empty_like(y)
    labels[rename] = y
    x = torch.randn(nodes, size.features, generator=draw)
    x += (0.3 * torch.randn(size.classes, size.features, generator=draw))[labels]
    data = make(x=x, y=labels, edge_index=edge_index, name=name, num_classes=size.classes)
    order = torch.randperm(nodes, generator=draw)
    parts = order.tensor_split([round(nodes * size.train), round(nodes * (size.train + size.val))])
    for mask, part in zip(("train_mask", "val_mask", "test_mask"), parts, strict=True):
        data[mask] = torch.zeros(nodes, dtype=torch.bool).index_fill(0, part, True)
    return data


def _classes(nodes: int, classes: int, draw: torch.Generator) -> Tensor:
    """Sorted labels; class sizes fall like 1 / rank^0.7, at least two nodes each."""
    share = torch.arange(1, classes + 1).double() ** -0.7
    ends = 2 * torch.arange(1, classes + 1) + (share.cumsum(0) / share.sum() * (nodes - 2 * classes)).round().long()
    return torch.searchsorted(ends, torch.arange(nodes), right=True).clamp_(max=classes - 1)


def _propensities(nodes: int, draw: torch.Generator) -> Tensor:
    """Power-law weights, cut off at the square root of the number of nodes."""
    u = torch.rand(nodes, generator=draw, dtype=torch.float64)
    return (1 - u).pow(-1 / (TAIL - 1)).clamp_(max=nodes**0.5)


def _edges(y: Tensor, weight: Tensor, edges: int, homophily: float, draw: torch.Generator) -> Tensor:
    """Exactly ``edges`` distinct pairs ``low * nodes + high``, low < high."""
    nodes, ends = len(y), weight.cumsum(0)
    starts = ends - weight
    last = y.bincount().cumsum(0) - 1
    first = torch.cat([last.new_zeros(1), last[:-1] + 1])
    found = y.new_empty(0)
    while len(found) < edges:
        # Independent draws of the first end are Poisson counts per node; listed in order they keep the search local.
        expected = 1.1 * (edges - len(found)) + 64
        counts = torch.poisson(weight * (expected / ends[-1]), generator=draw).long()
        a = torch.repeat_interleave(torch.arange(nodes), counts)
        inside, c = torch.rand(len(a), generator=draw) < homophily, y[a]
        low = torch.where(inside, starts[first[c]], 0.0)
        high = torch.where(inside, ends[last[c]], ends[-1])
        u = torch.rand(len(a), generator=draw, dtype=torch.float64)
        b = torch.searchsorted(ends, low + u * (high - low)).clamp_(max=nodes - 1)
        pairs = (torch.minimum(a, b) * nodes + torch.maximum(a, b))[a != b]
        found = _sorted(torch.cat([found, pairs]))
        found = found[torch.cat([found.new_ones(1).bool(), found[1:] != found[:-1]])]
    surplus = len(found) - edges
    if surplus:
        drop = torch.randperm(len(found), generator=draw)[:surplus]
        found = found[torch.ones(len(found), dtype=torch.bool).index_fill(0, drop, False)]
    return found


def _sorted(keys: Tensor) -> Tensor:
    """numpy's sort of integers is several times as fast as torch's, and these keys are most of the work."""
    return torch.from_numpy(np.sort(keys.numpy()))


def _both_directions(a: Tensor, b: Tensor, nodes: int) -> Tensor:
    key = _sorted(torch.cat([a * nodes + b, b * nodes + a]))
    return torch.stack([key // nodes, key % nodes])
