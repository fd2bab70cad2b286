"""The cost of data parallelism: step times and traffic of one to four processes on this machine's CPU.

    python benchmarks/scaling.py

Writes ``results/scaling.json``. The model is a network of width 256 solved for 50 steps; the batch of 512 is split
between the processes, with one thread each. Times are medians: of wall time, which other work on the machine disturbs
and which cannot fall if there are more processes than cores, and of processor time. Traffic is counted from the tensors
passed to the collectives, per process and step.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from report.record import here, put
from report.solver import scaling
from torch import distributed as dist
from torch import multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from neuralfde import FDEBlock

WIDTH, BATCH, STEPS = 256, 512, 50
COLLECTIVES = {
    "allreduce_": "all-reduce",
    "broadcast_": "broadcast",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
}


class Slope(nn.Module):
    """A two-layer network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """f(t, z)."""
        return self.net(z) - z


class Traffic(TorchDispatchMode):
    """Counts calls and bytes of collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Look at ``c10d`` operations, run everything."""
        if func.namespace == "c10d":
            name = func.name().split("::")[1]
            self.calls[COLLECTIVES.get(name, name)] += 1
            tensors = [x for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.bytes += max(x.numel() * x.element_size() for x in tensors)
        return func(*args, **(kwargs or {}))


def build(how: str) -> nn.Module:
    torch.manual_seed(0)
    block = FDEBlock(Slope(), order=0.6, t=5.0, steps=STEPS)
    model = nn.Sequential(nn.Linear(32, WIDTH), block, nn.Linear(WIDTH, 10))
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp2":
        fully_shard(model[1])
        fully_shard(model)
    return model


def measure(how: str, rank: int, world: int, rounds: int) -> dict[str, object]:
    model = build(how)
    x = torch.randn(BATCH // world, 32, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    step()
    wall, busy = [], []
    for _ in range(rounds):
        begin = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - begin[0])
        busy.append(time.process_time() - begin[1])
    with Traffic() as traffic:
        step()
    held = sum(_local(p).numel() * 4 for p in model.parameters())
    return {
        "how": how,
        "processes": world,
        "wall_seconds": round(statistics.median(wall), 3),
        "cpu_seconds": round(statistics.median(busy), 3),
        "collectives": dict(sorted(traffic.calls.items())),
        "bytes": traffic.bytes,
        "parameter_bytes": held,
    }


def _local(p: torch.Tensor) -> torch.Tensor:
    return p.to_local() if hasattr(p, "to_local") else p


def worker(rank: int, world: int, port: int, rounds: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    rows = [measure(how, rank, world, rounds) for how in (["alone"] if world == 1 else ["ddp", "fsdp2"])]
    if rank == 0:
        Path(out).write_text(json.dumps(rows))
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads still let go of tensors, which aborts a process that is already ending


def main() -> None:
    """Measure one process and more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for world in options.processes:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            part = f"{folder}/rows.json"
            mp.spawn(worker, (world, port, options.rounds, part), nprocs=world)
            rows += json.loads(Path(part).read_text())
    put("scaling", "processes", rows, **here(), command="python benchmarks/scaling.py")
    print(scaling())


if __name__ == "__main__":
    main()
