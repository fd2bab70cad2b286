"""Samplers cut batches out of graphs."""

import pytest
import torch

from neuralfde.errors import InputError
from neuralfde_experiments.data.samplers import NodeSampler, RandomWalkSampler
from neuralfde_experiments.graph_synthetic import synthetic_graph

pytest.importorskip("torch_geometric")


@pytest.fixture(scope="module")
def graph():
    return synthetic_graph("arxiv", scale=0.02, seed=3)


@pytest.mark.parametrize("sampler", [NodeSampler, RandomWalkSampler])
def test_batches_are_induced_subgraphs(graph, sampler):
    batches = list(sampler(graph, 200, batches=3, seed=5))
    assert len(batches) == 3
    everything = {tuple(pair) for pair in graph.edge_index.t().tolist()}
    for batch in batches:
        nodes = batch.node_index
        assert len(nodes) == len(nodes.unique()) == 200
        assert torch.equal(batch.x, graph.x[nodes])
        assert torch.equal(batch.train_mask, graph.train_mask[nodes])
        assert batch.name == "synthetic-arxiv"
        inside = set(nodes.tolist())
        expected = {pair for pair in everything if pair[0] in inside and pair[1] in inside}
        assert {tuple(pair) for pair in nodes[batch.edge_index].t().tolist()} == expected
        assert batch.num_edges == len(expected)


@pytest.mark.parametrize("sampler", [NodeSampler, RandomWalkSampler])
def test_batches_follow_seed_epoch_and_rank(graph, sampler):
    def drawn(**options):
        return [batch.node_index for batch in sampler(graph, 100, **{"batches": 4, "seed": 1} | options)]

    one = drawn()
    assert all(torch.equal(a, b) for a, b in zip(one, drawn(), strict=True))
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], drawn(seed=2)[0])
    dealt = [drawn(rank=rank, world=2) for rank in range(2)]
    assert all(torch.equal(one[b], dealt[b % 2][b // 2]) for b in range(4))
    again = sampler(graph, 100, batches=4, seed=1)
    first, second = next(iter(again)).node_index, next(iter(again)).node_index
    assert torch.equal(first, one[0])
    assert not torch.equal(first, second)
    again.set_epoch(0)
    assert torch.equal(next(iter(again)).node_index, one[0])


@pytest.mark.parametrize("sampler", [NodeSampler, RandomWalkSampler])
def test_node_sampling_prefers_hubs_and_batches_may_hold_everything(graph, sampler):
    degree = graph.edge_index[0].bincount(minlength=graph.num_nodes).float()
    batch = next(iter(sampler(graph, graph.num_nodes // 10)))
    assert degree[batch.node_index].mean() > degree.mean()
    whole = next(iter(sampler(graph, 10**9)))
    assert whole.num_nodes > 0.9 * graph.num_nodes
    if sampler is NodeSampler:
        assert torch.equal(whole.edge_index, graph.edge_index)
        assert len(sampler(graph, 10**9)) == 1


def test_walks_survive_a_graph_without_edges():
    from torch_geometric.data import Data

    data = Data(x=torch.ones(5, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    batch = next(iter(RandomWalkSampler(data, 3)))
    assert batch.num_nodes == 3
    assert batch.num_edges == 0


def test_sampler_refusals(graph):
    with pytest.raises(InputError, match="batch_size=0"):
        NodeSampler(graph, 0)
    with pytest.raises(InputError, match="rank=2"):
        NodeSampler(graph, 10, rank=2, world=2)


def test_edges_may_come_in_any_order(graph):
    shuffled = graph.clone()
    draw = torch.Generator().manual_seed(0)
    shuffled.edge_index = graph.edge_index[:, torch.randperm(graph.num_edges, generator=draw)]
    ours, theirs = next(iter(NodeSampler(graph, 50))), next(iter(NodeSampler(shuffled, 50)))
    assert torch.equal(ours.edge_index, theirs.edge_index)
