"""Two processes give the gradients of one."""

import socket
import time
import warnings

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing as mp
from torch import nn

from neuralfde import FDEBlock, UnsupportedError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not built")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
CASES = [
    {"adjoint": "exact"},
    {"adjoint": "direct"},
    {"adjoint": "paper"},
    {"adjoint": "exact", "learn_order": True, "method": "abm"},
    {"adjoint": "exact", "method": "trapezoid"},
    {"storage": "host", "history": "exponentials"},
    {"storage": "checkpoint", "history": "exponentials"},
]


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, t, z):
        return self.net(z) - z


def model(case, dtype):
    torch.manual_seed(0)
    block = FDEBlock(Slope(), order=0.6, t=1.0, step=0.1, **case)
    return nn.Sequential(nn.Linear(4, 6), block, nn.Linear(6, 2)).to(dtype)


def batch(dtype):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def reference(case, dtype):
    alone = model(case, dtype)
    alone(batch(dtype)).square().mean().backward()
    return {name: p.grad for name, p in alone.named_parameters()}


def compare(got, want, dtype):
    assert got.keys() == want.keys()
    for name, w in want.items():
        error = float((got[name] - w).abs().max() / max(1.0, float(w.abs().max())))
        assert error <= TOLERANCE[dtype], (name, error)


def replicated(rank, half, dtype):
    for case in CASES:
        wrapped = nn.parallel.DistributedDataParallel(model(case, dtype))
        wrapped(half).square().mean().backward()
        compare({n: p.grad for n, p in wrapped.module.named_parameters()}, reference(case, dtype), dtype)


def sharded(rank, half, dtype):
    from torch.distributed.fsdp import fully_shard

    for case in CASES:
        wrapped = model(case, dtype)
        fully_shard(wrapped[1])
        fully_shard(wrapped)
        wrapped(half).square().mean().backward()
        got = {n: p.grad.full_tensor() for n, p in wrapped.named_parameters()}
        compare(got, reference(case, dtype), dtype)
    inner = model({}, dtype)
    fully_shard(inner[1].func)
    with pytest.raises(UnsupportedError, match="to the FDEBlock"):
        inner(half)


def worker(rank, port, job):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        for dtype in TOLERANCE:
            half = batch(dtype)[4 * rank : 4 * rank + 4]
            job(rank, half, dtype)
    finally:
        dist.destroy_process_group()
        time.sleep(0.5)  # gloo's threads still let go of tensors, which aborts a process that is already ending


@pytest.mark.parametrize("job", [replicated, sharded])
def test_gradients_of_two_processes_are_those_of_one(job):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (port, job), nprocs=2)
