"""The kernels of graph diffusion against the plain path: on a GPU, or interpreted in a process of their own."""

import sys

import pytest
import torch

from neuralfde.models import csr, fused
from neuralfde.models.diffusion import diffuse
from neuralfde.models.graph import FGrand
from neuralfde.models.message_passing import attention, mean_softmax
from neuralfde_experiments.graph_ensemble import FGrandEnsemble
from tests.interpreted import INTERPRETED, by_kernels, run_interpreted

DEVICE, NODES = ("cpu", 11) if INTERPRETED else ("cuda", 61)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
DTYPES = [torch.float64] if INTERPRETED else list(TOLERANCE)
pytestmark = pytest.mark.filterwarnings("ignore:.*AccumulateGrad")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")
def test_interpreted():
    run_interpreted(__file__)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Let CPU tensors go to the interpreter, and let a few edges be many."""
    if INTERPRETED:
        from neuralfde.models import kernels

        monkeypatch.setattr(fused, "_kernels", lambda device: kernels)
    monkeypatch.setattr(csr, "CROWDED", 8)


def hub(nodes=NODES, edges=2 * NODES, copies=1):
    """Directed; node 0 is everybody's target, node 1 everybody's source, and the last has its self loop only."""
    draw = torch.Generator().manual_seed(0)
    every, index = torch.arange(nodes - 1), torch.randint(0, nodes - 1, (2, edges), generator=draw)
    index = torch.cat([index, torch.stack([every, 0 * every]), torch.stack([0 * every + 1, every])], 1)
    index = torch.cat([index + nodes * c for c in range(copies)], 1)
    return csr.Graph.from_edge_index(index.to(DEVICE), copies * nodes)


def rand(*shape, seed, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).to(DEVICE, dtype)


def values_and_gradients(call, leaves):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    out = call(*leaves)
    out.backward(rand(*out.shape, seed=99, dtype=out.dtype))
    return [out.detach(), *[x.grad for x in leaves]]


def compare(monkeypatch, call, leaves, dtype):
    """Kernels in ``dtype`` against the plain path in float64; and every kernel is asked for."""
    launched = []
    launch = fused._by_row
    monkeypatch.setattr(fused, "_by_row", lambda name, *a, **k: (launched.append(name), launch(name, *a, **k)))
    found = values_and_gradients(call, [x.to(dtype) for x in leaves])
    monkeypatch.setattr(fused, "usable", lambda *_: False)
    expected = values_and_gradients(call, leaves)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        close = TOLERANCE[dtype] * max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a.double(), b, rtol=0, atol=close)
    return set(launched)


@by_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "copies", "source"), [(1, 1, False), (5, 3, True), (32, 1, True), (200, 2, False)])
def test_diffusion(monkeypatch, dtype, width, copies, source):
    graph = hub(copies=copies)
    leaves = [rand(graph.num_edges, seed=1), rand(graph.num_nodes, width, seed=2), rand(copies, seed=3)]
    leaves += [rand(graph.num_nodes, width, seed=4), rand(copies, seed=5)] if source else []
    called = compare(monkeypatch, lambda *x: diffuse(graph, *x), leaves, dtype)
    assert called == {"diffuse", "diffuse_back"}


@by_kernels
def test_diffusion_with_fixed_weights(monkeypatch):
    graph = hub()
    weight = rand(graph.num_edges, seed=1)
    leaves = [rand(graph.num_nodes, 3, seed=2), rand(1, seed=3)]
    assert "diffuse_back" in compare(monkeypatch, lambda *x: diffuse(graph, weight, *x), leaves, torch.float64)


@by_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "keep"),
    [(1, 5, "nothing"), (2, 32, "weights"), (3, 7, "all"), (4, 32, "all"), (8, 1, "weights"), (2, 8, "nothing")],
)
def test_attention(monkeypatch, dtype, heads, dim, keep):
    graph, width = hub(), heads * dim
    leaves = [rand(graph.num_nodes, 6, seed=1)]
    for seed in (2, 3):
        leaves += [rand(width, 6, seed=seed), rand(width, seed=seed + 2)]
    called = compare(monkeypatch, lambda *x: attention(graph, *x, heads, keep=keep), leaves, dtype)
    assert called == {"softmax", "softmax_back", "softmax_keys"}


@by_kernels
def test_attention_of_blocks_of_columns(monkeypatch):
    graph, maps = hub(), [rand(8, 6, seed=2), None, rand(8, 6, seed=3), None]
    parts = [rand(graph.num_nodes, 2, seed=4), rand(graph.num_nodes, 4, seed=5)]
    compare(monkeypatch, lambda *x: attention(graph, x, *maps, 2, over="both"), parts, torch.float64)


@by_kernels
def test_attention_from_queries_and_keys(monkeypatch):
    graph = hub()
    leaves = [rand(graph.num_nodes, 2, 3, seed=1), rand(graph.num_nodes, 2, 3, seed=2)]
    compare(monkeypatch, lambda *x: mean_softmax(graph, *x), leaves, torch.float64)


@by_kernels
def test_huge_scores_stay_finite():
    graph = hub()
    q = (1e4 * rand(graph.num_nodes, 2, 3, seed=1)).float().requires_grad_()
    weight = mean_softmax(graph, q, q)
    weight.square().sum().backward()
    torch.testing.assert_close(csr.row_sum(graph, weight[:, None])[:, 0], weight.new_ones(graph.num_nodes))
    assert q.grad.isfinite().all()


@by_kernels
@pytest.mark.parametrize(
    ("variant", "options"),
    [("l", {}), ("l", {"columns": 3, "recompute": True}), ("nl", {}), ("nl", {"keep_attention": True}),
     ("nl", {"keep_attention": "all"}),
     ("nl", {"recompute": True}), ("nl", {"adjoint": "direct"})],
)  # fmt: skip
def test_models(monkeypatch, variant, options):
    torch.manual_seed(0)
    graph = hub()
    model = FGrand(4, 3, 6, variant, heads=2, t=2.0, stepper="single", **options).to(DEVICE, torch.float64)
    x = rand(graph.num_nodes, 4, seed=1)
    found = []
    for kernels in (True, False):
        if not kernels:
            monkeypatch.setattr(fused, "usable", lambda *_: False)
        model.zero_grad()
        out = model(x, graph)
        out.square().sum().backward()
        found.append([out.detach(), *[p.grad for p in model.parameters()]])
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


@by_kernels
def test_ensembles(monkeypatch):
    torch.manual_seed(0)
    graph, made = hub(), []
    members = [FGrand(4, 3, 6, "nl", heads=2, t=2.0, stepper="single").double() for _ in range(2)]
    data = type("Data", (), {"x": rand(NODES, 4, seed=1), "edge_index": graph.edge_index})
    for kernels in (True, False):
        if not kernels:
            monkeypatch.setattr(fused, "usable", lambda *_: False)
        model = FGrandEnsemble(members).to(DEVICE, torch.float64)
        out = model(data)
        out.square().sum().backward()
        made.append([out.detach(), *[p.grad for p in model.parameters()]])
    torch.testing.assert_close(*made, rtol=0, atol=1e-10)


@by_kernels
def test_rows_that_no_kernel_holds_take_the_plain_path():
    x = rand(3, fused.WIDEST, seed=1)
    assert fused.usable(x, x.float().double(), None)
    assert not fused.usable(rand(3, fused.WIDEST + 1, seed=1))
    assert not fused.usable(x, x.float())
    assert not fused.usable(x.bfloat16())


def test_without_a_gpu_there_are_no_kernels(monkeypatch):
    monkeypatch.undo()
    assert not fused.usable(torch.zeros(2, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", ["l", "nl"])
def test_a_captured_step_gives_the_numbers_of_an_eager_one(monkeypatch, variant):
    monkeypatch.setattr(csr, "CROWDED", 512)
    torch.manual_seed(0)
    graph = hub(2000, 9000)
    assert all(len(nodes) == 1 for nodes in graph.crowded)
    model = FGrand(16, 3, 128, variant, t=3.0, stepper="single").to("cuda", torch.float64)
    x = rand(graph.num_nodes, 16, seed=1)

    def step():
        model.zero_grad(set_to_none=False)
        out = model(x, graph)
        out.square().sum().backward()
        return [out.detach(), *[p.grad for p in model.parameters()]]

    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        eager = [v.clone() for v in step()]
        again = [v.clone() for v in step()]
    torch.cuda.synchronize()
    with torch.cuda.graph(captured, stream=stream):
        found = step()
    captured.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, eager, rtol=0, atol=1e-10)
    torch.testing.assert_close(again, eager, rtol=0, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sums_have_a_fixed_order():
    graph = hub(2000, 90_000)
    z, weight = rand(2000, 100, seed=1, dtype=torch.float32), rand(graph.num_edges, seed=2, dtype=torch.float32)
    rate = rand(1, seed=3, dtype=torch.float32)
    first, second = (values_and_gradients(lambda *x: diffuse(graph, *x), [weight, z, rate]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
