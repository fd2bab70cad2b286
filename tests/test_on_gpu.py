"""What only a GPU can show: replayed steps against eager ones, and memory that does not grow."""

import gc
import logging
import os
import weakref

import pytest
import torch
from torch import nn

import neuralfde as nf
from neuralfde.adjoints import graphs
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


def gradients(func, replay, method="predictor", batch=16, steps=100, history="full", t=2.0, dtype=None, **options):
    torch.manual_seed(1)
    dtype = dtype or next(func.parameters()).dtype
    z0 = torch.randn(batch, 32, device="cuda", dtype=dtype, requires_grad=True)
    beta = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    func.zero_grad()
    y = nf.fdeint(
        func, z0, t, beta, steps=steps, method=method, history=history, graphs=replay,
        adjoint="exact", **options,
    )  # fmt: skip
    (y**2).mean().backward()
    return [y.detach(), z0.grad, beta.grad.reshape(1).cuda(), *[p.grad for p in func.parameters()]]


def worst(a, b):
    return max(relative(x.double(), y.double()) for x, y in zip(a, b, strict=True))


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
    eager = gradients(func, False, method, history=history, storage=storage)
    for _ in range(2):
        found = gradients(func, True, method, history=history, storage=storage)
        assert worst(found, eager) < 1e-11


def test_trajectory_losses(func):
    times = torch.linspace(0, 2, 11, dtype=torch.float64)
    for method in ("predictor", "abm"):
        assert worst(gradients(func, True, method, t=times), gradients(func, False, method, t=times)) < 1e-11


def test_captured_again_when_shapes_change_and_parameters_may_move_in_place(func):
    for batch in (16, 8, 16):
        eager = gradients(func, False, batch=batch)
        assert worst(gradients(func, True, batch=batch), eager) < 1e-11
    assert sum(x is not None for x in graphs._CACHE[func].values()) == 2
    with torch.no_grad():
        for p in func.parameters():
            p.mul_(0.9)
    assert worst(gradients(func, True), gradients(func, False)) < 1e-11
    assert sum(x is not None for x in graphs._CACHE[func].values()) == 2


def test_released_with_the_func():
    func = Field().cuda()
    gradients(func, True)
    (kept,) = graphs._CACHE[func].values()
    gone, alive = weakref.ref(func), weakref.ref(kept)
    del func, kept
    gc.collect()
    assert gone() is None
    assert alive() is None


def test_autocast(func):
    func = func.float()
    found = []
    for replay in (False, True):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found.append(gradients(func, replay))
    assert worst(found[1], found[0]) < 1e-2


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it, and ignores the warning itself
def test_compiled_func(func):
    compiled = torch.compile(func)
    eager = gradients(func, False)
    assert worst(gradients(compiled, True), eager) < 1e-9


def test_what_cannot_be_captured_runs_eagerly_with_one_line(caplog):
    class Syncs(Field):
        def forward(self, t, z):
            return super().forward(t, z) * (2.0 if t.item() > 1 else 1.0)

    func = Syncs().cuda().double()
    eager = gradients(func, False)
    with caplog.at_level(logging.INFO, logger="neuralfde"):
        for _ in range(2):
            assert worst(gradients(func, "auto"), eager) < 1e-12
    assert sum("CUDA graph" in r.message for r in caplog.records) == 1
    torch.cuda.synchronize()
    assert worst(gradients(Field().cuda().double(), True), gradients(Field().cuda().double(), True)) >= 0


def test_dropout_runs_eagerly_with_the_same_mask(func):
    func.drop.p = 0.5
    torch.manual_seed(3)
    first = gradients(func, "auto")
    torch.manual_seed(3)
    assert worst(gradients(func, False), first) < 1e-12


def test_history_sums_do_not_use_tf32():
    func = Field().cuda()
    exact = gradients(func, False, history="full", steps=400)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        from neuralfde.history import precise

        engine = nf.Full().forward(torch.rand(1, 200, 1, device="cuda"), 199, torch.zeros(1, 64, device="cuda"))
        assert precise(engine, torch.zeros(1, 64, device="cuda")) is not engine
        assert worst(gradients(func, False, steps=400)[:1], exact[:1]) < 1e-2  # func itself may
    finally:
        torch.set_float32_matmul_precision(before)


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
    grown = peaks[1] / peaks[0]
    assert grown < 1.1 if storage == "host" else grown > 2


def test_inside_ddp(func):
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    dist.init_process_group("nccl", rank=0, world_size=1)
    try:
        block = nf.FDEBlock(func, order=0.6, t=2.0, steps=100, graphs=True, adjoint="exact").cuda()
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
    assert worst(gradients(func, True, **options), gradients(func, False, **options)) < 1e-10
    assert worst(gradients(func, True, **options), gradients(func, False, **options)) < 1e-10  # and when replayed
