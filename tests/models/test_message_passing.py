"""Every operation against a dense reference in float64, its gradient by gradcheck, and its largest tensor."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neuralfde.errors import InputError, InputTypeError
from neuralfde.models import csr
from neuralfde.models.message_passing import (
    SCORES,
    Graph,
    aggregate,
    attention,
    edge_scores,
    edge_softmax,
    edge_squareplus,
)

KINDS = list(SCORES)


def directed_graph(nodes=7, edges=15, seed=0):
    """Directed, with repeated edges, a listed self loop, and the last node isolated."""
    draw = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, nodes - 1, (2, edges), generator=draw)
    edge_index = torch.cat([edge_index, edge_index[:, :3], torch.tensor([[1], [1]])], 1)
    return Graph.from_edge_index(edge_index, nodes)


def rand(*shape, seed=1, grad=False):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_(grad)


def dense(graph, per_edge):
    """(E,) to the matrix, rows = targets."""
    out = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=per_edge.dtype)
    return out.index_put((graph.row.long(), graph.col.long()), per_edge)


def dense_scores(q, k, kind):
    """(N, N, H)."""
    if kind == "scaled_dot":
        return torch.einsum("ihd,jhd->ijh", q, k) / math.sqrt(q.shape[2])
    if kind == "cosine":
        return torch.cosine_similarity(q[:, None], k[None], dim=3)
    if kind == "pearson":
        return dense_scores(q - q.mean(2, keepdim=True), k - k.mean(2, keepdim=True), "cosine")
    return torch.exp(-0.5 * (q[:, None] - k[None]).square().sum(3))


def dense_attention(graph, scores, normalise):
    """(N, N) from (N, N, H)."""
    mask = dense(graph, torch.ones(graph.num_edges, dtype=scores.dtype)).bool()[..., None]
    if normalise == "softmax":
        return torch.softmax(scores.masked_fill(~mask, -math.inf), 1).mean(2)
    top = scores[graph.row.long(), graph.col.long()].max()
    positive = ((scores - top) + ((scores - top) ** 2 + 4).sqrt()) / 2 * mask
    return (positive / positive.sum(1, keepdim=True)).mean(2)


@pytest.fixture(params=["library", "plain"])
def path(request, monkeypatch):
    """Both implementations of the products; the plain one with chunks of a few edges."""
    if request.param == "plain":
        monkeypatch.setattr(csr, "_library_has_products", lambda device: False)
        monkeypatch.setattr(csr, "CHUNK_BYTES", 200)
    return request.param


def test_graph_is_sorted_merged_and_has_one_loop_everywhere():
    graph = directed_graph()
    pairs = graph.edge_index.t().tolist()
    assert len(pairs) == len({tuple(p) for p in pairs}) == graph.num_edges
    assert [(t, s) for s, t in pairs] == sorted((t, s) for s, t in pairs)
    assert sum(s == t for s, t in pairs) == graph.num_nodes
    last = graph.rowptr[-2:].diff().item()
    assert last == 1, "the isolated node has its self loop only"
    by_source = graph.row[graph.perm.long()]
    assert torch.equal(by_source, graph.col_t)


def test_symmetric_graph_shares_its_transpose():
    both = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = Graph.from_edge_index(both, 4)
    assert graph.col_t is graph.col
    assert graph.rowptr_t is graph.rowptr
    moved = graph.to("cpu")
    assert moved.col_t is moved.col


def test_aggregate_is_the_matrix_product(path):
    graph = directed_graph()
    weight, x = rand(graph.num_edges, grad=True), rand(graph.num_nodes, 5, seed=2, grad=True)
    torch.testing.assert_close(aggregate(graph, weight, x), dense(graph, weight) @ x, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda w, v: aggregate(graph, w, v), (weight, x))


def test_a_bad_row_reaches_its_neighbours_only(path):
    graph = Graph.from_edge_index(torch.tensor([[0], [1]]), 3)
    x = torch.tensor([[math.nan], [1.0], [1.0]])
    out = aggregate(graph, torch.ones(graph.num_edges), x)
    assert out.isfinite()[:, 0].tolist() == [False, False, True]


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.integers(1, 12),
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40),
    features=st.integers(1, 4),
)
def test_any_graph_and_its_transpose_are_the_dense_ones(nodes, pairs, features):
    pairs = [(a % nodes, b % nodes) for a, b in pairs]
    graph = Graph.from_edge_index(torch.tensor(pairs, dtype=torch.long).view(-1, 2).t(), nodes)
    matrix = torch.eye(nodes, dtype=torch.bool)
    for source, target in pairs:
        matrix[target, source] = True
    weight, x = rand(graph.num_edges), rand(nodes, features, seed=2)
    full = dense(graph, weight)
    assert torch.equal(full != 0, matrix)
    torch.testing.assert_close(csr.spmm(graph, weight, x), full @ x, rtol=0, atol=1e-12)
    torch.testing.assert_close(csr.spmm(graph, weight, x, transposed=True), full.t() @ x, rtol=0, atol=1e-12)
    sampled = (x @ x.t())[graph.row.long(), graph.col.long()]
    torch.testing.assert_close(csr.sddmm(graph, x, x), sampled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_edge_scores_match_the_dense_ones(path, kind):
    graph = directed_graph()
    q, k = rand(graph.num_nodes, 2, 3, grad=True), rand(graph.num_nodes, 2, 3, seed=5, grad=True)
    expected = dense_scores(q, k, kind)[graph.row.long(), graph.col.long()]
    torch.testing.assert_close(edge_scores(graph, q, k, kind), expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda a, b: edge_scores(graph, a, b, kind), (q, k))


def test_kernel_parameters_get_gradients():
    graph = directed_graph()
    q, k = rand(graph.num_nodes, 1, 3), rand(graph.num_nodes, 1, 3, seed=5)
    scale, variance = rand(1, seed=7).abs().requires_grad_(), rand(1, seed=8, grad=True)
    assert torch.autograd.gradcheck(
        lambda a, b: edge_scores(graph, q, k, "exp_kernel", lengthscale=a, variance=b), (scale, variance)
    )


@pytest.mark.parametrize("normalise", [edge_softmax, edge_squareplus])
def test_normalised_rows_sum_to_one(normalise):
    graph = directed_graph()
    scores = rand(graph.num_edges, 3, grad=True)
    weight = normalise(graph, scores)
    sums = csr.row_sum(graph, weight.detach())
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-14)
    torch.testing.assert_close(normalise(graph, scores[:, 0].detach() + 0).shape, (graph.num_edges,))
    assert torch.autograd.gradcheck(lambda s: normalise(graph, s), (scores,))


@pytest.mark.parametrize("normalise", [edge_softmax, edge_squareplus])
def test_huge_scores_stay_finite(normalise):
    graph = directed_graph()
    scores = (rand(graph.num_edges, 2) * 1e6).float().requires_grad_()
    weight = normalise(graph, scores)
    weight.square().sum().backward()
    assert weight.isfinite().all()
    assert scores.grad.isfinite().all()
    sums = csr.row_sum(graph, weight.detach())
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalise", ["softmax", "squareplus"])
def test_attention_and_its_gradients_match_the_dense_ones(path, kind, normalise):
    graph = directed_graph()
    leaves = [rand(graph.num_nodes, 5, grad=True)]
    for seed in (2, 4):
        leaves += [rand(6, 5, seed=seed, grad=True), rand(6, seed=seed + 1, grad=True)]
    x, wq, bq, wk, bk = leaves
    direction = rand(graph.num_nodes, 5, seed=9)

    sparse = attention(graph, x, wq, bq, wk, bk, heads=2, kind=kind, normalise=normalise)
    q, k = (torch.nn.functional.linear(x, w, b).view(-1, 2, 3) for w, b in ((wq, bq), (wk, bk)))
    full = dense_attention(graph, dense_scores(q, k, kind), normalise)
    torch.testing.assert_close(dense(graph, sparse), full, rtol=0, atol=1e-12)

    ours = torch.autograd.grad((aggregate(graph, sparse, x) * direction).sum(), leaves)
    theirs = torch.autograd.grad(((full @ x) * direction).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_works_under_torch_func():
    graph = directed_graph()
    weight, x = rand(graph.num_edges), rand(graph.num_nodes, 3)
    g = rand(graph.num_nodes, 3, seed=3)
    _, pull = torch.func.vjp(lambda w, v: aggregate(graph, edge_softmax(graph, w), v), weight, x)
    leaves = (weight.clone().requires_grad_(), x.clone().requires_grad_())
    expected = torch.autograd.grad(aggregate(graph, edge_softmax(graph, leaves[0]), leaves[1]), leaves, g)
    for a, b in zip(pull(g), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_sixteen_bit_features_are_summed_in_float32(path):
    graph = directed_graph()
    weight, x = rand(graph.num_edges), rand(graph.num_nodes, 4)
    low = aggregate(graph, weight.float(), x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.double(), aggregate(graph, weight, x.bfloat16().double()), rtol=2**-8, atol=1e-6)
    q = rand(graph.num_nodes, 2, 4).bfloat16()
    assert edge_scores(graph, q, q).dtype == torch.float32


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                count = leaf._nnz() if leaf.layout == torch.sparse_csr else leaf.numel()
                self.largest = max(self.largest, count)
        return out


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_edges_times_features_is_made(path, kind, monkeypatch):
    monkeypatch.setattr(csr, "CHUNK_BYTES", 4096)
    nodes, features, heads = 60, 32, 2
    every = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes)).t()
    graph = Graph.from_edge_index(every, nodes)
    x = rand(nodes, features, grad=True)
    wq, wk = rand(features, features, seed=2, grad=True), rand(features, features, seed=3, grad=True)
    with LargestTensor() as seen:
        weight = attention(graph, x, wq, None, wk, None, heads, kind)
        aggregate(graph, weight, x).square().sum().backward()
    # The backward pass runs in this thread on the CPU, so the mode sees it too.
    assert graph.num_edges <= seen.largest <= graph.num_edges * heads < graph.num_edges * features // 8


def test_empty_graphs_and_bad_indices_are_refused():
    none = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(InputError, match="without nodes"):
        Graph.from_edge_index(none, 0)
    assert Graph.from_edge_index(none, 3).num_edges == 3
    with pytest.raises(InputError, match="num_nodes=5"):
        Graph.from_edge_index(torch.tensor([[0, 4], [1, 2]]), 3)
    with pytest.raises(InputError, match="Leave out what is no edge"):
        Graph.from_edge_index(torch.tensor([[0, -1], [1, -1]]), 3)
    with pytest.raises(InputError, match="sources, targets"):
        Graph.from_edge_index(torch.zeros(3, 2, dtype=torch.long), 3)
    with pytest.raises(InputTypeError, match="integer"):
        Graph.from_edge_index(torch.zeros(2, 2), 3)


def test_wrong_shapes_and_names_say_what_to_do():
    graph = directed_graph()
    x = rand(graph.num_nodes, 4)
    with pytest.raises(InputError, match="one value per edge"):
        aggregate(graph, rand(3), x)
    with pytest.raises(InputError, match="one row per node"):
        aggregate(graph, rand(graph.num_edges), x[1:])
    with pytest.raises(InputError, match="Did you mean 'cosine'"):
        edge_scores(graph, x[:, None], x[:, None], "cosin")
    with pytest.raises(InputError, match="heads, dim"):
        edge_scores(graph, x, x)
    with pytest.raises(InputError, match="must be"):
        edge_softmax(graph, rand(3))
    with pytest.raises(InputError, match="heads=3 does not divide"):
        attention(graph, x, rand(4, 4), None, rand(4, 4), None, heads=3)
    with pytest.raises(InputError, match="'softmax'"):
        attention(graph, x, rand(4, 4), None, rand(4, 4), None, heads=2, normalise="softmx")


@pytest.mark.gpu
def test_cuda_gives_the_numbers_of_the_cpu():
    graph = directed_graph(200, 3000)
    x, w = rand(200, 16), [rand(16, 16, seed=s) for s in (2, 3)]
    results = []
    for device in ("cpu", "cuda"):
        leaf = x.detach().clone().to(device).requires_grad_()
        g = graph.to(device)
        weight = attention(g, leaf, w[0].to(device), None, w[1].to(device), None, heads=4)
        out = aggregate(g, weight, leaf)
        out.square().sum().backward()
        results.append((out.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-10)
