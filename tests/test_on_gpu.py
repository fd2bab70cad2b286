"""What only a GPU can show: replayed steps against eager ones, and memory that does not grow."""

import gc
import logging
import os
import warnings
import weakref
from collections import Counter

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.history import Blocked, reduced
from neuralfde.solve.steppers import graph_cache
from neuralfde.solve.steppers.static import Static
from tests.stubs import relative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.a, self.b = nn.Linear(width, 64), nn.Linear(64, width)
        self.drop = nn.Dropout(0.0)

    def forward(self, t, z):
        return self.b(torch.tanh(self.drop(self.a(z)))) - 0.1 * t * z


def gradients(func, stepper, method="predictor", batch=16, steps=100, history="full", t=2.0, dtype=None, **options):
    torch.manual_seed(1)
    dtype = dtype or next(func.parameters()).dtype
    z0 = torch.randn(batch, 32, device="cuda", dtype=dtype, requires_grad=True)
    beta = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    func.zero_grad()
    y = nf.fdeint(
        func, z0, t, beta, steps=steps, method=method, history=history, stepper=stepper, adjoint="exact", **options
    )
    (y**2).mean().backward()
    return [y.detach(), z0.grad, beta.grad.reshape(1).cuda(), *[p.grad for p in func.parameters()]]


def worst(a, b):
    return max(relative(x.double(), y.double()) for x, y in zip(a, b, strict=True))


def synchronisations(job):
    """Where the host waits for the device meanwhile."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")  # says itself that it is a prototype
            job()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{w.filename}:{w.lineno}" for w in told if "called a synchronizing" in str(w.message)]


@pytest.fixture
def func():
    torch.manual_seed(0)
    return Field().cuda().double()


@pytest.mark.parametrize("method", ["predictor", "abm", "gl-explicit"])
@pytest.mark.parametrize(
    ("history", "storage"),
    [("full", "device"), ("fft", "device"), ("exponentials", "device"), ("exponentials", "host"),
     ("exponentials", "checkpoint"), (nf.Window(40), "host")],
)  # fmt: skip
def test_replayed_steps_give_the_numbers_of_eager_ones(func, method, history, storage):
    eager = gradients(func, "single", method, history=history, storage=storage)
    for _ in range(2):
        found = gradients(func, "cuda-graph", method, history=history, storage=storage)
        assert worst(found, eager) < 1e-11


@pytest.mark.parametrize(("history", "storage"), [("full", "device"), ("exponentials", "host")])
def test_a_split_backward_pass_gives_the_numbers_of_eager_steps(func, history, storage):
    eager = gradients(func, "single", history=history, storage=storage)
    for _ in range(2):
        found = gradients(func, nf.CudaGraph(split=True), history=history, storage=storage)
        assert worst(found, eager) < 1e-11


def test_auto_tries_a_split_backward_pass_and_keeps_the_numbers(func):
    eager = gradients(func, "single")
    for _ in range(5):
        assert worst(gradients(func, "auto"), eager) < 1e-11
    (held,) = [x for x in graph_cache._CACHE[func].values() if isinstance(x, Static)]
    assert held.split is not None


@pytest.mark.parametrize("history", ["full", "exponentials"])
def test_a_frozen_mesh_has_replayed_steps_and_no_step_makes_the_host_wait(func, history):
    """Adapt once, then train: as many synchronisations with four times the steps."""
    torch.manual_seed(1)
    z0 = torch.randn(16, 32, device="cuda", dtype=torch.float64)
    options = {"method": nf.ABM(ahead=True), "history": history}
    with torch.no_grad():
        short = nf.solve(func, z0, 2.0, 0.6, rtol=1e-4, method=options["method"]).grid.cpu()
    middle = short[:-1, None] + (short[1:] - short[:-1])[:, None] * torch.arange(4, dtype=short.dtype) / 4
    waits = []
    for mesh in (short, torch.cat([middle.flatten(), short[-1:]])):

        def train(stepper, mesh=mesh):
            return gradients(func, stepper, steps=None, grid=mesh, **options)

        eager = train("single")
        for _ in range(3):
            assert worst(train("cuda-graph"), eager) < 1e-11
        waits.append(synchronisations(lambda: train("cuda-graph")))
    assert len(waits[1]) <= len(waits[0]), [f"{len(found)} waits: {Counter(found)}" for found in waits]


def test_trajectory_losses(func):
    times = torch.linspace(0, 2, 11, dtype=torch.float64)
    for method in ("predictor", "abm"):
        assert worst(gradients(func, "cuda-graph", method, t=times), gradients(func, "single", method, t=times)) < 1e-11


def test_captured_again_when_shapes_change_and_parameters_may_move_in_place(func):
    for batch in (16, 8, 16):
        eager = gradients(func, "single", batch=batch)
        assert worst(gradients(func, "cuda-graph", batch=batch), eager) < 1e-11
    assert sum(isinstance(x, Static) for x in graph_cache._CACHE[func].values()) == 2
    with torch.no_grad():
        for p in func.parameters():
            p.mul_(0.9)
    assert worst(gradients(func, "cuda-graph"), gradients(func, "single")) < 1e-11
    assert sum(isinstance(x, Static) for x in graph_cache._CACHE[func].values()) == 2


def test_released_with_the_func():
    func = Field().cuda()
    gradients(func, "cuda-graph")
    (kept,) = graph_cache._CACHE[func].values()
    gone, alive = weakref.ref(func), weakref.ref(kept)
    del func, kept
    gc.collect()
    assert gone() is None
    assert alive() is None


def test_autocast(func):
    func = func.float()
    found = []
    for stepper in ("single", "cuda-graph"):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found.append(gradients(func, stepper))
    assert worst(found[1], found[0]) < 1e-2


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it, and ignores the warning itself
def test_compiled_func(func):
    compiled = torch.compile(func)
    eager = gradients(func, "single")
    assert worst(gradients(compiled, "cuda-graph"), eager) < 1e-9


def test_what_cannot_be_captured_runs_eagerly_with_one_line(caplog):
    class Syncs(Field):
        def forward(self, t, z):
            return super().forward(t, z) * (2.0 if t.item() > 1 else 1.0)

    func = Syncs().cuda().double()
    eager = gradients(func, "single")
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        for _ in range(2):
            assert worst(gradients(func, "auto"), eager) < 1e-12
    assert sum("CUDA graph" in r.getMessage() for r in caplog.records) == 1
    torch.cuda.synchronize()
    assert (
        worst(gradients(Field().cuda().double(), "cuda-graph"), gradients(Field().cuda().double(), "cuda-graph")) >= 0
    )


def test_dropout_runs_eagerly_with_the_same_mask(func):
    func.drop.p = 0.5
    torch.manual_seed(3)
    first = gradients(func, "auto")
    torch.manual_seed(3)
    assert worst(gradients(func, "single"), first) < 1e-12


@pytest.mark.parametrize("stepper", ["single", "cuda-graph"])
@pytest.mark.parametrize("history", ["full", "fft"])
def test_history_sums_do_not_use_tf32(monkeypatch, stepper, history):
    func, seen = Field().cuda(), []
    exact = gradients(func, stepper, history=history, steps=400)
    product = Blocked.product

    def watched(self, *given):
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return product(self, *given)

    monkeypatch.setattr(Blocked, "product", watched)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert reduced(torch.zeros(1, 64, device="cuda"))
        assert worst(gradients(func, stepper, history=history, steps=400)[:1], exact[:1]) < 1e-2  # func itself may
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen
    assert set(seen) == {"ieee"}


@pytest.mark.parametrize("storage", ["host", "device"])
def test_device_memory_with_host_storage_does_not_grow(storage):
    func, peaks = Field(64).cuda(), []
    for steps in (400, 1600):
        z0 = torch.randn(1024, 64, device="cuda")
        for _ in range(2):
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            base = torch.cuda.memory_allocated()
            y = nf.fdeint(func, z0, 2.0, 0.5, steps=steps, history=nf.Exponentials(terms=24, tol=1e-3), storage=storage)
            y.square().mean().backward()
            torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - base)
    if storage == "host":
        assert peaks[1] < 1.1 * peaks[0]
    else:  # the rows of 1,200 steps more
        assert peaks[1] - peaks[0] > 0.9 * 1200 * z0.nbytes


def test_inside_ddp(func):
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    dist.init_process_group("nccl", rank=0, world_size=1)
    try:
        block = nf.FDEBlock(func, order=0.6, t=2.0, steps=100, stepper="cuda-graph", adjoint="exact").cuda()
        z0 = torch.randn(16, 32, device="cuda", dtype=torch.float64)
        block(z0).square().mean().backward()
        expected = [p.grad.clone() for p in func.parameters()]
        wrapped = nn.parallel.DistributedDataParallel(block)
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(z0).square().mean().backward()
        assert worst([p.grad for p in func.parameters()], expected) < 1e-11
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*AccumulateGrad")
def test_a_solve_inside_the_graph_of_the_caller(func):
    z0 = torch.randn(16, 32, device="cuda", dtype=torch.float64)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def step():
        func.zero_grad(set_to_none=True)
        y = nf.fdeint(func, z0, 2.0, 0.6, steps=20, history="full", adjoint="exact")
        y.square().mean().backward()
        return y

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    with torch.cuda.graph(graph, stream=stream):
        y = step()
    with torch.no_grad():
        z0.mul_(0.5)
        for p in func.parameters():
            p.mul_(1.1)
    graph.replay()
    torch.cuda.synchronize()
    found = [y.detach().clone(), *[p.grad.clone() for p in func.parameters()]]
    expected = step()
    assert worst(found, [expected.detach(), *[p.grad for p in func.parameters()]]) < 1e-12


@pytest.mark.parametrize(("history", "storage"), [("full", "device"), ("exponentials", "checkpoint")])
@pytest.mark.parametrize("t", [2.0, torch.tensor([0.0, 0.5, 1.9, 2.0], dtype=torch.float64)])
def test_whole_blocks_give_the_numbers_of_eager_steps(func, history, storage, t):
    options = {"history": history, "storage": storage, "steps": 300, "t": t}
    assert worst(gradients(func, "cuda-graph", **options), gradients(func, "single", **options)) < 1e-10
    assert (
        worst(gradients(func, "cuda-graph", **options), gradients(func, "single", **options)) < 1e-10
    )  # and when replayed


@pytest.mark.parametrize("method", ["predictor", "abm", "gl-explicit", "l1-explicit"])
@pytest.mark.parametrize("steps", [5, 63, 64, 130])
def test_remainders_of_blocks_and_orders_of_their_own(func, method, steps):
    order = torch.linspace(0.5, 0.9, 32, dtype=torch.float64)
    z0 = torch.randn(16, 32, device="cuda", dtype=torch.float64)
    for beta in (0.6, order):
        found = []
        for stepper in ("single", "cuda-graph", "cuda-graph"):
            y = nf.fdeint(func, z0, 1.0, beta, steps=steps, method=method, stepper=stepper)
            found.append([y.detach(), *torch.autograd.grad(y.square().mean(), list(func.parameters()))])
        assert worst(found[1], found[0]) < 1e-11
        assert worst(found[2], found[0]) < 1e-11


def test_the_initial_state_is_not_a_part_of_the_graph(func):
    for _ in range(3):
        z0 = torch.randn(16, 32, device="cuda", dtype=torch.float64)
        one, two = (nf.fdeint(func, z0, 1.0, 0.6, steps=100, stepper=s) for s in ("single", "cuda-graph"))
        assert relative(two, one) < 1e-12


def test_auto_takes_graphs_and_says_so(func):
    z0 = torch.randn(16, 32, device="cuda", dtype=torch.float64)
    assert nf.solve(func, z0, 1.0, 0.6, steps=100).stats.stepper == "cuda-graph"
    assert nf.solve(func, z0, 1.0, 0.6, steps=100, method="trapezoid").stats.stepper == "picard"


def test_an_exception_in_the_middle_gives_the_graphs_back(func):
    def stop(n, total):
        if n == 50:
            raise KeyboardInterrupt

    expected = gradients(func, "single")
    with pytest.raises(KeyboardInterrupt):
        gradients(func, "auto", callback=stop)
    assert not any(x.busy for x in graph_cache._CACHE[func].values() if isinstance(x, Static))
    assert worst(gradients(func, "cuda-graph"), expected) < 1e-11


@pytest.mark.parametrize("values", [[1.6, -2.1, 0.4], [1.0, -2.0, 1.0], [-0.1, 0.3, -0.1]])
def test_a_large_sparse_matrix_without_steps(values):
    """By products: Arnoldi's basis, Chebyshev's polynomials, and where no disc says where eigenvalues are."""
    at, n = torch.arange(3000), 3000
    rows, columns, z0 = (
        at.repeat(3),
        torch.cat([(at + o) % n for o in (-1, 0, 1)]),
        torch.rand(2, n, dtype=torch.float64),
    )
    found = []
    for device in ("cpu", "cuda"):
        numbers = torch.tensor(values, dtype=torch.float64, device=device, requires_grad=True)
        part = nf.linear.Sparse(rows.to(device), columns.to(device), numbers.repeat_interleave(n), n)
        y = nf.fdeint(z0.to(device), z0.to(device), 2.0, 0.8, linear=part)
        found.append((y.detach().cpu(), torch.autograd.grad(y.square().sum(), numbers)[0].cpu()))
    for got, want in zip(*found, strict=True):
        assert relative(got, want) < 1e-9
