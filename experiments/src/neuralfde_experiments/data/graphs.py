"""Node-classification graphs as torch_geometric's ``Data``, with random splits, verified and safely read.

What :func:`load_graph` makes of the raw files is what GRAND (Chamberlain et al., ICML 2021) trains on:

- the graph is undirected: both directions of every edge are listed once, sorted, **without self loops** (models add
  their own, see :meth:`neuralfde.models.message_passing.Graph.from_edge_index`);
- only the largest connected component is kept, nodes in their original order;
- features are as torch_geometric reads them, **not normalised**: GRAND applies no ``NormalizeFeatures``. Bag-of-words
  graphs hold 0 and 1, PubMed its tf-idf values. ``normalise=True`` divides each row by its sum;
- splits are GRAND's, see :func:`neuralfde_experiments.data.splits.grand_split`; of Airport and the heterophilous graphs
  they are those of :mod:`neuralfde_experiments.data.order_graphs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuralfde.errors import InputError, nearest

from .catalog import GRAPHS
from .files import data_root, missing, read_checked
from .order_graphs import ORDER_GRAPHS, load_order_graph, set_order_split

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from .raw_graphs import RawGraph

OGB_GRAPHS = ("ogbn-arxiv", "ogbn-products")
GRAPH_NAMES = (*GRAPHS, *OGB_GRAPHS, *ORDER_GRAPHS)
"""Every name :func:`load_graph` takes; case, ``-`` and ``_`` do not matter in it."""
SPARE = 16
"""Further directions that are found beside the principal ones and dropped: their own digits depend on them."""
WAVES = 32
"""Frequencies of each feature that is turned into random waves."""


def load_graph(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    development_seed: int | None = None,
    largest_component: bool = True,
    normalise: bool = False,
) -> Data:
    """Load a graph by name, with the random split of ``seed``.

    Args:
        name: one of :data:`GRAPH_NAMES`.
        root: the data folder; default: the environment variable ``NEURALFDE_DATA``.
        seed: that of the random split. The ogbn graphs have one fixed split.
        development_seed: see :func:`neuralfde_experiments.data.splits.grand_split`.
        largest_component: keep only the largest connected component; applies to Cora, CiteSeer, … only.
        normalise: divide each node's features by their sum, as torch_geometric's ``NormalizeFeatures``.

    Shapes:
        ``x`` (N, F) float32, ``y`` (N,) int64, ``edge_index`` (2, E) int64, ``train_mask``, ``val_mask``, ``test_mask``
        (N,) bool; also ``name`` and ``num_classes``.
    """
    key = _canonical(name)
    if key in OGB_GRAPHS:
        data = _load_ogb(key, data_root(root))
    elif key in ORDER_GRAPHS:
        data = load_order_graph(key, data_root(root))
        set_order_split(data, seed)
    else:
        data = _load_raw(key, data_root(root), largest_component)
        set_random_split(data, seed, development_seed=development_seed)
    if normalise:
        data.x = normalise_rows(data.x)
    return data


def set_random_split(data: Data, seed: int, *, development_seed: int | None = None) -> Data:
    """Replace the split of a loaded graph by that of another seed; only the masks change."""
    from .splits import grand_split

    if data.name in ORDER_GRAPHS:
        set_order_split(data, seed)
        return data
    size = GRAPHS[data.name].development if data.name in GRAPHS else 1500
    split = grand_split(data.y, seed, development=size, development_seed=development_seed)
    data.train_mask, data.val_mask, data.test_mask = split.train, split.val, split.test
    return data


def normalise_rows(x: Tensor) -> Tensor:
    """Shift by the smallest entry, then divide each row by its sum (at least 1), as torch_geometric does."""
    x = x - x.min()
    return x / x.sum(1, keepdim=True).clamp(min=1.0)


def rare_words(x: Tensor) -> Tensor:
    """Weigh each word by the logarithm of nodes per node that has it, and all so that the mean square stays.

    Words that few nodes have say more of them (Spärck Jones, "A statistical interpretation of term specificity and its
    application in retrieval", 1972). Labels have no part in it.
    """
    has = (x != 0).sum(0)
    weighed = x * (len(x) / has.clamp(min=1)).log()
    return weighed * (x.square().sum() / weighed.square().sum()).sqrt()


def principal(x: Tensor, count: int) -> Tensor:
    """Each node's features along the ``count`` directions in which those of all nodes are largest, most of them first.

    Words that stand together become one direction, and the noise of single words stays behind: latent semantic analysis
    (Deerwester et al., "Indexing by latent semantic analysis", 1990). Labels have no part in it.
    """
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        directions = torch.svd_lowrank(x, q=count + SPARE, niter=4)[2]
    return x @ directions[:, :count]


def random_waves(x: Tensor, frequency: float) -> Tensor:
    """Add waves of numerical features (not of flags), so that a linear map can tell close numbers apart.

    A column with more than two values is shifted and scaled to mean 0 and deviation 1, ``u``, and gets further columns
    ``sin(w u)`` and ``cos(w u)`` for :data:`WAVES` frequencies ``w``, drawn once from a normal distribution with
    deviation ``frequency``: the random features of Rahimi and Recht (NeurIPS 2007), for single numbers. Other columns
    stay as they are.
    """
    numbers = torch.tensor([len(column.unique()) > 2 for column in x.T], device=x.device)
    u = x[:, numbers]
    u = (u - u.mean(0)) / u.std(0)
    w = frequency * torch.randn(u.shape[1], WAVES, generator=torch.Generator().manual_seed(0)).to(x)
    turns = (u[:, :, None] * w).flatten(1)
    return torch.cat([u, turns.sin(), turns.cos(), x[:, ~numbers]], 1)


def undirected(edge_index: Tensor, nodes: int) -> Tensor:
    """Both directions of every edge, each once, sorted by source, then target; without self loops."""
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    key = torch.unique(torch.cat([source * nodes + target, target * nodes + source]))
    return torch.stack([key // nodes, key % nodes])


def largest_component_of(edge_index: Tensor, nodes: int) -> Tensor:
    """A mask of the nodes in the largest connected component (among equals, the one with the lowest node)."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    source, target = edge_index.numpy()
    adjacency = coo_matrix((torch.ones(len(source)).numpy(), (source, target)), shape=(nodes, nodes))
    component = torch.from_numpy(connected_components(adjacency, directed=False)[1]).long()
    return component == component.bincount().argmax()


def data_class() -> type[Data]:
    """torch_geometric's ``Data``, imported only when a graph is made."""
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise InputError("Graphs need torch_geometric, which is missing: pip install torch_geometric.") from error
    return Data


def _canonical(name: str) -> str:
    plain: Callable[[str], str] = lambda text: text.lower().replace("-", "").replace("_", "")  # noqa: E731
    known = {plain(key): key for key in GRAPH_NAMES} | {"cs": "coauthor-cs", "physics": "coauthor-physics"}
    if plain(name) not in known:
        raise InputError(f"name={name!r} is no graph. {nearest(name, GRAPH_NAMES)}")
    return known[plain(name)]


def _load_raw(key: str, root: Path, largest: bool) -> Data:
    raw, make = _read_raw(key, root), data_class()  # missing files are reported before torch_geometric is imported
    edges, nodes = undirected(raw.edge_index, len(raw.y)), len(raw.y)
    x, y = raw.x, raw.y
    if largest:
        keep = largest_component_of(edges, nodes)
        if not bool(keep.all()):
            new = keep.long().cumsum(0) - 1
            edges = new[edges[:, keep[edges[0]]]]
            x, y = x[keep], y[keep]
    return make(x=x, y=y, edge_index=edges, name=key, num_classes=GRAPHS[key].classes)


def _read_raw(key: str, root: Path) -> RawGraph:
    from .raw_graphs import read_archive, read_planetoid

    files = GRAPHS[key]
    folder = root / files.folder / "raw"
    paths = {part: folder / files.pattern.format(part) for part in files.sums}
    absent = [path for path in paths.values() if not path.exists()]
    if absent:
        raise missing(key, absent, f"Put the files of {files.source} there, or give another data folder.")

    def read(part: str) -> bytes:
        return read_checked(paths[part], files.sums[part])

    return read_archive(read("archive")) if "archive" in files.sums else read_planetoid(read)


def _load_ogb(key: str, root: Path) -> Data:
    """An ogbn graph read by the package ``ogb``, undirected, with the official split; nothing is downloaded."""
    make = data_class()
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ImportError as error:
        raise InputError(
            f"{key} is read by the package ogb, which is missing: pip install ogb. The repository's "
            f"graph experiments generate one of the same size, {key.replace('ogbn', 'synthetic')}."
        ) from error
    folder = root / key.replace("-", "_")
    if not folder.is_dir():
        raise missing(key, [folder], f"Fetch it with ogb: PygNodePropPredDataset({key!r}, root={str(root)!r}).")
    # ogb calls torch.load, which since torch 2.6 must be told to admit these classes of torch_geometric.
    with torch.serialization.safe_globals(_ogb_classes()):
        dataset = PygNodePropPredDataset(name=key, root=str(root))
        graph, parts = dataset[0], dataset.get_idx_split()
    nodes, y = graph.num_nodes, graph.y.view(-1).long()
    data = make(x=graph.x, y=y, edge_index=undirected(graph.edge_index, nodes), name=key, num_classes=int(y.max()) + 1)
    for mask, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        data[mask] = torch.zeros(nodes, dtype=torch.bool).index_fill(0, torch.as_tensor(parts[part]).long(), True)
    return data


def _ogb_classes() -> list[Any]:
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    return [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
