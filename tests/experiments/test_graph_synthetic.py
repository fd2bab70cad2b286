"""Generated graphs."""

import pytest
import torch

from neuralfde.errors import InputError
from neuralfde_experiments.graph_synthetic import SIZES, GraphSize, named_graph, synthetic_graph

pytest.importorskip("torch_geometric")


@pytest.fixture(scope="module")
def graph():
    return synthetic_graph("arxiv", scale=0.02, seed=3)


@pytest.mark.parametrize("like", SIZES)
def test_sizes_are_exact_and_structure_is_planted(like):
    scale = 0.01 if like == "arxiv" else 0.002
    data, size = synthetic_graph(like, scale=scale), SIZES[like]
    assert data.name == f"synthetic-{like}"
    assert data.num_nodes == round(size.nodes * scale)
    assert data.num_edges == 2 * round(size.edges * scale)
    assert data.x.shape == (data.num_nodes, size.features)
    assert torch.equal(data.y.unique(), torch.arange(size.classes))
    assert data.is_coalesced()
    assert data.is_undirected()
    assert not data.has_self_loops()
    masks = data.train_mask.int() + data.val_mask.int() + data.test_mask.int()
    assert masks.eq(1).all()
    source, target = data.edge_index
    assert (data.y[source] == data.y[target]).float().mean() > 0.5
    degree = source.bincount(minlength=data.num_nodes).float()
    assert degree.max() > 5 * degree.mean()


def test_seed_names_the_graph(graph):
    again, other = synthetic_graph("arxiv", scale=0.02, seed=3), synthetic_graph("arxiv", scale=0.02, seed=4)
    assert torch.equal(graph.edge_index, again.edge_index)
    assert torch.equal(graph.x, again.x)
    assert torch.equal(graph.train_mask, again.train_mask)
    assert not torch.equal(graph.edge_index, other.edge_index)


def test_generated_and_loaded_graphs_by_name(graph, tmp_path):
    again = named_graph("synthetic-arxiv", scale=0.02, seed=3)
    assert again.name == "synthetic-arxiv"
    assert torch.equal(again.edge_index, graph.edge_index)
    with pytest.raises(InputError, match="cora"):
        named_graph("cora", str(tmp_path))


def test_published_sizes():
    assert (SIZES["arxiv"].nodes, SIZES["arxiv"].edges) == (169343, 1166243)
    assert (SIZES["products"].nodes, SIZES["products"].edges) == (2449029, 61859140)
    assert (SIZES["arxiv"].classes, SIZES["products"].classes) == (40, 47)


def test_a_size_of_ones_own_and_refusals():
    data = synthetic_graph(GraphSize(100, 400, 6, 4, 0.5, 0.2, 0.9))
    assert data.name == "synthetic"
    assert data.edge_index.shape == (2, 800)
    with pytest.raises(InputError, match="larger scale"):
        synthetic_graph("arxiv", scale=1e-4)
    with pytest.raises(InputError, match="Did you mean 'arxiv'"):
        synthetic_graph("arxive")
